// The interval of time that the timeline shows, and how it moves.

const longest = (shown) => Math.max(1, ...shown.map((schedule) => Math.max(schedule.end, schedule.bound)));
let step = longest(shownSchedules());
const view = { begin: 0, end: step, narrowest: 20, moving: 0 };
const MARGIN = 0.02;
const FACTOR = 1.25;
const GLIDE_MS = 160;

function clampView(begin, end) {
  const widest = step * (1 + 2 * MARGIN);
  const span = Math.min(widest, Math.max(view.narrowest, end - begin));
  const middle = (begin + end) / 2;
  const low = Math.min(Math.max(middle - span / 2, -MARGIN * step), step * (1 + MARGIN) - span);
  return [low, low + span];
}

function setView(begin, end) {
  cancelAnimationFrame(view.moving);
  [view.begin, view.end] = clampView(begin, end);
  emit("view");
}

// A factor below 1 zooms in; the time under the pointer keeps its place.
function zoomAt(time, factor) {
  const span = view.end - view.begin;
  const wanted = Math.min(step * (1 + 2 * MARGIN), Math.max(view.narrowest, span * factor));
  const begin = time - ((time - view.begin) / span) * wanted;
  setView(begin, begin + wanted);
}

function panBy(share) {
  const span = view.end - view.begin;
  setView(view.begin + share * span, view.end + share * span);
}

// Animated, so that the eye can follow the move.
function showTimes(begin, end) {
  cancelAnimationFrame(view.moving);
  const from = [view.begin, view.end];
  const to = clampView(begin, end);
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
    setView(...to);
    return;
  }
  const started = performance.now();
  const glide = (now) => {
    const share = Math.min(1, Math.max(0, (now - started) / GLIDE_MS));
    const eased = 1 - (1 - share) ** 3;
    [view.begin, view.end] = [0, 1].map((side) => from[side] + eased * (to[side] - from[side]));
    emit("view");
    if (share < 1) view.moving = requestAnimationFrame(glide);
  };
  view.moving = requestAnimationFrame(glide);
}

const showAll = () => showTimes(-MARGIN * step * 0.25, step * (1 + MARGIN * 0.25));

on("shown", () => {
  step = longest(shownSchedules());
  showAll();
});

function showEvent(selected) {
  const events = eventsOf(selected);
  const [begin, end] = [events.start[selected.index], events.end[selected.index]];
  const span = Math.max((end - begin) * 12, step * 1e-4);
  const middle = (begin + end) / 2;
  showTimes(middle - span / 2, middle + span / 2);
}

// Move only as far as needed to see it.
function revealEvent(selected) {
  const events = eventsOf(selected);
  const [begin, end] = [events.start[selected.index], events.end[selected.index]];
  const span = view.end - view.begin;
  const visible = begin < view.end && end > view.begin;
  if (!visible || (end - begin) / span < 0.002) {
    const wanted = Math.max(Math.min(span, (end - begin) * 200), (end - begin) * 3, view.narrowest);
    showTimes((begin + end - wanted) / 2, (begin + end + wanted) / 2);
  }
  emit("reveal", selected);
}
