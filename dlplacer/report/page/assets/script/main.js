// Puts the page together.

const TABS = schedules.length
  ? [["Ops", opTable], ["Transfers", transferTable], ["Devices", deviceTable], ["Links", linkTable], ["Totals", totalPanel], ["Memory", alivePanel], ["Modules", moduleTree]]
  : [];
const tabs = { names: [], open: null, views: new Map(), row: null, body: null };

function show(numbers) {
  state.shown = [...new Set(numbers)];
  if (state.selected && !state.shown.includes(state.selected.schedule)) state.selected = null;
  emit("shown");
}

function scheduleChooser(position) {
  const options = schedules.map(({ name, end }, number) => make("option", { value: number }, `${name}  ${seconds(end)}`));
  if (position) options.unshift(make("option", { value: -1 }, "against nothing"));
  const chooser = make("select", { onchange: () => show(position ? [state.shown[0], Number(chooser.value)].filter((number) => number >= 0) : [Number(chooser.value), ...state.shown.slice(1)]) }, options);
  chooser.setAttribute("aria-label", position ? "Against" : "Schedule");
  const follow = () => {
    chooser.value = String(state.shown[position] ?? -1);
  };
  on("shown", follow);
  follow();
  return chooser;
}

function buildTools() {
  const theme = themeButton();
  if (!schedules.length) return byId("tools").append(theme);
  const color = make("select", { id: "color", onchange: () => ((state.colorBy = color.value), (state.lit = null), emit("colors")) }, COLOR_NAMES.map(([value, name]) => make("option", { value }, name)));
  color.setAttribute("aria-label", "Colours by");
  const critical = make("input", { id: "critical", type: "checkbox", checked: true, onchange: () => ((state.critical = critical.checked), emit("critical")) });
  const hasPath = schedules.some((schedule) => schedule.ops.critical.includes(1));
  byId("tools").append(
    searchBox(),
    ...(schedules.length > 2 ? [scheduleChooser(0), scheduleChooser(1)] : []),
    make("label", {}, "Colours ", color),
    hasPath ? make("label", { title: "C" }, critical, " critical path") : "",
    button("Fit", "Show the whole step (0)", showAll),
    theme,
    button("?", "Keys", () => helpDialog().showModal(), { className: "icon" }),
  );
  return undefined;
}

function openTab(name) {
  if (!tabs.names.includes(name)) return;
  tabs.open = name;
  if (!tabs.views.has(name)) tabs.views.set(name, tabs.build.get(name)());
  const opened = tabs.views.get(name);
  tabs.body.replaceChildren(opened ? opened.element : make("p", { className: "muted" }, "none"));
  for (const tab of tabs.row.children) {
    const own = tab.dataset.name === name;
    tab.setAttribute("aria-selected", String(own));
    tab.tabIndex = own ? 0 : -1;
  }
  opened?.show?.();
  opened?.draw?.();
}

function buildTabs(section) {
  tabs.build = new Map([...(data.tables || []).map((table) => [table.title, () => readyTable(table)]), ...TABS]);
  tabs.row = make("div", { className: "tabs", role: "tablist", onkeydown: tabKey });
  tabs.body = make("div", { className: "tab", role: "tabpanel", id: "tab" });
  section.append(tabs.row, tabs.body);
  listTabs();
}

// Tables without content have no tab.
function listTabs() {
  const empty = { Transfers: () => !shownSchedules().some((schedule) => schedule.transfers.count), Links: () => !shownSchedules().some((schedule) => schedule.links.from.length), Memory: () => !shownSchedules().some((schedule) => schedule.memory.device), Modules: () => !modulesOf(shownSchedules()[0]).root.children.length };
  tabs.names = [...tabs.build.keys()].filter((name) => !empty[name]?.());
  tabs.views.clear();
  tabs.row.replaceChildren(...tabs.names.map((name) => {
    const tab = button(name, "", () => openTab(name), { role: "tab" });
    tab.dataset.name = name;
    return tab;
  }));
  openTab(tabs.names.includes(tabs.open) ? tabs.open : tabs.names[0]);
}

function tabKey(event) {
  const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!move) return;
  const next = (tabs.names.indexOf(tabs.open) + move + tabs.names.length) % tabs.names.length;
  openTab(tabs.names[next]);
  tabs.row.children[next].focus();
  event.preventDefault();
}

function buildSplitter() {
  const splitter = byId("splitter");
  const setHeight = (height) => document.documentElement.style.setProperty("--tables", `${Math.max(90, Math.min(innerHeight - 260, height))}px`);
  splitter.addEventListener("pointerdown", ({ pointerId }) => {
    splitter.setPointerCapture(pointerId);
    splitter.onpointermove = (event) => setHeight(innerHeight - event.clientY);
  });
  splitter.addEventListener("pointerup", () => {
    splitter.onpointermove = null;
  });
  splitter.addEventListener("keydown", (event) => {
    const move = { ArrowUp: 24, ArrowDown: -24 }[event.key];
    if (!move) return;
    setHeight(byId("tabs").getBoundingClientRect().height + move);
    event.preventDefault();
  });
}

function followSelection() {
  const open = tabs.views.get(tabs.open);
  if (!open?.draw) return;
  if (tabs.open === "Ops" && state.selected?.type === "op" && state.selected.schedule === state.shown[0]) open.reveal(state.selected.index);
  else open.draw();
}

function start() {
  if (data.colorBy) [[state.colorBy]] = data.colorBy;
  buildTools();
  buildTabs(byId("tabs"));
  buildSplitter();
  if (data.chart) buildChart(byId("timeline"), data.chart);
  if (schedules.length) {
    buildTimeline(byId("timeline"));
    layOut();
    buildLegend();
    listenToPointer();
    listenToKeys();
    [view.begin, view.end] = clampView(-MARGIN * step * 0.25, step * (1 + MARGIN * 0.25));
    resized();
    on("shown", listTabs);
    on("select", followSelection);
    on("colors", () => tabs.open === "Ops" && tabs.views.get("Ops").draw());
  }
  performance.mark("dlplacer drawn");
}

start();
