// The timeline: two canvases, one for ruler and overview, one for the rows, redrawn once per frame at most.

const timeline = { head: null, body: null, scroller: null, spacer: null, width: 0, height: 0, left: 120, waiting: false, hovered: null };

function buildTimeline(section) {
  timeline.head = make("canvas", { id: "axis", className: "axis" });
  timeline.body = make("canvas", { id: "gantt", tabIndex: 0, role: "application" });
  timeline.body.setAttribute("aria-label", "Schedule over time. W and S zoom, A and D pan, arrow keys go from op to op, question mark for all keys.");
  timeline.spacer = make("div", { className: "spacer" });
  timeline.scroller = make("div", { className: "scroller", id: "rows" }, timeline.spacer, timeline.body);
  section.append(timeline.head, timeline.scroller, make("div", { id: "legend", className: "legend" }));
  timeline.scroller.addEventListener("scroll", redraw, { passive: true });
  new ResizeObserver(resized).observe(timeline.scroller);
}

function resized() {
  const width = timeline.scroller.clientWidth;
  const height = timeline.scroller.clientHeight;
  if (!width || !height) return;
  const ratio = devicePixelRatio || 1;
  timeline.left = width < 560 ? 84 : Math.min(190, Math.max(120, longestLabel() + 26));
  Object.assign(timeline, { width, height });
  for (const [canvas, high] of [[timeline.head, OVERVIEW + RULER], [timeline.body, height]]) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(high * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${high}px`;
    canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  }
  emit("size");
  layOut();
  drawNow();
}

function longestLabel() {
  const context = timeline.body.getContext("2d");
  context.font = fontOf(FONT_SIZE, "600");
  return Math.max(0, ...rows.filter((row) => row.type !== "head").map((row) => textWidth(context, row.label) + (row.type === "device" ? 34 : 0) + (row.tag ? 62 : 0)));
}

function area() {
  const width = timeline.width - timeline.left;
  return { left: timeline.left, right: timeline.width, begin: view.begin, scale: width / (view.end - view.begin), scroll: timeline.scroller.scrollTop };
}

function redraw() {
  if (timeline.waiting) return;
  timeline.waiting = true;
  requestAnimationFrame(drawNow);
}

function drawNow() {
  timeline.waiting = false;
  if (!timeline.width) return;
  const context = timeline.body.getContext("2d");
  const here = area();
  context.clearRect(0, 0, timeline.width, timeline.height);
  const visible = rows.filter((row) => row.top + row.height > here.scroll && row.top < here.scroll + timeline.height);
  for (const row of visible) drawRow(context, row, here);
  drawLines(context, here, timeline.height);
  if (state.critical) for (const schedule of shownSchedules()) drawCriticalPath(context, schedule, here);
  drawDependencies(context, here);
  drawInterval(context, here, timeline.height);
  if (timeline.hovered) drawOutline(context, timeline.hovered, ink.muted, 1, here);
  if (state.selected) {
    for (const twin of twins(state.selected)) drawOutline(context, twin, ink.accent, 1.5, here);
    drawOutline(context, state.selected, ink.accent, 2.5, here);
  }
  for (const row of visible) drawGutter(context, row, here);
  context.fillStyle = ink.line;
  context.fillRect(timeline.left - 1, 0, 1, timeline.height);
  drawHeadCanvas(here);
  emit("drawn");
}

function drawHeadCanvas(here) {
  const context = timeline.head.getContext("2d");
  context.clearRect(0, 0, timeline.width, OVERVIEW + RULER);
  drawOverview(context, timeline.width, timeline.left, devicePixelRatio || 1);
  drawRuler(context, here, OVERVIEW);
  drawInterval(context, here, OVERVIEW + RULER);
  context.fillStyle = ink.surface;
  context.fillRect(0, OVERVIEW, timeline.left, RULER);
  context.font = fontOf(10);
  context.fillStyle = ink.muted;
  context.fillText(fitted(context, spanText(), timeline.left - 16), 8, OVERVIEW + RULER / 2);
  context.fillStyle = ink.line;
  context.fillRect(0, OVERVIEW + RULER - 1, timeline.width, 1);
}

function spanText() {
  return state.interval ? `selected ${seconds(state.interval[1] - state.interval[0])}` : `shown ${seconds(view.end - view.begin)}`;
}

function buildLegend() {
  const { labels, colors } = coloring();
  const entries = labels.map((label, category) =>
    button([make("i", { style: { background: colors[category] } }), named(label)], "Show these alone", () => toggleCategory(category, label), {
      "aria-pressed": String(state.lit?.category === `${state.colorBy}${category}`),
    }),
  );
  const lines = [["bound", "lower bound"], ...(schedules.some((schedule) => schedule.ops.critical.includes(1)) && state.critical ? [["critical", "critical path"]] : [])];
  const keys = lines.map(([name, text]) => make("span", { className: `key ${name}` }, text));
  byId("legend").replaceChildren(...entries, ...keys);
}

function toggleCategory(category, label) {
  const id = `${state.colorBy}${category}`;
  if (state.lit?.category === id) return light(null);
  const { category: own } = coloring();
  return light({ label, category: id, has: (schedule, event) => own[schedule.number][event] === category });
}

on("view select interval theme colors critical moment", redraw);
on("light", () => {
  buildLegend();
  redraw();
});
on("theme colors critical", () => buildLegend());
on("rows", () => {
  timeline.spacer.style.height = `${rowsHeight}px`;
  redraw();
});
on("shown", () => resized());
on("reveal", (selected) => {
  const row = rowsOf(selected)[0];
  if (!row) return;
  const { scrollTop } = timeline.scroller;
  if (row.top < scrollTop) timeline.scroller.scrollTop = row.top - 4;
  else if (row.top + row.height > scrollTop + timeline.height) timeline.scroller.scrollTop = row.top + row.height - timeline.height + 4;
});
