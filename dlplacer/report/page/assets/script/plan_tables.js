// The tables of a schedule: ops, transfers, devices, links; and tables that the page brings ready-made.

const time = (name, value, more = {}) => ({ name, value, unit: "time", width: Math.max(92, name.length * 7), ...more });
const suffix = (schedule) => (state.shown.length > 1 ? ` ${schedule.name}` : "");

// All ops of the first schedule, and after them the ops that only another one has, such as parts of split ops.
function opEntries() {
  const [first, ...others] = shownSchedules();
  const entries = Array.from({ length: first.ops.count }, (_, event) => ({ schedule: first, event }));
  for (const other of others.filter(({ graph }) => graph !== first.graph)) {
    for (let event = 0; event < other.ops.count; event += 1) {
      if (!nameIndex(first.graph).has(opName(other, event))) entries.push({ schedule: other, event });
    }
  }
  return entries;
}

// The device and time of an op in a schedule; empty if the op is not in it.
function placeColumns(schedule, entries) {
  const read = (value) => (row) => {
    const event = eventIn(schedule, entries[row]);
    return event < 0 ? null : value(schedule.ops, event);
  };
  return [
    { name: `device${suffix(schedule)}`, value: (row) => read((ops, event) => schedule.devices.name[ops.device[event]])(row) ?? "–", width: 110 },
    time(`start${suffix(schedule)}`, read((ops, event) => ops.start[event])),
    time(`time${suffix(schedule)}`, read((ops, event) => ops.end[event] - ops.start[event])),
  ];
}

const movedText = (before, after) => (before === after ? "" : before === "–" || after === "–" ? "absent" : "yes");

function opTable() {
  const entries = opEntries();
  const [first, ...others] = shownSchedules();
  const placed = shownSchedules().map((schedule) => placeColumns(schedule, entries));
  const differences = others.map((_, number) => ({
    name: "difference",
    unit: "signed",
    value: (row) => {
      const [before, after] = [placed[0], placed[number + 1]].map((columns) => columns[2].value(row));
      return before === null || after === null ? null : after - before;
    },
  }));
  const moved = (row) => movedText(...placed.map(([device]) => device.value(row)));
  const of = (value) => (row) => value(entries[row].schedule, entries[row].event);
  const fixed = (value) => of((schedule, event) => value(schedule.graph, schedule.ops.op[event]));
  const selected = (row) => ({ schedule: entries[row].schedule.number, type: "op", index: entries[row].event });
  return new VirtualTable({
    label: "Ops",
    count: entries.length,
    sort: `time${suffix(first)}`,
    descending: true,
    columns: [
      { name: "op", value: of(opName), width: 240, color: of(opColor) },
      { name: "kind", value: fixed((graph, op) => texts[graph.kind[op]]), width: 190 },
      ...placed.flat(),
      ...(others.length && entries.some((_, row) => moved(row)) ? [{ name: "moved", value: moved, width: 64 }] : []),
      ...differences,
      ...(first.ops.slack.length ? [time("slack", (row) => (entries[row].schedule === first ? first.ops.slack[entries[row].event] : null))] : []),
      { name: "output", unit: "bytes", value: fixed((graph, op) => graph.outputBytes[op]) },
      { name: "phase", value: fixed((graph, op) => PHASES[graph.phase[op]]), width: 84 },
      { name: "module", value: fixed((graph, op) => texts[graph.module[op]]), width: 240 },
      { name: "shape", value: fixed((graph, op) => texts[graph.shapes[op]]), width: 150 },
      { name: "dtype", value: fixed((graph, op) => texts[graph.dtype[op]]), width: 80 },
      ...(graphs.some((graph) => graph.flops.some(Boolean)) ? [{ name: "FLOP", unit: "count", value: fixed((graph, op) => graph.flops[op]) }] : []),
    ],
    choose: (row) => choose(selected(row)),
    isChosen: (row) => sameEvent(state.selected, selected(row)),
  });
}

function transferTable() {
  const all = shownSchedules().flatMap((schedule) => Array.from({ length: schedule.transfers.count }, (_, transfer) => ({ schedule, transfer })));
  if (!all.length) return null;
  const column = (name, value, more) => ({ name, value: (row) => value(all[row].schedule, all[row].transfer), ...more });
  const timed = (name, value) => column(name, value, { unit: "time" });
  const chosen = (row) => ({ schedule: all[row].schedule.number, type: "transfer", index: all[row].transfer });
  return new VirtualTable({
    label: "Transfers",
    count: all.length,
    sort: "time",
    descending: true,
    columns: [
      column("tensor", tensorName, { width: 240 }),
      ...(state.shown.length > 1 ? [column("plan", (schedule) => schedule.name, { width: 90 })] : []),
      column("from", (schedule, transfer) => schedule.devices.name[schedule.ops.device[schedule.transfers.source[transfer]]], { width: 90 }),
      column("to", (schedule, transfer) => schedule.devices.name[schedule.transfers.target[transfer]], { width: 90 }),
      column("bytes", (schedule, transfer) => schedule.transfers.bytes[transfer], { unit: "bytes" }),
      timed("start", (schedule, transfer) => schedule.transfers.start[transfer]),
      timed("time", (schedule, transfer) => schedule.transfers.end[transfer] - schedule.transfers.start[transfer]),
      timed("queued", (schedule, transfer) => between(schedule.ops.end[schedule.transfers.source[transfer]], schedule.transfers.start[transfer])),
      ...(all[0].schedule.transfers.slack.length ? [timed("slack", (schedule, transfer) => schedule.transfers.slack[transfer])] : []),
      column("made by", (schedule, transfer) => opName(schedule, schedule.transfers.source[transfer]), { width: 220 }),
      column("route", (schedule, transfer) => texts[schedule.transfers.route[transfer]], { width: 220 }),
    ],
    choose: (row) => choose(chosen(row)),
    isChosen: (row) => sameEvent(state.selected, chosen(row)),
  });
}

function deviceTable() {
  const all = shownSchedules().flatMap((schedule) => schedule.devices.name.map((_, device) => ({ schedule, device, count: 0, sent: 0, received: 0, critical: 0 })));
  const byDevice = new Map(all.map((entry) => [`${entry.schedule.number} ${entry.device}`, entry]));
  for (const schedule of shownSchedules()) {
    const entry = (device) => byDevice.get(`${schedule.number} ${device}`);
    schedule.ops.device.forEach((device, event) => {
      entry(device).count += 1;
      if (schedule.ops.critical[event]) entry(device).critical += schedule.ops.end[event] - schedule.ops.start[event];
    });
    schedule.transfers.bytes.forEach((bytes, transfer) => {
      entry(schedule.ops.device[schedule.transfers.source[transfer]]).sent += bytes;
      entry(schedule.transfers.target[transfer]).received += bytes;
    });
    const busy = computeTotals(schedule, 0, schedule.end, () => 0).devices;
    busy.forEach((value, device) => {
      entry(device).busy = value;
    });
  }
  const of = (key) => (row) => all[row][key];
  return new VirtualTable({
    label: "Devices",
    count: all.length,
    columns: [
      { name: "device", value: (row) => all[row].schedule.devices.name[all[row].device], width: 140, color: (row) => deviceColor(all[row].schedule, all[row].device) },
      ...(state.shown.length > 1 ? [{ name: "plan", value: (row) => all[row].schedule.name, width: 90 }] : []),
      { name: "type", value: (row) => all[row].schedule.devices.type[all[row].device], width: 110 },
      { name: "ops", unit: "number", value: of("count") },
      time("busy", of("busy")),
      { name: "of the step", unit: "share", value: (row) => all[row].busy / (all[row].schedule.end || 1) },
      time("idle", (row) => Math.max(0, all[row].schedule.end - all[row].busy)),
      time("critical", of("critical")),
      { name: "sent", unit: "bytes", value: of("sent") },
      { name: "received", unit: "bytes", value: of("received") },
      { name: "peak", unit: "bytes", value: (row) => all[row].schedule.devices.peak[all[row].device] },
      { name: "capacity", unit: "bytes", value: (row) => all[row].schedule.devices.capacity[all[row].device], missing: "unlimited" },
    ],
    choose: (row) => {
      const { schedule, device } = all[row];
      if (schedule.memory.device) lookAtMemory(schedule, device, memoryCurve(schedule, device).peakTime);
    },
  });
}

function linkTable() {
  const all = shownSchedules().flatMap((schedule) => transferTotals(schedule, 0, schedule.end).map((total, link) => ({ schedule, link, ...total })));
  if (!all.length) return null;
  return new VirtualTable({
    label: "Links",
    count: all.length,
    sort: "in use",
    descending: true,
    columns: [
      { name: "link", value: (row) => linkName(all[row].schedule, all[row].link), width: 220 },
      ...(state.shown.length > 1 ? [{ name: "plan", value: (row) => all[row].schedule.name, width: 90 }] : []),
      { name: "transfers", unit: "number", value: (row) => all[row].count },
      { name: "bytes", unit: "bytes", value: (row) => all[row].bytes },
      time("in use", (row) => all[row].time),
      { name: "of the step", unit: "share", value: (row) => all[row].time / (all[row].schedule.end || 1) },
      { name: "rate", unit: "rate", value: (row) => all[row].schedule.links.bytesPerS[all[row].link] },
    ],
  });
}

// {title, columns: [{name, unit, values}], schedules?: [row → schedule number]}
function readyTable({ title, columns, schedules: owners, sort }) {
  return new VirtualTable({
    label: title,
    count: columns[0].values.length,
    sort: sort || undefined,
    columns: columns.map(({ name, unit, values, width }) => ({ name, unit, width, value: (row) => (unit ? values[row] : String(values[row] ?? "")) })),
    choose: owners && ((row) => owners[row] !== null && show([state.shown[0], owners[row]])),
    isChosen: owners && ((row) => state.shown.includes(owners[row])),
  });
}

function choose(selected) {
  select(selected);
  revealEvent(selected);
}
