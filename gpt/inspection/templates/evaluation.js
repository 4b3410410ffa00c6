
const data = JSON.parse(find("data").textContent);
const Ids = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[data.width];
const PAGES = data.pages.length;
const sign = (id) => data.signs[data.names[id]] ?? data.names[id];
const percent = (p) => (p < 0.0005 ? "< 0.1 %" : `${(100 * p).toFixed(p < 0.1 ? 1 : 0)} %`);
const surpriseOf = (nats) => Math.min(1, nats / data.clamped);

/** Decode a page, which evaluation_page in report_views.py encoded. */
function decode(number) {
  const bytes = Uint8Array.from(atob(data.pages[number]), (c) => c.charCodeAt(0));
  const n = Math.min(data.page, data.n - number * data.page);
  let at = 0;
  const take = (Type, count) => {
    const taken = new Type(bytes.buffer, at, count);
    at += taken.byteLength;
    return taken;
  };
  const ids = take(Ids, n), likely = take(Ids, n * data.k);
  const nats = Array.from(take(Uint16Array, n), (millinats) => millinats / 1000);
  const p = Array.from(take(Uint8Array, n * data.k), (root) => (root / data.root) ** 2);
  return { number, first: number * data.page, n, ids, likely, nats, p };
}

let page, spans;  // the page that is shown, and an element for each of its characters
let selected = -1;  // the index in the text of the selected character

function open(number) {
  page = decode(number);
  spans = Array.from(page.ids, (id, i) => {
    const name = data.names[id];
    const isSign = name in data.signs && name !== " ";
    const span = element("span", isSign ? "sign" : "", isSign ? sign(id) : name);
    span.id = `t${page.first + i}`;
    span.setAttribute("role", "option");
    span.style.setProperty("--surprise", surpriseOf(page.nats[i]));
    if (page.first + i === 0) span.className += " first";
    return span;
  });
  find("text").replaceChildren(...spans.flatMap((span, i) =>
    (data.names[page.ids[i]] === "\n" ? [span, document.createElement("br")] : [span])));
  const last = page.first + page.n;
  find("page").textContent = `Page ${number + 1} of ${PAGES}, ` +
    `${data.unit}s ${count(page.first + 1)} to ${count(last)} of ${count(data.n)}`;
  find("slider").value = number + 1;
  find("here").setAttribute("x", (100 * page.first) / data.n);
  find("here").setAttribute("width", (100 * page.n) / data.n);
}

/** Select a character by its index in the text, on any page. */
function choose(t) {
  const number = Math.floor(t / data.page);
  if (page?.number !== number) open(number);
  else mark(selected, false);
  selected = t;
  mark(t, true);
  find("text").setAttribute("aria-activedescendant", `t${t}`);
  show(t - page.first);
}

function mark(t, here) {
  spans[t - page.first].classList.toggle("here", here);
  spans[t - page.first].setAttribute("aria-selected", here);
}

function show(i) {
  const id = page.ids[i], nats = page.nats[i], t = page.first + i;
  find("status").textContent = `${data.unit} ${count(t + 1)} of ${count(data.n)}: “${sign(id)}” ${data.titles[id]}`;
  find("surprise").textContent = t === 0 ? `The first ${data.unit} is not predicted.`
    : `probability ${percent(Math.exp(-nats))}, surprise ${nats.toFixed(2)} nats`;
  const row = (j) => {
    const other = page.likely[i * data.k + j];
    // the probability of the actual id is shown twice, so both are computed from the precise `nats`
    const p = other === id ? Math.exp(-nats) : page.p[i * data.k + j];
    const item = element("li", other === id ? "actual" : "");
    const name = element("b", data.names[other] in data.signs ? "sign" : "", sign(other));
    const label = document.createElement("span");
    label.append(name, other === id ? " ✓" : "");
    item.append(label, bar(p), element("span", "percent", percent(p)));
    return item;
  };
  find("likely").replaceChildren(...Array.from({ length: t && data.k }, (_, j) => row(j)));
}

/** The index of the nearest surprising character before (step -1) or after (step 1) t; else t. */
function surprising(t, step) {
  let { first, n, nats, number } = page;
  for (let at = t + step; at >= 0 && at < data.n; at += step) {
    if (at < first || at >= first + n) ({ first, n, nats, number } = decode(number + step));
    if (nats[at - first] >= data.clamped / 2) return at;
  }
  return t;
}

const within = (t) => Math.min(data.n - 1, Math.max(0, t));

find("text").addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  const moves = {
    ArrowLeft: () => selected - 1,
    ArrowRight: () => selected + 1,
    ArrowUp: () => surprising(selected, -1),
    ArrowDown: () => surprising(selected, 1),
    Home: () => page.first,
    End: () => page.first + page.n - 1,
    PageUp: () => (page.number ? page.first - data.page : selected),
    PageDown: () => (page.number < PAGES - 1 ? page.first + data.page : selected),
  };
  if (!(event.key in moves)) return;
  event.preventDefault();
  choose(within(moves[event.key]()));
  spans[selected - page.first].scrollIntoView({ block: "nearest" });
});

/** Select the character below a mouse, or that was tapped; a finger that moves only scrolls. */
function point(event) {
  const span = event.target.closest("#text span");
  if (span && !(event.type === "pointermove" && event.pointerType === "touch")) choose(Number(span.id.slice(1)));
}
find("text").addEventListener("pointermove", point);
find("text").addEventListener("click", point);
find("curve").addEventListener("click", (event) => {
  const box = find("curve").getBoundingClientRect();
  choose(within(Math.floor((data.n * (event.clientX - box.left)) / box.width)));
});
find("slider").addEventListener("input", (event) => choose((event.target.value - 1) * data.page));

for (let nats = 0; nats <= data.clamped; nats++) {
  const label = nats === 0 ? "0" : `${nats}${nats === data.clamped ? " or more" : ""}`;
  const cell = element("span", "", label);
  cell.style.setProperty("--surprise", surpriseOf(nats));
  find("legend").append(cell);
}
choose(Math.min(1, data.n - 1));
