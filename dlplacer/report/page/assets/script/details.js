// The side panel: details of the selected op or transfer, or of the interval.

const MOST_LISTED = 12;

function detailHead(what, name) {
  return make("div", { className: "head" }, make("span", { className: "what" }, what), make("h2", {}, named(name)));
}

const facts = (pairs, className = "") =>
  make("table", { className: `figures ${className}` }, make("tbody", {}, pairs.filter(([, value]) => value !== null && value !== "").map(([name, ...values]) => make("tr", {}, make("th", { scope: "row" }, named(name)), values.map((value) => make("td", {}, value instanceof Node ? value : named(value)))))));

function eventLink(selected, text) {
  return button(named(text), "Go there", () => choose(selected), { className: "link" });
}

function drawDetails() {
  const box = byId("details");
  if (state.selected) box.replaceChildren(...(state.selected.type === "op" ? opDetails(state.selected) : transferDetails(state.selected)));
  else if (state.interval) box.replaceChildren(...intervalDetails());
  else if (state.lit) box.replaceChildren(...litDetails());
  else box.replaceChildren();
  document.body.classList.toggle("detailed", box.childElementCount > 0);
}

function litDetails() {
  const lines = [detailHead("Shown alone", state.lit.label)];
  for (const schedule of shownSchedules()) {
    const { devices } = computeTotals(schedule, 0, schedule.end, (event) => (state.lit.has(schedule, event) ? 1 : 0));
    const { groups } = computeTotals(schedule, 0, schedule.end, (event) => (state.lit.has(schedule, event) ? 1 : 0));
    const own = groups.get(1) || { time: 0, count: 0, devices: new Float64Array(devices.length) };
    const whole = devices.reduce((sum, value) => sum + value, 0);
    if (state.shown.length > 1) lines.push(make("h3", {}, named(schedule.name)));
    lines.push(facts([["time", `${seconds(own.time)}, ${formatShare(own.time, whole)}`], ["timed ops", String(own.count)], ...schedule.devices.name.map((name, device) => [name, own.devices[device] ? seconds(own.devices[device]) : ""])]));
  }
  lines.push(make("p", { className: "actions" }, button("Show all", "Esc", () => light(null))));
  return lines;
}

function opDetails(selected) {
  const schedule = schedules[selected.schedule];
  const { graph, ops } = schedule;
  const { index } = selected;
  const op = ops.op[index];
  const bytes = (value) => (value ? formatBytes(value) : "");
  return [
    detailHead(texts[graph.kind[op]], graph.id[op]),
    modulePath(texts[graph.module[op]]),
    timesOf([selected, ...twins(selected)]),
    facts([
      ["phase", PHASES[graph.phase[op]]],
      ["output", texts[graph.shapes[op]]],
      ["dtype", texts[graph.dtype[op]]],
      ["output bytes", bytes(graph.outputBytes[op])],
      ["weight, gradient, state", bytes(graph.keptBytes[op])],
      ["workspace", bytes(graph.workspaceBytes[op])],
      ["work", graph.flops[op] ? `${formatCount(graph.flops[op])}FLOP` : ""],
    ]),
    ...waitDetails(schedule, ops, index),
    ...neighbours("Reads", schedule, producersOf(schedule, index)),
    ...neighbours("Read by", schedule, consumersOf(schedule, index)),
    detailActions(selected),
  ];
}

function detailActions(selected) {
  return make("p", { className: "actions" }, button("Zoom to it", "Enter", () => showEvent(selected)), button("Clear", "Esc", () => select(null)));
}

// Every part of the path highlights the module that it names.
function modulePath(path) {
  if (!path) return "";
  const parts = path.split(".");
  const links = parts.flatMap((part, depth) => [depth ? "." : "", button(named(part), "Show this module alone", () => lightModule(parts.slice(0, depth + 1).join(".")), { className: "link" })]);
  return make("p", { className: "path" }, links);
}

// Device, start, time and slack; side by side if the op runs in two schedules.
function timesOf(all) {
  const of = (value) => all.map((each) => value(schedules[each.schedule], eventsOf(each), each.index));
  const lines = [
    ["device", ...of((schedule, events, index) => schedule.devices.name[events.device[index]])],
    ["start", ...of((schedule, events, index) => seconds(events.start[index]))],
    ["time", ...of((schedule, events, index) => seconds(events.end[index] - events.start[index]))],
    ["of the step", ...of((schedule, events, index) => formatShare(events.end[index] - events.start[index], schedule.end))],
    ["end", ...of((schedule, events, index) => seconds(events.end[index]))],
    ["slack", ...of((schedule, events, index) => (events.slack.length ? (events.critical[index] ? "0, critical path" : seconds(events.slack[index])) : "–"))],
  ];
  const table = facts(lines);
  if (state.shown.length > 1) {
    table.prepend(make("thead", {}, make("tr", {}, make("th"), all.map((each) => make("th", {}, named(schedules[each.schedule].name))))));
  }
  return table;
}

function waitDetails(schedule, events, index) {
  const waited = waitedFor(schedule, events, index);
  if (!waited) return [];
  const name = waited.before.type === "op" ? opName(schedule, waited.before.index) : tensorName(schedule, waited.before.index);
  const gap = waited.gap > 0 ? `, then ${seconds(waited.gap)} more` : "";
  return [make("h4", {}, "Waited for"), make("p", { className: "waited" }, `${waited.text}${gap}: `, eventLink(waited.before, name))];
}

function neighbours(title, schedule, all) {
  if (!all.length) return [];
  const items = all.slice(0, MOST_LISTED).map(({ event, bytes, via, away }) => {
    const device = schedule.devices.name[schedule.ops.device[event]];
    const sent = via >= 0 ? eventLink({ schedule: schedule.number, type: "transfer", index: via }, `via ${seconds(schedule.transfers.end[via] - schedule.transfers.start[via])}`) : null;
    return make("li", {}, eventLink({ schedule: schedule.number, type: "op", index: event }, opName(schedule, event)), make("span", { className: "muted" }, ` ${formatBytes(bytes)}`, away ? [" · ", named(device), sent ? " · " : "", sent] : ""));
  });
  if (all.length > MOST_LISTED) items.push(make("li", { className: "muted" }, `${all.length - MOST_LISTED} more`));
  return [make("h4", {}, `${title} ${all.length}`), make("ul", {}, items)];
}

function transferDetails(selected) {
  const schedule = schedules[selected.schedule];
  const { transfers } = schedule;
  const { index } = selected;
  const source = transfers.source[index];
  const readers = readersOf(schedule, index);
  const time = (transfers.end[index] - transfers.start[index]) * data.unitS;
  return [
    detailHead("transfer", tensorName(schedule, index)),
    facts([
      ["route", texts[transfers.route[index]]],
      ["bytes", formatBytes(transfers.bytes[index])],
      ["start", seconds(transfers.start[index])],
      ["time", formatSeconds(time)],
      ["rate", time ? formatRate(transfers.bytes[index] / time) : ""],
      ["slack", transfers.critical[index] ? "0, critical path" : transfers.slack.length ? seconds(transfers.slack[index]) : ""],
      ["made by", eventLink({ schedule: selected.schedule, type: "op", index: source }, opName(schedule, source))],
    ]),
    ...waitDetails(schedule, transfers, index),
    ...(readers.length ? [make("h4", {}, `Read by ${readers.length}`), make("ul", {}, readers.slice(0, MOST_LISTED).map((event) => make("li", {}, eventLink({ schedule: selected.schedule, type: "op", index: event }, opName(schedule, event)), make("span", { className: "muted" }, ` ${seconds(between(transfers.end[index], schedule.ops.start[event]))} after it arrives`))))] : []),
    detailActions(selected),
  ];
}

on("select interval light shown", drawDetails);
