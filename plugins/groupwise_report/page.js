// The pointer's step is shown in every chart at once: one asks what else happened then.
const known = new WeakMap();
const main = document.querySelector("main");
const read = figure => {
  const values = [...figure.querySelectorAll(".legend b")];
  return {values, rest: values.map(v => v.textContent), cursor: figure.querySelector(".cursor"),
    lines: [...figure.querySelectorAll("[data-line]")].map(line => ({line, own: line.getAttribute("d")})),
    range: figure.dataset.range.split(" ").map(Number),
    percent: figure.dataset.percent === "1", series: JSON.parse(figure.dataset.series)};
};
const charts = () => [...document.querySelectorAll(".chart[data-series]")].map(figure => {
  if (!known.has(figure)) known.set(figure, read(figure));
  return known.get(figure);
});
const nearest = (points, step) =>
  points.reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a);
const display = (y, percent) => (Math.abs(y) >= (percent ? 1e4 : 1e9) ? y.toExponential(2)
  : percent ? (100 * y).toFixed(1) + " %" : Math.abs(y) >= 1000 ? Math.round(y).toLocaleString("en") : String(+y.toPrecision(3))
  ).replace("-", "\u2212");
const show = (step, last) => charts().forEach(c => {
  c.cursor.hidden = false;
  c.cursor.style.left = 100 * step / last + "%";
  c.cursor.dataset.step = step;
  c.values.forEach((v, i) => v.textContent = display(nearest(c.series[i], step)[1], c.percent));
});
const hide = () => charts().forEach(c => {
  c.cursor.hidden = true;
  c.values.forEach((v, i) => v.textContent = c.rest[i]);
});
document.addEventListener("pointermove", event => {
  const plot = event.target.closest?.("[data-series] .plot");
  if (!plot) return;
  const box = plot.getBoundingClientRect(), last = +main.dataset.last;
  show(Math.min(last, Math.max(0, Math.round(last * (event.clientX - box.left) / box.width))), last);
});
document.addEventListener("pointerout", event => {
  const plot = event.target.closest?.("[data-series] .plot");
  if (plot && !plot.contains(event.relatedTarget)) hide();
});
