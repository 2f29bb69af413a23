// The ruler above the rows, and above it an overview of the whole step, with a window that marks the visible interval.

const OVERVIEW = 26;
const RULER = 22;

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

function drawRuler(context, area, top) {
  const spanSeconds = ((area.right - area.left) / area.scale) * data.unitS;
  const gap = niceStep((spanSeconds * 90) / (area.right - area.left));
  const first = Math.ceil((area.begin * data.unitS) / gap) * gap;
  context.font = fontOf(10);
  context.textBaseline = "middle";
  for (let tick = first; ; tick += gap) {
    const x = area.left + (tick / data.unitS - area.begin) * area.scale;
    if (x > area.right) break;
    context.fillStyle = ink.line;
    context.fillRect(Math.round(x), top + RULER - 6, 1, 6);
    context.fillStyle = ink.muted;
    const text = tickText(tick, gap, spanSeconds);
    if (x + textWidth(context, text) + 3 < area.right) context.fillText(text, x + 3, top + RULER / 2);
  }
}

// All ticks in one unit, with as many digits as distinguish neighbours.
function tickText(tick, gap, span) {
  const [unit, factor] = SECONDS.find(([, size]) => Math.max(span, gap) >= size) || SECONDS[SECONDS.length - 1];
  const digits = Math.max(0, -Math.floor(Math.log10(gap / factor) + 1e-9));
  return `${(Math.abs(tick) < gap / 2 ? 0 : tick / factor).toFixed(Math.min(9, digits))} ${unit}`;
}

let overviewCache = null;
on("theme colors shown light size", () => {
  overviewCache = null;
});

function drawOverview(context, width, left, ratio) {
  overviewCache ??= paintOverview(width, left, ratio);
  context.drawImage(overviewCache, 0, 0, width, OVERVIEW);
  const scale = (width - left) / step;
  const from = left + Math.max(0, view.begin) * scale;
  const to = left + Math.min(step, view.end) * scale;
  context.fillStyle = ink.surface;
  context.globalAlpha = 0.72;
  context.fillRect(left, 0, from - left, OVERVIEW);
  context.fillRect(to, 0, width - to, OVERVIEW);
  context.globalAlpha = 1;
  context.strokeStyle = ink.accent;
  context.lineWidth = 1;
  context.strokeRect(from + 0.5, 0.5, Math.max(2, to - from - 1), OVERVIEW - 1);
}

function paintOverview(width, left, ratio) {
  const canvas = document.createElement("canvas");
  canvas.width = width * ratio;
  canvas.height = OVERVIEW * ratio;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const bars = shownSchedules().flatMap((schedule) => schedule.deviceSpans.map((spans) => ({ schedule, spans })));
  const height = Math.max(1, (OVERVIEW - 4) / Math.max(1, bars.length));
  const area = { left, right: width, begin: 0, scale: (width - left) / step };
  bars.forEach(({ schedule, spans }, position) => drawSpans(context, spans, area, 2 + position * height, Math.max(0.75, height - 0.5), opPaint(schedule), null));
  return canvas;
}
