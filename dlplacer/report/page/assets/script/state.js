// The reader's choices, and the listeners to their changes.

const state = {
  shown: data.shown || (schedules.length ? [0] : []),
  colorBy: "phase",
  critical: true,
  selected: null, // {schedule, type: "op" | "transfer", index}
  interval: null, // [begin, end]
  lit: null, // {label, has(graph, op)}: everything else is dimmed
  moment: null, // the time that the memory table shows
  folded: new Set(),
};

// Ways to colour ops: their names in `COLORINGS`, and the names that the reader sees.
const COLOR_NAMES = data.colorBy || [["phase", "phase"], ["module", "module"], ["kind", "kind"], ["device", "device"]];

const listeners = new Map();

function on(names, action) {
  for (const name of names.split(" ")) {
    if (!listeners.has(name)) listeners.set(name, []);
    listeners.get(name).push(action);
  }
}

function emit(name, detail) {
  for (const action of listeners.get(name) || []) action(detail);
}

const shownSchedules = () => state.shown.map((number) => schedules[number]);

function select(selected) {
  state.selected = selected;
  if (selected) announce(describeShort(selected));
  emit("select");
}

function chooseInterval(interval) {
  state.interval = interval && interval[1] > interval[0] ? interval : null;
  emit("interval");
}

function light(lit) {
  state.lit = lit;
  emit("light");
}

const eventsOf = (selected) => schedules[selected.schedule][selected.type === "op" ? "ops" : "transfers"];
const sameEvent = (one, other) => Boolean(one && other) && one.schedule === other.schedule && one.type === other.type && one.index === other.index;

function opName(schedule, event) {
  return schedule.graph.id[schedule.ops.op[event]];
}

function tensorName(schedule, transfer) {
  return texts[schedule.transfers.tensor[transfer]];
}

function describeShort({ schedule: number, type, index }) {
  const schedule = schedules[number];
  const events = schedule[type === "op" ? "ops" : "transfers"];
  const name = type === "op" ? opName(schedule, index) : `transfer of ${tensorName(schedule, index)}`;
  return `${name}, starts at ${seconds(events.start[index])}, takes ${seconds(events.end[index] - events.start[index])}`;
}

// The same op in the other schedules that are shown.
function twins({ schedule, type, index }) {
  if (type !== "op") return [];
  const entry = { schedule: schedules[schedule], event: index };
  return shownSchedules()
    .filter((other) => other.number !== schedule)
    .map((other) => ({ schedule: other.number, type: "op", index: eventIn(other, entry) }))
    .filter((twin) => twin.index >= 0);
}

function nameIndex(graph) {
  graph.byName ??= new Map(graph.id.map((name, op) => [name, op]));
  return graph.byName;
}

// The event of an op in another schedule, or −1.
function eventIn(other, { schedule, event }) {
  if (other === schedule) return event;
  const op = other.graph === schedule.graph ? schedule.ops.op[event] : nameIndex(other.graph).get(opName(schedule, event));
  return op === undefined ? -1 : other.eventOf[op];
}
