// Follows a run: asks for a newer page, and puts its changed parts in the place of the old ones.
// Nothing else moves: not what is scrolled to, not what is open.
const EVERY = 2000;  // ms
const name = part => part.tagName + part.className + (part.querySelector("h2, summary")?.textContent ?? "");
const sources = parts => new Map([...parts].map(part => [name(part), part.outerHTML]));
let version = main.dataset.version, before = sources(main.children);
// By key where there is one, since rows come and go, else by place.
const opened = part => {
  const all = [...part.querySelectorAll("details"), ...(part.matches("details") ? [part] : [])];
  return new Map(all.map((details, i) => [details.dataset.key ?? i, details]));
};
const keep = (old, fresh) => {
  const were = opened(old);
  opened(fresh).forEach((details, key) => { details.open = were.get(key)?.open ?? false; });
  keepFilters(old, fresh);
  const boxes = [...old.querySelectorAll(".words, .card, pre")].map(box => [box.scrollLeft, box.scrollTop]);
  old.replaceWith(fresh);
  fresh.querySelectorAll(".words, .card, pre").forEach((box, i) => {
    if (boxes[i]) [box.scrollLeft, box.scrollTop] = boxes[i];
  });
};
const update = text => {
  const page = new DOMParser().parseFromString(text, "text/html"), next = page.querySelector("main");
  const after = sources(next.children), old = new Map([...main.children].map(part => [name(part), part]));
  // What stands at the top of the window stays there, whatever grows above it.
  const inView = [...main.children].find(part => part.getBoundingClientRect().bottom > 0);
  const anchor = inView && name(inView), top = inView?.getBoundingClientRect().top;
  let place = main.firstElementChild;
  for (const fresh of [...next.children]) {
    const was = old.get(name(fresh));
    if (!was) { main.insertBefore(fresh, place); continue; }
    const same = before.get(name(fresh)) === after.get(name(fresh));
    place = was.nextElementSibling;
    if (!same) keep(was, fresh);
  }
  for (const [key, part] of old) if (!after.has(key)) part.remove();
  before = after;
  main.dataset.last = next.dataset.last;
  document.title = page.title;
  refresh();
  const now = [...main.children].find(part => name(part) === anchor);
  if (now && scrollY) scrollBy({top: now.getBoundingClientRect().top - top, behavior: "instant"});
};
const follow = async () => {
  let reached = true;
  try {
    const answer = await fetch(location.pathname, {headers: {"If-None-Match": version}});
    if (answer.status === 200) {
      version = answer.headers.get("ETag");
      update(await answer.text());
    } else reached = answer.status === 304;
  } catch { reached = false; }
  const lost = document.querySelector(".lost");
  if (lost) lost.hidden = reached;
  setTimeout(follow, EVERY);
};
setTimeout(follow, EVERY);
