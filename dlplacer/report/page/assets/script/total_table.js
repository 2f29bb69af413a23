// Totals of the selected interval, or of the whole step: per kind, module block or phase, and device.

const GROUPINGS = { kind: (schedule, op) => texts[schedule.graph.kind[op]], module: (schedule, op) => texts[schedule.graph.block[op]] || "no module", phase: (schedule, op) => PHASES[schedule.graph.phase[op]] || "no phase" };

function totalPanel() {
  const panel = make("div", { className: "panel" });
  let grouping = "kind";
  const chooser = make("select", { onchange: () => ((grouping = chooser.value), draw()) }, Object.keys(GROUPINGS).map((name) => make("option", { value: name }, `per ${name}`)));
  chooser.setAttribute("aria-label", "Group by");
  const note = make("span", { className: "status" });
  const holder = make("div", { className: "holder" });
  const draw = () => {
    const [begin, end] = interval();
    note.textContent = state.interval ? `${seconds(begin)} – ${seconds(end)}: ${seconds(end - begin)}` : "the whole step; drag on the ruler to select an interval";
    holder.replaceChildren(totalsTable(begin, end, grouping).element);
  };
  panel.append(make("div", { className: "bar" }, chooser, note), holder);
  on("interval", () => panel.isConnected && draw());
  draw();
  return { element: panel, show: draw };
}

function totalsTable(begin, end, grouping) {
  const found = shownSchedules().map((schedule) => ({ schedule, ...computeTotals(schedule, begin, end, (event) => GROUPINGS[grouping](schedule, schedule.ops.op[event])) }));
  const keys = [...new Set(found.flatMap(({ groups }) => [...groups.keys()]))];
  const whole = found.map(({ devices }) => devices.reduce((sum, value) => sum + value, 0));
  const several = found.length > 1;
  const columns = found.flatMap(({ schedule, groups }, number) => [
    time(`time${suffix(schedule)}`, (row) => groups.get(keys[row])?.time ?? 0),
    ...(several ? [] : [{ name: "share", unit: "share", value: (row) => (groups.get(keys[row])?.time ?? 0) / (whole[number] || 1) }]),
    { name: `ops${suffix(schedule)}`, unit: "number", value: (row) => groups.get(keys[row])?.count ?? 0 },
    ...schedule.devices.name.map((name, device) => time(`${name}${suffix(schedule)}`, (row) => groups.get(keys[row])?.devices[device] ?? 0)),
  ]);
  return new VirtualTable({
    label: `Totals per ${grouping}`,
    count: keys.length,
    sort: columns[0].name,
    descending: true,
    columns: [{ name: grouping, value: (row) => keys[row], width: 260 }, ...columns],
  });
}

// The same in a few lines for the side: busy share per device, the longest kinds, the traffic of links.
function intervalDetails() {
  const [begin, end] = state.interval;
  const parts = [detailHead("Interval", `${seconds(begin)} – ${seconds(end)}`), facts([["length", seconds(end - begin)]])];
  for (const schedule of shownSchedules()) {
    const { devices, groups } = computeTotals(schedule, begin, end, (event) => texts[schedule.graph.kind[schedule.ops.op[event]]]);
    const whole = devices.reduce((sum, value) => sum + value, 0);
    const longest = [...groups].sort((one, other) => other[1].time - one[1].time);
    const links = transferTotals(schedule, begin, end);
    if (state.shown.length > 1) parts.push(make("h3", {}, named(schedule.name)));
    parts.push(
      make("h4", {}, "Devices"),
      facts(schedule.devices.name.map((name, device) => [name, `${seconds(devices[device])}, ${formatShare(devices[device], end - begin)}`]), "totals"),
      make("h4", {}, `Kinds: ${longest.reduce((sum, [, group]) => sum + group.count, 0)} ops`),
      facts(longest.slice(0, 10).map(([kind, group]) => [kind, `${seconds(group.time)}, ${formatShare(group.time, whole)}`]), "totals"),
    );
    const used = links.map((total, link) => [linkName(schedule, link), total]).filter(([, total]) => total.time > 0);
    if (used.length) parts.push(make("h4", {}, "Links"), facts(used.sort((one, other) => other[1].time - one[1].time).slice(0, 10).map(([name, total]) => [name, `${formatBytes(total.bytes)}, ${formatShare(total.time, end - begin)}`]), "totals"));
  }
  parts.push(make("p", { className: "actions" }, button("Zoom here", "F", () => showTimes(...widened(state.interval))), button("All totals", "As a table", () => openTab("Totals")), button("Clear", "Esc", () => chooseInterval(null))));
  return parts;
}
