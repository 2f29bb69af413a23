// The keyboard: W, A, S, D as in Perfetto, arrows from op to op, and a key for the action of each button.

const held = new Set();
const HELD = { w: () => zoomHeld(0.96), s: () => zoomHeld(1 / 0.96), a: () => panBy(-0.025), d: () => panBy(0.025) };
const HELP = [
  ["W, S or wheel", "zoom in and out"],
  ["A, D or drag", "move; over the names the wheel scrolls the rows"],
  ["drag on the ruler, Shift + drag", "select an interval: totals per kind and device"],
  ["← →", "previous and next op on the row"],
  ["↑ ↓", "the op at the same time one row up or down"],
  ["Enter, double click", "zoom to the selected op"],
  ["F", "zoom to the interval, or to the selected op"],
  ["0", "show the whole step"],
  ["/", "search ops, modules and tensors"],
  ["C", "critical path on and off"],
  ["1 2 3 4", `colours by ${COLOR_NAMES.map(([, name]) => name).join(", ")}`],
  ["T", "light or dark"],
  ["Esc", "clear what is selected"],
];

function listenToKeys() {
  document.addEventListener("keydown", keyDown);
  document.addEventListener("keyup", (event) => held.delete(event.key.toLowerCase()));
  addEventListener("blur", () => held.clear());
}

const zoomHeld = (factor) => zoomAt((view.begin + view.end) / 2, factor);

function keyDown(event) {
  const typing = event.target.closest?.("input, select, textarea, dialog");
  if (event.ctrlKey || event.metaKey || event.altKey) {
    if (event.key.toLowerCase() === "k" && byId("search")) focusSearch(event);
    return;
  }
  if (typing) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (HELD[key]) {
    if (!held.size) requestAnimationFrame(repeat);
    held.add(key);
    HELD[key]();
    event.preventDefault();
    return;
  }
  if (key.startsWith("Arrow") && event.target.closest?.("[role=grid], [role=tree], [role=tablist], #splitter")) return;
  const action = ACTIONS[key];
  if (action && action(event) !== false) event.preventDefault();
}

function repeat() {
  if (!held.size) return;
  for (const key of held) HELD[key]();
  requestAnimationFrame(repeat);
}

function focusSearch(event) {
  event.preventDefault();
  byId("search").focus();
  byId("search").select();
}

const ACTIONS = {
  "/": focusSearch,
  "?": () => helpDialog().showModal(),
  0: showAll,
  c: () => byId("critical")?.click(),
  t: () => byId("theme").click(),
  f: () => {
    if (state.interval) showTimes(...widened(state.interval));
    else if (state.selected) showEvent(state.selected);
  },
  Enter: (event) => (event.target.closest?.("button, [role=grid], [role=tree], summary, a") ? false : state.selected && showEvent(state.selected)),
  Escape: () => {
    if (state.selected) select(null);
    else if (state.lit) light(null);
    else chooseInterval(null);
  },
  ArrowLeft: () => neighbour(-1),
  ArrowRight: () => neighbour(1),
  ArrowUp: () => otherRow(-1),
  ArrowDown: () => otherRow(1),
  ...Object.fromEntries(COLOR_NAMES.map(([value], position) => [position + 1, () => colorBy(value)])),
};

const widened = ([begin, end]) => [begin - 0.05 * (end - begin), end + 0.05 * (end - begin)];

function colorBy(name) {
  if (!byId("color") || ![...byId("color").options].some((option) => option.value === name)) return;
  byId("color").value = name;
  byId("color").dispatchEvent(new Event("change"));
}

// The selected event's row, and its position among the spans there.
function positionOf(selected) {
  const row = rowsOf(selected)[0];
  if (!row) return null;
  const own = selected.type === "op" ? selected.index : usesOf(row.schedule, selected.index).find((use) => row.schedule.uses.link[use] === row.link);
  return { row, position: row.spans.order.indexOf(own) };
}

function chooseOn(row, position) {
  const event = row.spans.order[position];
  if (event === undefined) return;
  const index = row.type === "device" ? event : row.schedule.uses.transfer[event];
  select({ schedule: row.schedule.number, type: row.type === "device" ? "op" : "transfer", index });
  revealEvent(state.selected);
}

function neighbour(direction) {
  const at = state.selected && positionOf(state.selected);
  if (at) chooseOn(at.row, at.position + direction);
  else panBy(direction * 0.1);
}

function otherRow(direction) {
  if (!state.selected) return;
  const withSpans = rows.filter((row) => row.spans);
  const here = rowsOf(state.selected)[0];
  const events = eventsOf(state.selected);
  const middle = (events.start[state.selected.index] + events.end[state.selected.index]) / 2;
  const row = withSpans[withSpans.indexOf(here) + direction];
  if (row) chooseOn(row, Math.min(row.spans.order.length - 1, row.spans.firstAfter(middle)));
}

function helpDialog() {
  if (!byId("help")) {
    const rowsOfHelp = HELP.map(([keys, what]) => make("tr", {}, make("th", { scope: "row" }, keys), make("td", {}, what)));
    const dialog = make("dialog", { id: "help" }, make("h2", {}, "Keys"), make("table", { className: "figures" }, make("tbody", {}, rowsOfHelp)));
    dialog.append(make("form", { method: "dialog" }, make("button", {}, "Close")));
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    document.body.append(dialog);
  }
  return byId("help");
}
