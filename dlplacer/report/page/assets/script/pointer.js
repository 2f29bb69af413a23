// Mouse, pen and touch on the timeline: wheel zooms, drag pans, drag on the ruler or with Shift selects an interval.

const CLICK = 4; // pixels by which a click may move
const pointers = new Map();
let drag = null;

function listenToPointer() {
  for (const canvas of [timeline.head, timeline.body]) {
    canvas.addEventListener("wheel", wheel, { passive: false });
    canvas.addEventListener("pointerdown", pressed);
    canvas.addEventListener("pointermove", moved);
    canvas.addEventListener("pointerup", released);
    canvas.addEventListener("pointercancel", released);
    canvas.addEventListener("pointerleave", () => {
      hover(null);
      hideTip();
    });
  }
  timeline.body.addEventListener("dblclick", (event) => {
    const hit = hitOf(event);
    if (hit) showEvent(hit);
  });
}

function spot(event) {
  const box = event.currentTarget.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

function wheel(event) {
  const { x } = spot(event);
  const lines = event.deltaMode === 1 ? 16 : 1;
  if (x < timeline.left && event.currentTarget === timeline.body) return; // over the names it scrolls the rows
  event.preventDefault();
  hideTip();
  const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
  if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) panBy((sideways * lines) / (timeline.width - timeline.left));
  else zoomAt(timeAt(x), FACTOR ** Math.max(-4, Math.min(4, (event.deltaY * lines) / 100)));
}

function hitOf(event) {
  const { x, y } = spot(event);
  return x < timeline.left ? null : eventAt(rowAt(y), timeAt(x));
}

function pressed(event) {
  if (event.button !== 0) return;
  const { x, y } = spot(event);
  // A pointer that automation simulates cannot be captured; dragging then ends at the edge.
  try {
    event.currentTarget.setPointerCapture(event.pointerId);
  } catch {
    hideTip();
  }
  pointers.set(event.pointerId, event.clientX);
  if (pointers.size === 2) {
    drag = { kind: "pinch", distance: spread(), begin: view.begin, end: view.end };
    return;
  }
  const onHead = event.currentTarget === timeline.head;
  const kind = onHead && y < OVERVIEW ? "overview" : onHead || event.shiftKey ? "select" : "pan";
  drag = { kind, x, y, begin: view.begin, end: view.end, scroll: timeline.scroller.scrollTop, time: timeAt(x), moved: false, touch: event.pointerType === "touch" };
  if (kind === "overview") moveWindow(x);
}

function spread() {
  const [one, other] = [...pointers.values()];
  return Math.max(10, Math.abs(one - other));
}

function moved(event) {
  const { x, y } = spot(event);
  if (pointers.has(event.pointerId)) pointers.set(event.pointerId, event.clientX);
  if (!drag) return hoverAt(event, x, y);
  if (drag.kind === "pinch") return pinch();
  if (Math.abs(x - drag.x) + Math.abs(y - drag.y) > CLICK) drag.moved = true;
  if (!drag.moved) return undefined;
  hideTip();
  const perPixel = (drag.end - drag.begin) / (timeline.width - timeline.left);
  if (drag.kind === "pan") {
    event.currentTarget.style.cursor = "grabbing";
    setView(drag.begin - (x - drag.x) * perPixel, drag.end - (x - drag.x) * perPixel);
    if (!drag.touch) timeline.scroller.scrollTop = drag.scroll - (y - drag.y);
  } else if (drag.kind === "select") {
    const times = [drag.time, timeAt(Math.max(timeline.left, x))].sort((one, other) => one - other);
    state.interval = [Math.max(0, times[0]), Math.min(step, times[1])];
    redraw();
  } else moveWindow(x);
  return undefined;
}

function pinch() {
  if (pointers.size < 2) return;
  const factor = drag.distance / spread();
  const middle = (drag.begin + drag.end) / 2;
  const half = ((drag.end - drag.begin) / 2) * factor;
  setView(middle - half, middle + half);
}

function moveWindow(x) {
  const time = ((x - timeline.left) / (timeline.width - timeline.left)) * step;
  const half = (view.end - view.begin) / 2;
  setView(time - half, time + half);
}

function released(event) {
  pointers.delete(event.pointerId);
  const done = drag;
  drag = null;
  event.currentTarget.style.cursor = "";
  if (!done || event.type === "pointercancel") return;
  if (done.kind === "select" && done.moved) chooseInterval(state.interval);
  else if (done.kind === "select") chooseInterval(null);
  else if (done.kind === "pan" && !done.moved) clicked(event, done);
}

function clicked(event, { x, y }) {
  timeline.body.focus({ preventScroll: true });
  const row = rowAt(y);
  if (row?.type === "head") fold(row.id);
  else if (row?.type === "memory" && x >= timeline.left) lookAtMemory(row.schedule, row.device, timeAt(x));
  else select(x < timeline.left ? null : eventAt(row, timeAt(x)));
}

function hover(event) {
  if (sameEvent(event, timeline.hovered) || (!event && !timeline.hovered)) return;
  timeline.hovered = event;
  redraw();
}

function hoverAt(event, x, y) {
  if (event.pointerType === "touch") return;
  if (event.currentTarget === timeline.head) {
    hideTip();
    return;
  }
  const row = rowAt(y);
  const hit = x < timeline.left ? null : eventAt(row, timeAt(x));
  timeline.body.style.cursor = row?.type === "head" ? "pointer" : x < timeline.left ? "default" : event.shiftKey ? "crosshair" : hit ? "pointer" : "grab";
  hover(hit);
  const lines = hit ? eventTip(hit) : rowTip(row, x);
  if (lines) showTip(lines, event.clientX, event.clientY);
  else hideTip();
}

function rowTip(row, x) {
  if (!row || row.type === "head") return null;
  if (x < timeline.left) return [make("strong", {}, named(row.label)), ...(row.tag ? [tipLine("in", row.tag)] : [])];
  return row.type === "memory" ? memoryTip(row, timeAt(x)) : idleTip(row, timeAt(x));
}
