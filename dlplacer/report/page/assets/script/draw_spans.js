// Bars of one row at any zoom. Bars narrower than a pixel are merged: a pixel gets the colour that fills most of it, as
// strong as it is filled, so that the cost of a row is bounded by its width, however many ops it holds.

const GAP_FROM = 6; // pixels from which a bar leaves a gap to the next
const TEXT_FROM = 16; // and from which it may be labelled

// `paint(event)` → {color, alpha}; `label(event)` → text. `area`: {left, right, begin, scale} maps times to pixels.
function drawSpans(context, spans, area, top, height, paint, label) {
  const { order, start, end } = spans;
  const finish = area.begin + (area.right - area.left) / area.scale;
  const pixel = { at: -1, filled: 0, longest: 0, event: -1 };
  for (let position = spans.firstAfter(area.begin); position < order.length; position += 1) {
    const event = order[position];
    if (start[event] >= finish) break;
    const from = Math.max(area.left, area.left + (start[event] - area.begin) * area.scale);
    const to = Math.min(area.right, area.left + (end[event] - area.begin) * area.scale);
    if (to - from < 1) {
      gather(context, pixel, event, from, to, top, height, paint);
      continue;
    }
    flush(context, pixel, top, height, paint);
    const { color, alpha } = paint(event);
    context.globalAlpha = alpha;
    context.fillStyle = color;
    context.fillRect(from, top, to - from - (to - from > GAP_FROM ? 0.75 : 0), height);
    if (label && to - from > TEXT_FROM) drawLabel(context, label(event), from, to, top + height / 2, color);
  }
  flush(context, pixel, top, height, paint);
  context.globalAlpha = 1;
}

function gather(context, pixel, event, from, to, top, height, paint) {
  const at = Math.floor(from);
  if (at !== pixel.at) {
    flush(context, pixel, top, height, paint);
    pixel.at = at;
  }
  const width = Math.max(to - from, 0.02);
  pixel.filled += width;
  if (width > pixel.longest) {
    pixel.longest = width;
    pixel.event = event;
  }
}

function flush(context, pixel, top, height, paint) {
  if (pixel.event >= 0) {
    const { color, alpha } = paint(pixel.event);
    context.globalAlpha = alpha * Math.min(1, Math.max(0.25, pixel.filled));
    context.fillStyle = color;
    context.fillRect(pixel.at, top, 1, height);
  }
  pixel.at = -1;
  pixel.filled = 0;
  pixel.longest = 0;
  pixel.event = -1;
}

const widths = new Map();
function textWidth(context, text) {
  const key = `${context.font}\n${text}`;
  if (!widths.has(key)) {
    if (widths.size > 20000) widths.clear();
    widths.set(key, context.measureText(text).width);
  }
  return widths.get(key);
}

function drawLabel(context, text, from, to, middle, color) {
  const room = to - from - 8;
  const fitting = fitted(context, text, room);
  if (!fitting) return;
  context.fillStyle = inkOn(color);
  context.textBaseline = "middle";
  context.fillText(fitting, from + 4, middle + 0.5);
}

// The text, or as much of its beginning as fits, or nothing: by its mean width first, because measuring is slow.
function fitted(context, text, room) {
  const width = textWidth(context, text);
  if (width <= room) return text;
  for (let kept = Math.floor((room / width) * text.length) - 1; kept >= 3; kept = Math.floor(kept * 0.94)) {
    const shown = `${text.slice(0, kept).replace(HALF, "")}…`;
    if (textWidth(context, shown) <= room) return shown;
  }
  return "";
}

// The first half of a surrogate pair whose second was cut off.
const HALF = /[\uD800-\uDBFF]$/;
