// The event under the pointer.

const REACH = 3; // pixels by which a bar may be missed

const rowAt = (y) => rows.find((row) => y + timeline.scroller.scrollTop >= row.top && y + timeline.scroller.scrollTop < row.top + row.height);

function timeAt(x) {
  const here = area();
  return here.begin + (x - here.left) / here.scale;
}

// The event of a row nearest to a time, or null if none is within reach; of several the shortest wins.
function eventAt(row, time) {
  if (!row || !row.spans) return null;
  const reach = REACH / area().scale;
  const { spans } = row;
  let best = null;
  let nearest = Infinity;
  for (let position = spans.firstAfter(time - reach); position < spans.order.length; position += 1) {
    const event = spans.order[position];
    if (spans.start[event] > time + reach) break;
    const distance = Math.max(0, spans.start[event] - time, time - spans.end[event]);
    const rank = distance > 0 ? reach + distance : (spans.end[event] - spans.start[event]) * 1e-9;
    if (distance <= reach && rank < nearest) {
      nearest = rank;
      best = event;
    }
  }
  if (best === null) return null;
  return row.type === "device"
    ? { schedule: row.schedule.number, type: "op", index: best }
    : { schedule: row.schedule.number, type: "transfer", index: row.schedule.uses.transfer[best] };
}
