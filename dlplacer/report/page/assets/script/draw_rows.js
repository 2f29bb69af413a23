// The rows of the timeline: backgrounds, labels at the left, bars, and curves of memory.

const FONT_SIZE = 11;
const fontOf = (size, weight = "") => `${weight} ${size}px ${ink.font}`;

function drawRow(context, row, area) {
  const top = row.top - area.scroll;
  if (row.type === "head") return drawHead(context, row, area, top);
  if (row.type === "memory") return drawMemory(context, row, area, top);
  const inset = row.type === "device" ? 2 : 1.5;
  const height = row.height - 2 * inset;
  context.fillStyle = ink.idle;
  const [from, to] = stepPixels(row.schedule, area);
  if (to > from) context.fillRect(from, top + inset, to - from, height);
  context.font = fontOf(FONT_SIZE);
  if (row.type === "device") drawSpans(context, row.spans, area, top + inset, height, opPaint(row.schedule), opLabel(row.schedule));
  else drawSpans(context, row.spans, area, top + inset, height, usePaint(row.schedule), null);
  return undefined;
}

function stepPixels(schedule, area) {
  const x = (time) => area.left + (time - area.begin) * area.scale;
  return [Math.max(area.left, x(0)), Math.min(area.right, x(schedule.end))];
}

// Of two schedules on one axis the first, the prediction, is paler.
const FIRST_OF_TWO = 0.55;

function opPaint(schedule) {
  const { colors, category } = coloring();
  const own = category[schedule.number];
  const { lit } = state;
  const paint = { color: "", alpha: 1 };
  const usual = state.shown.length > 1 && state.shown[0] === schedule.number ? FIRST_OF_TWO : 1;
  return (event) => {
    paint.color = colors[own[event]];
    paint.alpha = !lit || lit.has(schedule, event) ? usual : 0.16;
    return paint;
  };
}

function opLabel(schedule) {
  const { graph, ops } = schedule;
  return (event) => graph.id[ops.op[event]];
}

function usePaint(schedule) {
  const paint = { color: ink.transfer, alpha: 0.8 };
  const { lit } = state;
  return (use) => {
    const transfer = schedule.uses.transfer[use];
    const source = schedule.transfers.source[transfer];
    if (state.colorBy !== "phase") paint.color = opColor(schedule, source);
    paint.alpha = !lit || lit.has(schedule, source) ? 0.8 : 0.16;
    return paint;
  };
}

function drawHead(context, row, area, top) {
  context.fillStyle = ink.raised;
  context.fillRect(0, top, area.right, row.height);
  context.fillStyle = ink.muted;
  context.font = fontOf(FONT_SIZE, "600");
  context.textBaseline = "middle";
  context.fillText(`${state.folded.has(row.id) ? "▸" : "▾"} ${row.title}`, 8, top + row.height / 2 + 1);
  const { font } = context;
  context.font = fontOf(FONT_SIZE);
  context.fillText(fitted(context, headNote(row), area.right - area.left - 10), area.left + 6, top + row.height / 2 + 1);
  context.font = font;
}

function headNote(row) {
  if (row.id === "memory") return `alive over time, all to ${formatBytes(memoryTop())}; click a moment for its tensors`;
  return row.count > 1 ? `${row.count} rows` : "";
}

// One scale for all devices, so that heights are comparable.
function memoryTop() {
  const peaks = shownSchedules().flatMap((schedule) => (schedule.memory.device ? schedule.devices.name.map((_, device) => memoryCurve(schedule, device).peak) : []));
  return Math.max(1, ...peaks);
}

function drawMemory(context, row, area, top) {
  const { schedule, device } = row;
  const curve = memoryCurve(schedule, device);
  const highest = memoryTop() * 1.06;
  const height = row.height - 5;
  const foot = top + row.height - 2;
  const y = (level) => foot - (level / highest) * height;
  const x = (time) => area.left + (time - area.begin) * area.scale;
  context.fillStyle = ink.line;
  context.fillRect(area.left, foot, area.right - area.left, 1);
  traceCurve(context, curve, area, x, y, schedule.end);
  context.strokeStyle = lineColor(deviceColor(schedule, device));
  context.lineWidth = 1.25;
  context.stroke();
  context.lineTo(Math.min(area.right, x(schedule.end)), foot);
  context.lineTo(Math.max(area.left, x(0)), foot);
  context.fillStyle = deviceColor(schedule, device);
  context.globalAlpha = 0.18;
  context.fill();
  context.globalAlpha = 1;
  drawCapacity(context, schedule.devices.capacity[device], highest, area, y);
  drawPeak(context, row, curve, area, x, y);
}

function drawCapacity(context, capacity, highest, area, y) {
  if (capacity === null || capacity > highest) return;
  context.strokeStyle = ink.critical;
  context.setLineDash([4, 3]);
  context.beginPath();
  context.moveTo(area.left, y(capacity));
  context.lineTo(area.right, y(capacity));
  context.stroke();
  context.setLineDash([]);
}

// A step line with at most one point per pixel: the highest, because peaks must not vanish.
function traceCurve(context, curve, area, x, y, end) {
  const from = Math.max(0, bisect(curve.times, area.begin) - 1);
  const last = Math.min(area.right, x(end));
  context.beginPath();
  let level = curve.levels[from];
  let at = Math.max(area.left, x(curve.times[from]));
  context.moveTo(at, y(level));
  for (let position = from + 1; position < curve.times.length; position += 1) {
    const here = x(curve.times[position]);
    if (here > last) break;
    if (here - at < 1 && position + 1 < curve.times.length) {
      let highest = level;
      while (position < curve.times.length && x(curve.times[position]) - at < 1) {
        highest = Math.max(highest, curve.levels[position]);
        level = curve.levels[position];
        position += 1;
      }
      position -= 1;
      context.lineTo(at, y(highest));
      at = Math.min(last, at + 1);
      context.lineTo(at, y(highest));
      context.lineTo(at, y(level));
      continue;
    }
    context.lineTo(here, y(level));
    level = curve.levels[position];
    context.lineTo(here, y(level));
    at = here;
  }
  context.lineTo(Math.max(at, last), y(level));
}

function bisect(times, time) {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

function drawPeak(context, row, curve, area, x, y) {
  const at = x(curve.peakTime);
  if (!curve.peak || at < area.left || at > area.right) return;
  context.fillStyle = lineColor(deviceColor(row.schedule, row.device));
  context.beginPath();
  context.arc(at, y(curve.peak), 3, 0, 2 * Math.PI);
  context.fill();
  context.font = fontOf(10);
  context.fillStyle = ink.text;
  context.textBaseline = "middle";
  const text = formatBytes(curve.peak);
  const width = textWidth(context, text);
  const left = at + 6 + width > area.right ? at - 6 - width : at + 6;
  context.strokeStyle = ink.surface;
  context.lineWidth = 3;
  // Below the curve, because its line would strike the text out.
  context.strokeText(text, left, y(curve.peak) + 9);
  context.fillText(text, left, y(curve.peak) + 9);
}

// Drawn last, over bars that stick out to the left.
function drawGutter(context, row, area) {
  const top = row.top - area.scroll;
  if (row.type === "head") return;
  context.fillStyle = ink.surface;
  context.fillRect(0, top, area.left, row.height);
  const room = area.left - 14;
  context.font = fontOf(row.type === "link" ? 10 : FONT_SIZE, row.type === "device" ? "600" : "");
  context.fillStyle = row.type === "link" ? ink.muted : ink.text;
  context.textBaseline = "middle";
  const note = gutterNote(row);
  const line = row.type === "memory" ? row.height / 3 : row.height / 2;
  const name = row.tag ? `${row.label}  ` : row.label;
  const shown = fitted(context, name, room - (note && row.type === "device" ? 40 : 0));
  context.fillText(shown, 10, top + line + 0.5);
  if (row.tag) {
    const after = 10 + textWidth(context, shown);
    context.font = fontOf(10);
    context.fillStyle = ink.muted;
    context.fillText(fitted(context, row.tag, area.left - after - (row.type === "device" ? 48 : 6)), after, top + line + 0.5);
  }
  context.font = fontOf(10);
  context.fillStyle = ink.muted;
  if (row.type === "memory") context.fillText(fitted(context, note, room), 10, top + (2 * row.height) / 3);
  else context.fillText(note, area.left - 8 - textWidth(context, note), top + line + 0.5);
}

// On a phone only names fit.
const narrow = () => timeline.left < 100;

function gutterNote(row) {
  if (row.type === "link" || (row.type === "device" && narrow())) return "";
  if (row.type === "memory") {
    const capacity = row.schedule.devices.capacity[row.device];
    return capacity === null ? "unlimited" : `of ${formatBytes(capacity)}`;
  }
  row.busy ??= computeTotals(row.schedule, 0, row.schedule.end, () => 0).devices[row.device];
  return row.schedule.end ? `${Math.round((100 * row.busy) / row.schedule.end)} %` : "";
}
