// Colours by phase, module, kind or device. Eight colours are distinct for colour-blind readers too, which is tested;
// longer lists run through viridis, light and dark in turn, because their order matters.

const DISTINCT = ["#0072b2", "#e69f00", "#57e6c9", "#804066", "#95b5e6", "#586642", "#ddcc77", "#99863a"];
const PHASE_COLORS = ["#8a9099", "#3f7fbf", "#e89b3c", "#365938"];
const OTHER = "#8a9099";
const VIRIDIS = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37]];

function viridis(share) {
  const place = share * (VIRIDIS.length - 1);
  const at = Math.min(VIRIDIS.length - 2, Math.floor(place));
  return VIRIDIS[at].map((low, channel) => Math.round(low + (place - at) * (VIRIDIS[at + 1][channel] - low)));
}

// Neighbours must differ even among dozens: every other one is lighter.
function sequence(count) {
  return Array.from({ length: count }, (_, position) => {
    const channels = viridis(0.16 + (0.82 * position) / Math.max(1, count - 1));
    const lift = position % 2 ? 0.24 : 0;
    return `rgb(${channels.map((channel) => Math.round(channel + lift * (255 - channel))).join(",")})`;
  });
}

const channelsOf = (color) => (color.startsWith("#") ? [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)) : color.match(/\d+/g).map(Number));

const inks = new Map();
function inkOn(color) {
  if (!inks.has(color)) {
    const [red, green, blue] = channelsOf(color);
    inks.set(color, 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#14171a" : "#ffffff");
  }
  return inks.get(color);
}

// Thin lines on a dark surface need more light than bars do.
function lineColor(color) {
  if (!ink.dark) return color;
  return `rgb(${channelsOf(color).map((channel) => Math.round(channel + 0.35 * (255 - channel))).join(",")})`;
}

const lastPart = (name) => name.split(".").filter(Boolean).pop() || name;

// The category of every op for one way to colour: labels, colours, and a function from (schedule, event) to category.
const COLORINGS = {
  phase() {
    const used = new Set(graphs.flatMap((graph) => [...new Set(graph.phase)]));
    const label = (phase) => PHASES[phase] || (used.size > 1 ? "no phase" : "op");
    const kept = PHASES.map((_, phase) => phase).filter((phase) => used.has(phase));
    return byColumn("phase", kept, kept.map(label), kept.map((phase) => PHASE_COLORS[phase]));
  },
  kind() {
    const longest = ranked("kind");
    const named = longest.slice(0, DISTINCT.length);
    return byColumn("kind", named, named.map((kind) => lastPart(texts[kind])), DISTINCT, longest.length > named.length);
  },
  module() {
    const blocks = [...new Set(graphs.flatMap((graph) => graph.block))].filter((block) => texts[block]);
    const first = new Map();
    schedules[0].ops.op.forEach((op, event) => {
      const block = schedules[0].graph.block[op];
      const here = schedules[0].ops.end[event] > schedules[0].ops.start[event] ? schedules[0].ops.start[event] : Infinity;
      first.set(block, Math.min(first.get(block) ?? Infinity, here));
    });
    blocks.sort((one, other) => (first.get(one) ?? Infinity) - (first.get(other) ?? Infinity));
    const colors = blocks.length <= DISTINCT.length ? DISTINCT : sequence(blocks.length);
    return byColumn("block", blocks, blocks.map((block) => texts[block]), colors, graphs.some((graph) => graph.block.some((block) => !texts[block])), "no module");
  },
  device() {
    const names = [...new Set(schedules.flatMap((schedule) => schedule.devices.name))];
    const colors = names.length <= DISTINCT.length ? DISTINCT : sequence(names.length);
    const number = schedules.map((schedule) => schedule.devices.name.map((name) => names.indexOf(name)));
    return { labels: names, colors, of: (schedule, event) => number[schedule.number][schedule.ops.device[event]] };
  },
};

function ranked(column) {
  const total = new Map();
  for (const schedule of schedules.slice(0, 2)) {
    schedule.ops.op.forEach((op, event) => {
      const key = schedule.graph[column][op];
      total.set(key, (total.get(key) || 0) + schedule.ops.end[event] - schedule.ops.start[event]);
    });
  }
  return [...total.keys()].filter((key) => total.get(key) > 0).sort((one, other) => total.get(other) - total.get(one));
}

function byColumn(column, keys, labels, colors, rest = false, restLabel = "other") {
  const number = new Map(keys.map((key, position) => [key, position]));
  return {
    labels: rest ? [...labels, restLabel] : labels,
    colors: rest ? [...colors.slice(0, keys.length), OTHER] : colors,
    of: (schedule, event) => number.get(schedule.graph[column][schedule.ops.op[event]]) ?? keys.length,
  };
}

const colorings = new Map();
function coloring() {
  if (!colorings.has(state.colorBy)) {
    const found = COLORINGS[state.colorBy]();
    found.category = schedules.map((schedule) => Uint16Array.from({ length: schedule.ops.count }, (_, event) => found.of(schedule, event)));
    while (found.colors.length <= found.labels.length) found.colors = [...found.colors, OTHER];
    colorings.set(state.colorBy, found);
  }
  return colorings.get(state.colorBy);
}

const opColor = (schedule, event) => coloring().colors[coloring().category[schedule.number][event]];

let deviceColorings = null;
function deviceColor(schedule, device) {
  deviceColorings ??= COLORINGS.device();
  return deviceColorings.colors[deviceColorings.labels.indexOf(schedule.devices.name[device])];
}
