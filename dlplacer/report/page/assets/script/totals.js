// Sums over an interval of time: the computation of devices and the traffic of links.

// [device] → its computing time between begin and end; and the same per value of a key of the ops.
function computeTotals(schedule, begin, end, keyOf) {
  const devices = new Float64Array(schedule.devices.name.length);
  const groups = new Map();
  schedule.deviceSpans.forEach((spans, device) => {
    for (let position = spans.firstAfter(begin); position < spans.order.length; position += 1) {
      const event = spans.order[position];
      if (spans.start[event] >= end) break;
      const time = Math.min(end, spans.end[event]) - Math.max(begin, spans.start[event]);
      if (time <= 0) continue;
      devices[device] += time;
      const key = keyOf(event);
      if (!groups.has(key)) groups.set(key, { time: 0, count: 0, devices: new Float64Array(devices.length) });
      const group = groups.get(key);
      group.time += time;
      group.count += 1;
      group.devices[device] += time;
    }
  });
  return { devices, groups };
}

// Transfers in flight, link directions in use, and bytes sent, each in proportion to its time in the interval.
function transferTotals(schedule, begin, end) {
  const links = schedule.linkSpans.map(() => ({ time: 0, bytes: 0, count: 0 }));
  schedule.linkSpans.forEach((spans, link) => {
    for (let position = spans.firstAfter(begin); position < spans.order.length; position += 1) {
      const use = spans.order[position];
      if (spans.start[use] >= end) break;
      const time = Math.min(end, spans.end[use]) - Math.max(begin, spans.start[use]);
      if (time <= 0) continue;
      links[link].time += time;
      links[link].count += 1;
      links[link].bytes += schedule.transfers.bytes[schedule.uses.transfer[use]] * (time / (spans.end[use] - spans.start[use]));
    }
  });
  return links;
}

const interval = () => state.interval || [0, step];
