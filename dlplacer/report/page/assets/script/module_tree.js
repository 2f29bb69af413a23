// The module tree of the model, folded and unfolded: ops, time and devices of every module. A click highlights one.

const MOST_CHILDREN = 400;

function buildModules(schedule) {
  const { graph, ops } = schedule;
  const root = newModule("", "", schedule);
  const known = new Map([["", root]]);
  const nodeOf = (path) => {
    if (known.has(path)) return known.get(path);
    const cut = path.lastIndexOf(".");
    const parent = nodeOf(cut < 0 ? "" : path.slice(0, cut));
    const node = newModule(path.slice(cut + 1), path, schedule);
    node.parent = parent;
    parent.children.push(node);
    known.set(path, node);
    return node;
  };
  for (let event = 0; event < ops.count; event += 1) {
    const path = texts[graph.module[ops.op[event]]];
    const time = ops.end[event] - ops.start[event];
    for (let node = nodeOf(path); node; node = node.parent) {
      node.count += 1;
      node.time += time;
      node.devices[ops.device[event]] += time;
      if (time > 0) widen(node, PHASES[graph.phase[ops.op[event]]] || "forward", ops.start[event], ops.end[event]);
    }
  }
  // A module of a training step runs twice; its place is that of its forward ops.
  for (const node of known.values()) Object.assign(node, node.spans.forward || Object.values(node.spans)[0] || { begin: 0, end: 0 });
  for (const node of known.values()) node.children.sort((one, other) => one.begin - other.begin);
  return { root, known };
}

function widen(node, phase, begin, end) {
  const span = (node.spans[phase] ??= { begin, end });
  span.begin = Math.min(span.begin, begin);
  span.end = Math.max(span.end, end);
}

function newModule(name, path, schedule) {
  return { name, path, children: [], parent: null, count: 0, time: 0, spans: {}, begin: 0, end: 0, devices: new Float64Array(schedule.devices.name.length) };
}

function modulesOf(schedule) {
  schedule.modules ??= buildModules(schedule);
  return schedule.modules;
}

function lightModule(path) {
  if (state.lit?.module === path) return light(null);
  const inside = `${path}.`;
  const hits = graphs.map((graph) => {
    const wanted = new Set(texts.map((text, position) => (text === path || text.startsWith(inside) ? position : -1)));
    return Uint8Array.from(graph.module, (module) => wanted.has(module));
  });
  light({ label: path, module: path, has: (schedule, event) => hits[graphs.indexOf(schedule.graph)][schedule.ops.op[event]] === 1 });
  const node = modulesOf(shownSchedules()[0]).known.get(path);
  if (node && node.end > node.begin) showTimes(...widened([node.begin, node.end]));
  announce(`module ${path}: ${node ? `${node.count} ops, ${seconds(node.time)}` : "not in this plan"}`);
  return undefined;
}

function moduleTree() {
  const [schedule] = shownSchedules();
  const { root } = modulesOf(schedule);
  if (!root.children.length) return null;
  const open = new Set([""]);
  // A tree of one branch opens down to its first fork.
  for (let node = root; node.children.length === 1; [node] = node.children) open.add(node.children[0].path);
  const tree = make("div", { className: "tree", role: "tree", tabIndex: 0 });
  tree.setAttribute("aria-label", "Modules");
  let listed = [];
  let active = 0;
  const draw = () => {
    listed = [];
    const walk = (node, depth) => {
      for (const child of node.children.slice(0, MOST_CHILDREN)) {
        listed.push({ node: child, depth });
        if (open.has(child.path)) walk(child, depth + 1);
      }
      if (node.children.length > MOST_CHILDREN) listed.push({ note: `${node.children.length - MOST_CHILDREN} more: search finds them`, depth });
    };
    walk(root, 0);
    tree.replaceChildren(...listed.map((entry, position) => moduleRow(entry, position)));
  };
  const toggle = (path) => {
    if (!open.delete(path)) open.add(path);
    draw();
  };
  const moduleRow = ({ node, depth, note }, position) => {
    if (note) return make("div", { className: "module note", style: { paddingLeft: `${depth * 16 + 30}px` } }, note);
    const sign = node.children.length ? (open.has(node.path) ? "▾" : "▸") : "";
    const row = make(
      "div",
      { className: `module${state.lit?.module === node.path ? " chosen" : ""}${position === active ? " active" : ""}`, role: "treeitem", title: node.path, onclick: () => ((active = position), lightModule(node.path)) },
      make("span", { className: "label", style: { paddingLeft: `${depth * 16}px` } }, button(sign, "", (event) => (event.stopPropagation(), toggle(node.path)), { className: "fold", tabIndex: -1 }), named(node.name)),
      make("span", { className: "number" }, `${node.count} ops`),
      make("span", { className: "number" }, seconds(node.time)),
      make("span", { className: "number" }, formatShare(node.time, root.time)),
      shareBar(schedule, node, Math.max(...root.children.map((child) => child.time)) || 1),
    );
    row.setAttribute("aria-level", String(depth + 1));
    if (node.children.length) row.setAttribute("aria-expanded", String(open.has(node.path)));
    return row;
  };
  tree.addEventListener("keydown", (event) => {
    const { node } = listed[active] || {};
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in moves) active = Math.max(0, Math.min(listed.length - 1, active + moves[event.key]));
    else if (!node) return;
    else if (event.key === "ArrowRight") open.add(node.path);
    else if (event.key === "ArrowLeft") open.delete(node.path);
    else if (event.key === "Enter" || event.key === " ") lightModule(node.path);
    else return;
    event.preventDefault();
    draw();
    tree.children[active]?.scrollIntoView({ block: "nearest" });
  });
  on("light", () => tree.isConnected && draw());
  draw();
  return { element: tree };
}

// How long the module computes on which device, against the longest at the top of the tree.
function shareBar(schedule, node, whole) {
  const parts = [...node.devices].map((value, device) =>
    value > 0 ? make("i", { title: `${schedule.devices.name[device]}: ${seconds(value)}`, style: { width: `${(100 * value) / whole}%`, background: deviceColor(schedule, device) } }) : null,
  );
  return make("span", { className: "share" }, parts);
}
