// The slider redraws lines by another mean than the page's own, from the values that the page has.
const SHARES = [0, .02, .05, .1, .2, .4], OWN = 2;  // of a line, over which the mean is taken
const slider = document.querySelector(".controls input");
// As in charts.py: a moving average applied twice, which is smooth and has no lag.
const smooth = (values, radius) => {
  for (let round = 0; round < 2; round++) {
    const sums = [0];
    for (const value of values) sums.push(sums.at(-1) + value);
    values = values.map((_, i) => {
      const start = Math.max(0, i - radius), end = Math.min(values.length, i + radius + 1);
      return (sums[end] - sums[start]) / (end - start);
    });
  }
  return values;
};
const drawn = (points, [low, high]) => "M" + points.map(([x, y]) =>
  `${(1000 * x / main.dataset.last).toFixed(1)} ${(1000 * (high - y) / (high - low)).toFixed(1)}`).join("L");
const redraw = (chart, {line, own}) => {
  const level = +slider.value, points = chart.series[line.dataset.line];
  const raw = line.previousElementSibling?.matches(".raw") ? line.previousElementSibling : null;
  if (raw?.dataset.added) raw.remove();
  if (level === OWN) return line.setAttribute("d", own);
  if (!level) return line.setAttribute("d", raw && !raw.dataset.added ? raw.getAttribute("d") : own);
  if (!raw || raw.dataset.added) {  // a short line, which the page does not smooth
    const faint = line.cloneNode();
    faint.setAttribute("class", line.getAttribute("class").replace("line", "raw"));
    faint.setAttribute("d", own);
    delete faint.dataset.line;
    faint.dataset.added = 1;
    line.before(faint);
  }
  const radius = Math.max(1, Math.round(SHARES[level] * points.length / 2));
  const ys = smooth(points.map(p => p[1]), radius);
  line.setAttribute("d", drawn(points.map(([x], i) => [x, ys[i]]), chart.range));
};
const smoothAll = () => {
  const share = SHARES[+slider.value];
  slider.parentElement.hidden = !document.querySelector("[data-line]");
  document.querySelector(".controls output").textContent = +slider.value === OWN ? "usual" : share ? `over ${100 * share} % of the run` : "off";
  charts().forEach(chart => chart.lines.forEach(line => redraw(chart, line)));
};
slider.addEventListener("input", smoothAll);
