// The rows of the timeline and their places: devices, then link directions, then memory, each part foldable.

const HEIGHT = { head: 22, device: 30, paired: 24, link: 15, memory: 44 };
let rows = [];
let rowsHeight = 0;

const deviceNames = () => [...new Set(shownSchedules().flatMap((schedule) => schedule.devices.name))];

function layOut() {
  const found = [];
  const several = state.shown.length > 1;
  const part = (title, id, body) => {
    if (!body.length) return;
    found.push({ type: "head", id, title, height: HEIGHT.head, count: body.length });
    if (!state.folded.has(id)) found.push(...body);
  };
  part("Devices", "devices", deviceNames().flatMap((name) => onDevice(name, "device", several ? HEIGHT.paired : HEIGHT.device)));
  part("Links", "links", linkNames().flatMap(onLink));
  part("Memory", "memory", deviceNames().flatMap((name) => onDevice(name, "memory", HEIGHT.memory)));
  let top = 0;
  const taller = stretch(found);
  for (const row of found) {
    row.height += taller[row.type] || 0;
    row.top = top;
    top += row.height;
  }
  rows = found;
  rowsHeight = top + 6;
  emit("rows");
}

// If rows leave space below, devices and memory take it, up to a height at which they still look like rows.
function stretch(found) {
  const room = timeline.height - 8 - found.reduce((sum, row) => sum + row.height, 0);
  const own = found.filter((row) => row.type === "device" || row.type === "memory");
  if (room <= 0 || !own.length) return {};
  const each = Math.floor(room / own.length);
  return { device: Math.min(each, 16), memory: Math.min(each, 46) };
}

function onDevice(name, type, height) {
  return shownSchedules()
    .map((schedule) => ({ schedule, device: schedule.devices.name.indexOf(name) }))
    .filter(({ schedule, device }) => device >= 0 && (type === "device" || schedule.memory.device))
    .map(({ schedule, device }) => ({
      ...common(schedule, type, height),
      device,
      label: name,
      spans: type === "device" ? schedule.deviceSpans[device] : null,
    }));
}

const linkName = (schedule, link) => `${schedule.links.from[link]} → ${schedule.links.to[link]}`;
const linkNames = () => [...new Set(shownSchedules().flatMap((schedule) => schedule.links.from.map((_, link) => linkName(schedule, link))))];

function linkIndex(schedule) {
  schedule.linkOf ??= new Map(schedule.links.from.map((_, link) => [linkName(schedule, link), link]));
  return schedule.linkOf;
}

function onLink(name) {
  return shownSchedules()
    .map((schedule) => ({ schedule, link: linkIndex(schedule).get(name) }))
    .filter(({ link }) => link !== undefined)
    .map(({ schedule, link }) => ({ ...common(schedule, "link", HEIGHT.link), link, label: name, spans: schedule.linkSpans[link] }));
}

// With several schedules a row names its schedule; the first row of a device names the device.
function common(schedule, type, height) {
  return { type, schedule, height, tag: state.shown.length > 1 ? schedule.name : "" };
}

// The rows on which an event is drawn.
function rowsOf({ schedule: number, type, index }) {
  const schedule = schedules[number];
  if (type === "op") return rows.filter((row) => row.type === "device" && row.schedule === schedule && row.device === schedule.ops.device[index]);
  const links = new Set(usesOf(schedule, index).map((use) => schedule.uses.link[use]));
  return rows.filter((row) => row.type === "link" && row.schedule === schedule && links.has(row.link));
}

// The uses of links by a transfer.
function usesOf(schedule, transfer) {
  schedule.usesByTransfer ??= groupBy(schedule.uses.count, (use) => schedule.uses.transfer[use]);
  return schedule.usesByTransfer.get(transfer) || [];
}

function fold(id) {
  if (!state.folded.delete(id)) state.folded.add(id);
  layOut();
}

on("shown", layOut);
