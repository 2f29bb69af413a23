// Which rows the timeline has, and where they are: devices, then link directions, then memory, each part foldable.

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
  part("Links", "links", shownSchedules().flatMap((schedule) =>
    schedule.links.from.map((from, link) => ({
      ...common(schedule, "link", HEIGHT.link),
      link,
      label: `${from} → ${schedule.links.to[link]}`,
      spans: schedule.linkSpans[link],
    })),
  ));
  part("Memory", "memory", deviceNames().flatMap((name) => onDevice(name, "memory", HEIGHT.memory)));
  let top = 0;
  for (const row of found) {
    row.top = top;
    top += row.height;
  }
  rows = found;
  rowsHeight = top + 6;
  emit("rows");
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

// With several schedules a row says whose it is; the first of a device has its name.
function common(schedule, type, height) {
  return { type, schedule, height, tag: state.shown.length > 1 ? schedule.name : "" };
}

// The rows on which an event is drawn.
function rowsOf({ schedule: number, type, index }) {
  const schedule = schedules[number];
  if (type === "op") return rows.filter((row) => row.type === "device" && row.schedule === schedule && row.device === schedule.ops.device[index]);
  schedule.usesOf ??= groupBy(schedule.uses.count, (use) => schedule.uses.transfer[use]);
  const links = new Set((schedule.usesOf.get(index) || []).map((use) => schedule.uses.link[use]));
  return rows.filter((row) => row.type === "link" && row.schedule === schedule && links.has(row.link));
}

function fold(id) {
  if (!state.folded.delete(id)) state.folded.add(id);
  layOut();
}

on("shown", layOut);
