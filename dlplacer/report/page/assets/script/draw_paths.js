// Drawings over the bars: critical path, tensors that the selected op reads and feeds, bound, interval and cursor.

const MOST_ARROWS = 80;

// [{row, start, end}] of the critical path in order of time.
function criticalSteps(schedule) {
  const found = [];
  const onDevice = new Map(rows.filter((row) => row.type === "device" && row.schedule === schedule).map((row) => [row.device, row]));
  const onLink = new Map(rows.filter((row) => row.type === "link" && row.schedule === schedule).map((row) => [row.link, row]));
  schedule.ops.critical.forEach((critical, event) => {
    const row = onDevice.get(schedule.ops.device[event]);
    if (critical && row && schedule.ops.end[event] > schedule.ops.start[event]) found.push({ row, start: schedule.ops.start[event], end: schedule.ops.end[event] });
  });
  for (const { transfer, from, until } of schedule.transfers.onPath) {
    for (const use of usesOf(schedule, transfer)) {
      const row = onLink.get(schedule.uses.link[use]);
      const [start, end] = [Math.max(from, schedule.uses.start[use]), Math.min(until, schedule.uses.end[use])];
      if (row && end > start) found.push({ row, start, end });
    }
  }
  return found.sort((one, other) => one.start - other.start || one.end - other.end);
}

let criticalCache = new Map();
on("rows", () => {
  criticalCache = new Map();
});

function drawCriticalPath(context, schedule, area) {
  if (!criticalCache.has(schedule)) criticalCache.set(schedule, criticalSteps(schedule));
  const x = (time) => area.left + (time - area.begin) * area.scale;
  const y = (row) => row.top - area.scroll + row.height - 3;
  const lines = new Path2D();
  const bridges = new Path2D();
  let count = 0;
  let run = null;
  let before = null;
  const finish = () => {
    if (run && run.to > area.left && run.from < area.right) lines.rect(Math.max(area.left, run.from), y(run.row) - 0.5, Math.max(1, run.to - Math.max(area.left, run.from)), 3);
  };
  for (const part of criticalCache.get(schedule)) {
    const [from, to] = [x(part.start), x(part.end)];
    if (before && before.row !== part.row && to > area.left && from < area.right && from > area.left) {
      bridges.moveTo(from, y(before.row) + 1);
      bridges.lineTo(from, y(part.row) + 1);
      count += 1;
    }
    if (run && run.row === part.row && from - run.to < 1) run.to = Math.max(run.to, to);
    else {
      finish();
      run = { row: part.row, from, to };
    }
    before = part;
  }
  finish();
  context.fillStyle = ink.critical;
  context.fill(lines);
  // If the path changes rows every few pixels, its bridges would hide all else: they fade, and return when zoomed in.
  const apart = (area.right - area.left) / Math.max(1, count);
  context.strokeStyle = ink.critical;
  context.globalAlpha = (state.shown.length > 1 ? 0.22 : 0.35) * Math.min(1, Math.max(0, (apart - 3) / 8));
  context.lineWidth = 1;
  context.stroke(bridges);
  context.globalAlpha = 1;
}

// The place of an event: the ends of its bar, and the middle of its row.
function placeOf(schedule, type, index, area) {
  const row = rowsOf({ schedule: schedule.number, type, index })[0];
  if (!row) return null;
  const events = schedule[type === "op" ? "ops" : "transfers"];
  const x = (time) => area.left + (time - area.begin) * area.scale;
  return { from: x(events.start[index]), to: x(events.end[index]), y: row.top - area.scroll + row.height / 2, half: row.height / 2 - 2 };
}

function drawDependencies(context, area) {
  const { selected } = state;
  if (!selected || !state.shown.includes(selected.schedule)) return;
  const schedule = schedules[selected.schedule];
  const here = placeOf(schedule, selected.type, selected.index, area);
  if (!here) return;
  const before = selected.type === "op" ? producersOf(schedule, selected.index).map(({ via, event }) => (via >= 0 ? ["transfer", via] : ["op", event])) : [["op", schedule.transfers.source[selected.index]]];
  const after = selected.type === "op"
    ? consumersOf(schedule, selected.index).map(({ via, event }) => (via >= 0 ? ["transfer", via] : ["op", event]))
    : readersOf(schedule, selected.index).map((event) => ["op", event]);
  const arrow = (from, to, color) => {
    if (!from || !to) return;
    context.strokeStyle = color;
    context.beginPath();
    if (from.y === to.y) archOver(context, from, to);
    else {
      const bend = Math.max(12, Math.min(60, Math.abs(to.from - from.to) / 2));
      context.moveTo(from.to, from.y);
      context.bezierCurveTo(from.to + bend, from.y, to.from - bend, to.y, to.from, to.y);
    }
    context.stroke();
  };
  context.lineWidth = 1.25;
  for (const [type, index] of before.slice(0, MOST_ARROWS)) arrow(placeOf(schedule, type, index, area), here, ink.text);
  for (const [type, index] of after.slice(0, MOST_ARROWS)) arrow(here, placeOf(schedule, type, index, area), ink.accent);
}

// On one row: above the bars between, because a straight line would strike out their names.
function archOver(context, from, to) {
  const top = from.y - from.half;
  context.moveTo(from.to, top + 4);
  context.bezierCurveTo(from.to, top - 9, to.from, top - 9, to.from, top + 4);
}

function drawOutline(context, chosen, color, width, area) {
  if (!chosen || !state.shown.includes(chosen.schedule)) return;
  const schedule = schedules[chosen.schedule];
  const events = eventsOf(chosen);
  for (const row of rowsOf(chosen)) {
    const from = area.left + (events.start[chosen.index] - area.begin) * area.scale;
    const to = area.left + (events.end[chosen.index] - area.begin) * area.scale;
    if (to < area.left || from > area.right) continue;
    context.strokeStyle = color;
    context.lineWidth = width;
    const left = Math.max(area.left, from);
    context.strokeRect(left - 0.5, row.top - area.scroll + 1, Math.max(2, Math.min(area.right, to) - left) + 0.5, row.height - 2);
  }
  return schedule;
}

function drawInterval(context, area, height) {
  if (!state.interval) return;
  const x = (time) => Math.min(area.right, Math.max(area.left, area.left + (time - area.begin) * area.scale));
  const [from, to] = state.interval.map(x);
  context.fillStyle = ink.accent;
  context.globalAlpha = 0.12;
  context.fillRect(from, 0, to - from, height);
  context.globalAlpha = 1;
  context.fillRect(from, 0, 1, height);
  context.fillRect(to, 0, 1, height);
}

function drawLines(context, area, height) {
  const x = (time) => area.left + (time - area.begin) * area.scale;
  context.setLineDash([5, 4]);
  context.lineWidth = 1;
  const lines = shownSchedules().flatMap((schedule, number) => [[schedule.bound, ink.bound, `bound${suffix(schedule)}`, number], [schedule.end, ink.muted, `end${suffix(schedule)}`, number]]);
  const seen = lines.filter(([time]) => time && x(time) >= area.left && x(time) <= area.right).reverse();
  for (const [time, color] of seen) {
    context.strokeStyle = color;
    context.beginPath();
    context.moveTo(Math.round(x(time)) + 0.5, 0);
    context.lineTo(Math.round(x(time)) + 0.5, height);
    context.stroke();
  }
  const taken = [];
  for (const [time, color, text, number] of seen) taken[number] = nameLine(context, Math.min(x(time), taken[number] ?? Infinity), number, text, color);
  context.setLineDash([]);
  if (state.moment !== null && x(state.moment) >= area.left && x(state.moment) <= area.right) {
    context.fillStyle = ink.accent;
    context.fillRect(x(state.moment), 0, 1, height);
  }
}

// In the head of the devices, left of its line and of another label there; of two schedules one above the other.
// Returns the left end.
function nameLine(context, at, number, text, color) {
  context.font = fontOf(9);
  const width = textWidth(context, text);
  const y = state.shown.length > 1 ? 6 + 10 * number : 11;
  context.fillStyle = ink.raised;
  context.fillRect(at - width - 6, y - 5, width + 5, 10);
  context.fillStyle = color;
  context.textBaseline = "middle";
  context.fillText(text, at - width - 4, y + 0.5);
  return at - width - 6;
}

// The producers that an op reads: [{op, event, bytes, via}], via a transfer or −1.
function producersOf(schedule, event) {
  const { graph, ops } = schedule;
  return [...graph.into(ops.op[event])].map((edge) => {
    const op = graph.sources[edge];
    const producer = schedule.eventOf[op];
    const away = ops.device[producer] !== ops.device[event];
    return { op, event: producer, bytes: graph.bytes[edge], via: schedule.via.get(edge) ?? -1, away };
  });
}

function consumersOf(schedule, event) {
  const { graph, ops } = schedule;
  return [...graph.from(ops.op[event])].map((edge) => {
    const op = graph.targets[edge];
    const consumer = schedule.eventOf[op];
    const away = ops.device[consumer] !== ops.device[event];
    return { op, event: consumer, bytes: graph.bytes[edge], via: schedule.via.get(edge) ?? -1, away };
  });
}

function readersOf(schedule, transfer) {
  const source = schedule.transfers.source[transfer];
  const found = consumersOf(schedule, source).filter(({ via }) => via === transfer).map(({ event }) => event);
  return [...new Set(found)].sort((one, other) => schedule.ops.start[one] - schedule.ops.start[other]);
}
