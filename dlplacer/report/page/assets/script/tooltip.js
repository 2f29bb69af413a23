// The tooltip: a few lines beside the pointer.

let tip = null;

function showTip(lines, x, y) {
  tip ??= document.body.appendChild(make("div", { id: "tip", role: "tooltip" }));
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? Math.max(4, x - width - 12) : x + 16;
  const top = y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18;
  tip.style.transform = `translate(${left}px, ${top}px)`;
}

function hideTip() {
  if (tip) tip.hidden = true;
}

const tipLine = (name, value) => make("div", { className: "pair" }, make("span", {}, name), named(value));

function eventTip({ schedule: number, type, index }) {
  const schedule = schedules[number];
  const events = schedule[type === "op" ? "ops" : "transfers"];
  const time = events.end[index] - events.start[index];
  const head = type === "op" ? opName(schedule, index) : tensorName(schedule, index);
  const lines = [make("strong", {}, named(head)), ...(state.shown.length > 1 ? [tipLine("in", schedule.name)] : [])];
  if (type === "op") {
    const { graph } = schedule;
    const op = schedule.ops.op[index];
    lines.push(tipLine("kind", texts[graph.kind[op]]), tipLine("device", schedule.devices.name[schedule.ops.device[index]]));
    if (graph.module[op]) lines.push(tipLine("module", texts[graph.module[op]]));
    if (graph.shapes[op]) lines.push(tipLine("output", `${texts[graph.shapes[op]]} ${texts[graph.dtype[op]]}`));
    if (graph.outputBytes[op]) lines.push(tipLine("bytes", formatBytes(graph.outputBytes[op])));
  } else {
    lines.push(tipLine("bytes", formatBytes(schedule.transfers.bytes[index])), tipLine("route", texts[schedule.transfers.route[index]]));
  }
  lines.push(tipLine("start", seconds(events.start[index])), tipLine("time", seconds(time)));
  if (events.slack.length) lines.push(tipLine("slack", events.critical[index] ? "0: critical path" : seconds(events.slack[index])));
  const waited = waitedFor(schedule, events, index);
  if (waited) lines.push(tipLine("waited for", waited.text));
  return lines;
}

// {text, before: event, gap} of the event before, after which this one started; null for the first one.
function waitedFor(schedule, events, index) {
  const number = events.waited[index];
  if (number < 0) return null;
  const isOp = number < schedule.ops.count;
  const before = { schedule: schedule.number, type: isOp ? "op" : "transfer", index: isOp ? number : number - schedule.ops.count };
  const end = eventsOf(before).end[before.index];
  return { text: WAITED_FOR[events.why[index]], before, gap: between(end, events.start[index]) };
}

function memoryTip(row, time) {
  const curve = memoryCurve(row.schedule, row.device);
  const level = levelAt(curve, time);
  return [
    make("strong", {}, named(row.label)),
    tipLine("at", seconds(time)),
    tipLine("alive", formatBytes(level)),
    tipLine("of the peak", formatShare(level, curve.peak)),
    tipLine("stays all step", formatBytes(row.schedule.memory.resident[row.device])),
  ];
}

// Between the bars of a row: how long the device or link idles here.
function idleTip(row, time) {
  const { spans } = row;
  const after = spans.firstAfter(time);
  const next = after < spans.order.length ? Math.max(time, spans.start[spans.order[after]]) : row.schedule.end;
  const before = after > 0 ? spans.reach[after - 1] : 0;
  if (time < 0 || time > row.schedule.end || between(before, next) <= 0) return null;
  return [make("strong", {}, named(row.label)), tipLine("idle for", seconds(next - before)), tipLine("from", seconds(before))];
}
