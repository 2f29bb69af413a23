// The tensors that make up the memory of a device at a time, initially at its peak.

const looked = { schedule: null, device: 0, time: 0 };

function lookAtMemory(schedule, device, time) {
  Object.assign(looked, { schedule, device, time });
  state.moment = time;
  emit("moment");
  openTab("Memory");
}

function alivePanel() {
  const owners = shownSchedules().filter((schedule) => schedule.memory.device);
  if (!owners.length) return null;
  if (!owners.includes(looked.schedule)) Object.assign(looked, { schedule: owners[0], device: 0, time: memoryCurve(owners[0], 0).peakTime });
  const panel = make("div", { className: "panel" });
  const chooser = make("div", { className: "bar" });
  const holder = make("div", { className: "holder" });
  const draw = () => {
    chooser.replaceChildren(...owners.flatMap((schedule) => schedule.devices.name.map((name, device) => deviceButton(schedule, name, device))), make("span", { className: "status" }, aliveNote()));
    holder.replaceChildren(aliveTable().element);
  };
  panel.append(chooser, holder);
  on("moment", () => panel.isConnected && draw());
  draw();
  return { element: panel, show: draw };
}

function deviceButton(schedule, name, device) {
  const chosen = looked.schedule === schedule && looked.device === device;
  const curve = memoryCurve(schedule, device);
  return button(named(`${name}${suffix(schedule)}`), `Peak ${formatBytes(curve.peak)} at ${seconds(curve.peakTime)}`, () => lookAtMemory(schedule, device, curve.peakTime), { "aria-pressed": String(chosen) });
}

function aliveNote() {
  const curve = memoryCurve(looked.schedule, looked.device);
  const level = levelAt(curve, looked.time);
  const peak = looked.time === curve.peakTime ? "the peak" : `peak ${formatBytes(curve.peak)} at ${seconds(curve.peakTime)}`;
  return `at ${seconds(looked.time)}: ${formatBytes(level)}, of which ${formatBytes(looked.schedule.memory.resident[looked.device])} stay all step; ${peak}`;
}

function aliveTable() {
  const { schedule, device, time: moment } = looked;
  const { memory, graph, ops } = schedule;
  const passing = aliveAt(schedule, device, moment).map((live) => ({
    event: memory.op[live],
    what: MEMORY_WHAT[memory.what[live]],
    bytes: memory.bytes[live],
    begin: memory.start[live],
    end: memory.start[live] + memory.time[live],
  }));
  const staying = [];
  for (let event = 0; event < ops.count; event += 1) {
    const bytes = graph.keptBytes[ops.op[event]];
    if (ops.device[event] === device && bytes) staying.push({ event, what: "stays: weight, gradient, state", bytes, begin: 0, end: schedule.end });
  }
  const all = [...passing, ...staying];
  const whole = all.reduce((sum, { bytes }) => sum + bytes, 0);
  return new VirtualTable({
    label: "Alive tensors",
    count: all.length,
    sort: "bytes",
    descending: true,
    columns: [
      { name: "made by", value: (row) => opName(schedule, all[row].event), width: 240 },
      { name: "what", value: (row) => all[row].what, width: 200 },
      { name: "bytes", unit: "bytes", value: (row) => all[row].bytes },
      { name: "share", unit: "share", value: (row) => all[row].bytes / (whole || 1) },
      time("from", (row) => all[row].begin),
      time("until", (row) => all[row].end),
      { name: "shape", value: (row) => texts[graph.shapes[ops.op[all[row].event]]], width: 150 },
      { name: "module", value: (row) => texts[graph.module[ops.op[all[row].event]]], width: 240 },
    ],
    choose: (row) => choose({ schedule: schedule.number, type: "op", index: all[row].event }),
    isChosen: (row) => sameEvent(state.selected, { schedule: schedule.number, type: "op", index: all[row].event }),
  });
}
