// The page's data: columns become typed arrays, and data that several views look up is indexed once.

const data = JSON.parse(byId("data").textContent);
const texts = data.texts || [];
const PHASES = ["", "forward", "backward", "optimizer"];
const WAITED_FOR = [
  "an input made on this device",
  "a tensor that arrives",
  "its device",
  "the loss: the host's barrier",
  "its producer",
  "the segment before",
  "its link",
];

// Events of one row in order of their start. `reach` is the latest end so far: it allows bisection for the first visible
// event even if events overlap.
class Spans {
  constructor(order, start, end) {
    this.order = order.sort((one, other) => start[one] - start[other] || one - other);
    this.start = start;
    this.end = end;
    this.reach = new Float64Array(order.length);
    let reach = -Infinity;
    this.order.forEach((event, position) => {
      reach = Math.max(reach, end[event]);
      this.reach[position] = reach;
    });
  }

  firstAfter(time) {
    let low = 0;
    let high = this.reach.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.reach[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

function decodeGraph(raw) {
  const [sources, targets, bytes] = raw.edges.map((column) => Float64Array.from(column));
  return { ...raw, count: raw.id.length, sources, targets, bytes, into: adjacency(targets, raw.id.length), from: adjacency(sources, raw.id.length) };
}

// [op] → the edges at it, as slices of one array.
function adjacency(ends, count) {
  const first = new Int32Array(count + 1);
  for (const op of ends) first[op + 1] += 1;
  for (let op = 0; op < count; op += 1) first[op + 1] += first[op];
  const next = first.slice(0, count);
  const edges = new Int32Array(ends.length);
  ends.forEach((op, edge) => {
    edges[next[op]++] = edge;
  });
  return (op) => edges.subarray(first[op], first[op + 1]);
}

function decodeEvents(raw) {
  const start = Float64Array.from(raw.start);
  const end = Float64Array.from(raw.time, (time, event) => start[event] + time);
  const critical = new Uint8Array(start.length);
  for (const event of raw.critical) critical[event] = 1;
  return { ...raw, count: start.length, start, end, critical };
}

function decodeSchedule(raw, number) {
  const graph = graphs[raw.graph];
  const ops = decodeEvents(raw.ops);
  const transfers = decodeEvents(raw.transfers);
  transfers.onPath = raw.transfers.critical.map((transfer, position) => ({ transfer, from: raw.transfers.criticalFrom[position], until: raw.transfers.criticalUntil[position] }));
  const eventOf = new Int32Array(graph.count).fill(-1);
  ops.op.forEach((op, event) => {
    eventOf[op] = event;
  });
  const timed = raw.devices.name.map(() => []);
  ops.device.forEach((device, event) => {
    if (ops.end[event] > ops.start[event]) timed[device].push(event);
  });
  const uses = decodeEvents({ ...raw.links.uses, critical: [] });
  const onLink = raw.links.from.map(() => []);
  uses.link.forEach((link, use) => onLink[link].push(use));
  return {
    ...raw,
    number,
    graph,
    ops,
    transfers,
    uses,
    eventOf,
    deviceSpans: timed.map((events) => new Spans(events, ops.start, ops.end)),
    linkSpans: onLink.map((events) => new Spans(events, uses.start, uses.end)),
    via: new Map(raw.transfers.serves[0].map((edge, position) => [edge, raw.transfers.serves[1][position]])),
  };
}

function groupBy(count, key) {
  const groups = new Map();
  for (let position = 0; position < count; position += 1) {
    const name = key(position);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(position);
  }
  return groups;
}

const graphs = (data.graphs || []).map(decodeGraph);
const schedules = (data.schedules || []).map(decodeSchedule);
