// Lines over a logarithmic axis, for the page of a hybrid plan: {x, y, series: [{name, points: [[x, y, label]], dashed}], marks}.

const CHART = { left: 56, right: 20, top: 18, bottom: 40 };

function buildChart(section, chart) {
  const canvas = make("canvas", { id: "chart", tabIndex: 0, role: "img" });
  canvas.setAttribute("aria-label", `${chart.y} over ${chart.x}; the table below has the figures`);
  const legend = make("div", { className: "legend", id: "legend" }, chart.series.map((series, number) => make("span", { className: "key" }, make("i", { style: { background: chartColor(series, number) } }), named(series.name))));
  section.append(canvas, legend);
  const points = chart.series.flatMap((series) => series.points);
  const bounds = { x: [1, Math.max(2, ...points.map(([x]) => x))], y: [Math.min(1, ...points.map(([, y]) => y)), Math.max(2, ...points.map(([, y]) => y)) * 1.1] };
  let hovered = null;
  const place = (width, height) => ({
    x: (value) => CHART.left + (Math.log2(value / bounds.x[0]) / Math.log2(bounds.x[1] / bounds.x[0])) * (width - CHART.left - CHART.right),
    y: (value) => height - CHART.bottom - (Math.log2(value / bounds.y[0]) / Math.log2(bounds.y[1] / bounds.y[0])) * (height - CHART.top - CHART.bottom),
  });
  const draw = () => {
    const { width, height } = canvas.getBoundingClientRect();
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const at = place(width, height);
    drawGrid(context, chart, bounds, at, width, height);
    chart.series.forEach((series, number) => drawSeries(context, series, chartColor(series, number), at));
    if (hovered) {
      context.fillStyle = ink.text;
      context.beginPath();
      context.arc(at.x(hovered[0]), at.y(hovered[1]), 4.5, 0, 2 * Math.PI);
      context.fill();
    }
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const at = place(box.width, box.height);
    const distance = ([x, y]) => Math.hypot(at.x(x) - event.clientX + box.left, at.y(y) - event.clientY + box.top);
    const nearest = points.reduce((best, point) => (!best || distance(point) < distance(best) ? point : best), null);
    hovered = nearest && distance(nearest) < 40 ? nearest : null;
    draw();
    if (!hovered) return hideTip();
    const series = chart.series.find((each) => each.points.includes(hovered));
    return showTip([make("strong", {}, named(series.name)), tipLine(chart.x, String(hovered[0])), tipLine(chart.y, `${hovered[1].toFixed(2)}×`), tipLine("as", hovered[2])], event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", () => {
    hovered = null;
    hideTip();
    draw();
  });
  new ResizeObserver(draw).observe(canvas);
  on("theme", draw);
}

const chartColor = (series, number) => (series.dashed ? ink.text : DISTINCT[number % DISTINCT.length]);

function drawGrid(context, chart, bounds, at, width, height) {
  context.clearRect(0, 0, width, height);
  context.font = fontOf(11);
  context.textBaseline = "middle";
  for (const axis of ["x", "y"]) {
    const powers = [];
    for (let power = Math.ceil(Math.log2(bounds[axis][0]) - 1e-9); power <= Math.log2(bounds[axis][1]); power += 1) powers.push(2 ** power);
    for (const value of powers) {
      context.fillStyle = ink.line;
      if (axis === "x") context.fillRect(at.x(value), CHART.top, 1, height - CHART.top - CHART.bottom);
      else context.fillRect(CHART.left, at.y(value), width - CHART.left - CHART.right, 1);
      context.fillStyle = ink.muted;
      const text = String(value);
      const wide = textWidth(context, text);
      if (axis === "x") context.fillText(text, at.x(value) - wide / 2, height - CHART.bottom + 12);
      else context.fillText(text, CHART.left - 8 - wide, at.y(value));
    }
  }
  context.fillText(chart.x, (width + CHART.left) / 2 - 20, height - 10);
  context.fillText(chart.y, CHART.left, 8);
  for (const { at: value, text } of chart.marks || []) {
    context.fillStyle = ink.muted;
    context.fillRect(at.x(value), CHART.top, 1, height - CHART.top - CHART.bottom);
    const wide = textWidth(context, text);
    context.fillText(text, at.x(value) + wide + 6 > width ? at.x(value) - wide - 4 : at.x(value) + 4, height - CHART.bottom - 8);
  }
}

function drawSeries(context, { points, dashed }, color, at) {
  context.strokeStyle = color;
  context.fillStyle = color;
  context.lineWidth = dashed ? 1.5 : 2;
  context.setLineDash(dashed ? [6, 4] : []);
  context.beginPath();
  points.forEach(([x, y], position) => (position ? context.lineTo(at.x(x), at.y(y)) : context.moveTo(at.x(x), at.y(y))));
  context.stroke();
  context.setLineDash([]);
  if (dashed || points.length > 64) return;
  for (const [x, y] of points) {
    context.beginPath();
    context.arc(at.x(x), at.y(y), 2.5, 0, 2 * Math.PI);
    context.fill();
  }
}
