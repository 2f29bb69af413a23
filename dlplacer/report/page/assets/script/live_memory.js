// Live memory of a device over time: its curve, its peak, and the tensors that are alive at a given time.

const MEMORY_WHAT = ["output", "copy", "workspace", "relayed"];

function memoryCurve(schedule, device) {
  schedule.curves ??= [];
  schedule.curves[device] ??= computeCurve(schedule.memory, device);
  return schedule.curves[device];
}

function computeCurve(memory, device) {
  const changes = [];
  memory.device.forEach((owner, live) => {
    if (owner !== device || memory.time[live] <= 0) return;
    changes.push([memory.start[live], memory.bytes[live]], [memory.start[live] + memory.time[live], -memory.bytes[live]]);
  });
  changes.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  const curve = { times: [0], levels: [memory.resident[device]], peak: memory.resident[device], peakTime: 0 };
  let level = memory.resident[device];
  for (const [time, change] of changes) {
    level += change;
    if (time === curve.times[curve.times.length - 1]) curve.levels[curve.levels.length - 1] = level;
    else {
      curve.times.push(time);
      curve.levels.push(level);
    }
  }
  curve.levels.forEach((height, position) => {
    if (height > curve.peak) Object.assign(curve, { peak: height, peakTime: curve.times[position] });
  });
  return curve;
}

function levelAt(curve, time) {
  let low = 0;
  let high = curve.times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (curve.times[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low ? curve.levels[low - 1] : 0;
}

// Positions in the memory columns of the tensors alive on a device at a time, the largest first.
function aliveAt(schedule, device, time) {
  const { memory } = schedule;
  const found = [];
  for (let live = 0; live < memory.device.length; live += 1) {
    if (memory.device[live] === device && memory.start[live] <= time && time < memory.start[live] + memory.time[live]) found.push(live);
  }
  return found.sort((one, other) => memory.bytes[other] - memory.bytes[one]);
}
