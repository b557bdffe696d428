// The table of completions: a heading sorts, selects and the field above the table filter.
const table = () => document.querySelector(".completions");
const fits = (row, choice) => {
  const [key, value] = choice.split(" ");
  return !choice || row.dataset[key].split(" ").includes(value) && (key !== "step" || row.dataset.when === "training");
};
const filter = () => {
  const card = table();
  if (!card) return;
  card.querySelector(".filters").hidden = false;
  const choices = [...card.querySelectorAll("select")].map(select => select.value);
  const words = card.querySelector("input").value.toLowerCase();
  const rows = [...card.querySelectorAll("tbody > tr")];
  for (const row of rows)
    row.hidden = !choices.every(choice => fits(row, choice)) || !!words && !row.textContent.toLowerCase().includes(words);
  const shown = rows.filter(row => !row.hidden).length;
  card.querySelector("output").textContent = `${shown} of ${rows.length}`;
};
// Numbers by size, the largest first; what has none, last. Twice turns the order round.
const sort = head => {
  const place = head.cellIndex, body = table().querySelector("tbody");
  const falls = head.getAttribute("aria-sort") !== "descending";
  const value = row => row.cells[place].dataset.value ?? row.cells[place].textContent;
  const order = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (!x || !y) return !x - !y;
    return (isNaN(x) || isNaN(y) ? (x < y) - (x > y) : y - x) * (falls ? 1 : -1);
  };
  body.append(...[...body.rows].sort(order));
  for (const each of head.parentElement.cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", falls ? "descending" : "ascending");
};
const keepFilters = (old, fresh) => {
  const fields = part => [...part.querySelectorAll(".filters select, .filters input")];
  const before = fields(old);
  fields(fresh).forEach((field, i) => { if (before[i]) field.value = before[i].value; });
  const sorted = old.querySelector("th[aria-sort]");
  if (sorted) fresh.querySelectorAll("th")[sorted.cellIndex]?.setAttribute("data-sorted", sorted.getAttribute("aria-sort"));
};
document.addEventListener("input", event => { if (event.target.closest(".filters")) filter(); });
document.addEventListener("click", event => {
  const head = event.target.closest?.(".completions th");
  if (head) sort(head);
});
const refresh = () => {
  filter();
  smoothAll();
  const head = document.querySelector("th[data-sorted]");
  if (!head) return;
  if (head.dataset.sorted === "ascending") head.setAttribute("aria-sort", "descending");
  delete head.dataset.sorted;
  sort(head);
};
refresh();
