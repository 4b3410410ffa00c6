
const data = JSON.parse(find("data").textContent);
const characters = data.text;
const T = characters.length;
const bytes = Uint8Array.from(atob(data.weights), (c) => c.charCodeAt(0));
const chosen = { layer: data.chosen[0], head: data.chosen[1], t: T - 1, pinned: false };

/** The attention weight of query position t on key position s; attention_page in attention_views.py has the order. */
function weight(layer, head, t, s) {
  const i = ((layer * data.heads + head) * T * (T + 1)) / 2 + (t * (t + 1)) / 2 + s;
  return (bytes[2 * i] + 256 * bytes[2 * i + 1]) / 65535;
}

const sign = (c) => data.signs[c] ?? c;
const mean = (numbers) => (numbers.length ? numbers.reduce((a, b) => a + b) / numbers.length : null);
const signed = (number) => (number >= 0.0005 ? "+" : "") + fixed(number, 3);
const headName = (head) => `head ${head + 1}`;
const percent = (fraction) => (100 * fraction).toFixed(1) + " %";
const quoted = (t) => `“${sign(characters[t])}”`;

function shown(name, c) {
  return element(name, c in data.signs ? "sign" : "", sign(c));
}

// --- Elements that are made once ---------------------------------------------------------------

const spans = characters.map((c, t) => {
  const span = shown("span", c);
  span.id = `t${t}`;
  span.setAttribute("role", "option");
  // not pointerover: a page that shifts below a resting pointer would undo what the keyboard chose
  span.addEventListener("pointermove", (event) => hover(event, t));
  span.addEventListener("click", () => pin(t));
  find("text").append(span, ...(c === "\n" ? [document.createElement("br")] : []));
  return span;
});

const loss = mean(data.losses);
/** By how much the text's loss rises without each head. */
const costs = data.without.map((heads) => heads.map((without) =>
  (loss === null ? null : mean(without) - loss)));
const highest = Math.max(1e-9, ...costs.flat());
const scores = [  // shown below each head: name, numbers, their format, the strength of their colour
  ["cost", costs, signed, (cost) => Math.max(0, cost / highest)],
  ["prev.", data.previous, (score) => fixed(score, 2), (score) => score],
  ["ind.", data.induction, (score) => fixed(score, 2), (score) => score],
];

const maps = Array.from({ length: data.layers }, () => []);  // [layer][head]: a canvas

/** The maps, layers down, heads across, each with its scores below. */
function headGrid() {
  const grid = element("div", "heads");
  grid.style.gridTemplateColumns = `auto repeat(${data.heads}, minmax(2.4rem, 4.5rem))`;
  const heads = Array.from({ length: data.heads }, (_, i) => i);
  grid.append(element("span", "label"), ...heads.map((head) => element("span", "label", head + 1)));
  for (let layer = 0; layer < data.layers; layer++) {
    grid.append(element("span", "label name", layer + 1));
    for (const head of heads) {
      const canvas = document.createElement("canvas");
      canvas.id = `map${layer}-${head}`;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `layer ${layer + 1}, ${headName(head)}`);
      canvas.addEventListener("click", () => choose({ layer, head }));
      grid.append(canvas);
      maps[layer].push(canvas);
    }
    scores.forEach(([name, numbers, write, strength], i) => {
      const last = i === scores.length - 1 ? " last" : "";
      grid.append(element("span", "label name" + last, name));
      for (const head of heads) {
        const number = numbers[layer][head];
        const score = element("span", "score" + last, write(number));
        score.style.setProperty("--strength", 0.8 * strength(number));
        score.addEventListener("click", () => choose({ layer, head }));
        grid.append(score);
      }
    });
  }
  return grid;
}
find("grid").append(headGrid());

// a long text needs a wide map to label each character
find("side").classList.toggle("wide", T > 48);
const large = document.querySelector("#plot canvas");

/** Label each character of the map, or every n-th one where a character is under 6 pixels wide. */
function label() {
  const every = Math.ceil((6 * T) / large.clientWidth);
  const room = (every * large.clientWidth) / T;
  for (const [axis, size] of [["queries", room], ["keys", 1.4 * room]]) {  // letters are narrow
    find(axis).style.fontSize = `${Math.min(10, size)}px`;
    find(axis).replaceChildren(...characters.map((c, t) =>
      element("span", "", t % every ? "" : sign(c))));
  }
}
new ResizeObserver(label).observe(large);

/** The weights of one head as a picture of T x T points, as opaque as their square root. */
function paint(canvas, layer, head) {
  const heat = getComputedStyle(document.documentElement).getPropertyValue("--heat");
  const [red, green, blue] = heat.split(" ").map(Number);
  canvas.width = canvas.height = T;
  const image = new ImageData(T, T);
  const points = new DataView(image.data.buffer);
  for (let t = 0; t < T; t++) {
    for (let s = 0; s <= t; s++) {
      const opacity = Math.round(255 * Math.sqrt(weight(layer, head, t, s)));
      points.setUint32(4 * (t * T + s), ((red << 24) | (green << 16) | (blue << 8) | opacity) >>> 0);
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function paintAll() {
  maps.forEach((row, layer) => row.forEach((canvas, head) => paint(canvas, layer, head)));
  paint(large, chosen.layer, chosen.head);
}

// --- Elements that change with the selection ---------------------------------------------------

/** What a mouse points at is selected, unless a character is pinned; a finger only scrolls. */
function hover(event, t) {
  if (!chosen.pinned && event.pointerType !== "touch") choose({ t });
}

/** Pin a character; the pinned one again: unpin it. */
function pin(t) {
  choose({ t, pinned: !(chosen.pinned && chosen.t === t) });
}

function choose(change) {
  const before = { ...chosen };
  Object.assign(chosen, change);
  if (before.layer !== chosen.layer || before.head !== chosen.head) {
    paint(large, chosen.layer, chosen.head);
  }
  show();
}

/** Many heads do not fit into their box: scroll to the chosen one. */
function showHead() {
  maps[chosen.layer][chosen.head].scrollIntoView({ block: "nearest", inline: "nearest" });
}

function show() {
  const { layer, head, t, pinned } = chosen;
  const weights = characters.map((_, s) => (s <= t ? weight(layer, head, t, s) : 0));
  spans.forEach((span, s) => {
    span.style.setProperty("--weight", Math.sqrt(weights[s]));
    span.classList.toggle("masked", s > t);
    span.classList.toggle("here", s === t);
    span.classList.toggle("pinned", s === t && pinned);
    span.setAttribute("aria-selected", s === t);
  });
  maps.flat().forEach((canvas) => {
    const here = canvas.id === `map${layer}-${head}`;
    canvas.classList.toggle("here", here);
    canvas.setAttribute("aria-current", here);
  });
  find("text").setAttribute("aria-activedescendant", `t${t}`);
  find("name").textContent = `Layer ${layer + 1}, ${headName(head)}`;
  find("status").textContent =
    `Layer ${layer + 1}, ${headName(head)}, query ${t + 1} of ${T}: ${quoted(t)}` +
    (pinned ? ", pinned (Esc unpins)" : "");
  find("row").style.top = `${(100 * t) / T}%`;
  find("row").style.height = `${100 / T}%`;
  find("cell").textContent = "rows: query, columns: key";
  showEffect();
  showSources(weights);
  showPredictions(t);
}

/** What the head's removal costs, on the text and at the selected character. */
function showEffect() {
  const { layer, head, t } = chosen;
  const change = (before, after) => `${fixed(before, 3)}, without this head ${fixed(after, 3)}`;
  const without = data.without[layer][head];
  const parts = [];
  if (loss !== null) parts.push(`Loss on this text ${change(loss, mean(without))}.`);
  if (t < T - 1) parts.push(`Of the next character ${change(data.losses[t], without[t])}.`);
  find("effect").textContent = parts.join(" ");
}

/** The key positions of largest weight, each character between its neighbours. */
function showSources(weights) {
  const order = weights.map((_, s) => s).sort((a, b) => weights[b] - weights[a] || a - b);
  const top = order.slice(0, 8).filter((s) => weights[s] >= 0.0005);
  const around = (from, to) => characters.slice(Math.max(0, from), to).map(sign).join("");
  find("sources").replaceChildren(...top.map((s) => {
    const place = element("span", "");
    place.append(element("span", "context", around(s - 3, s).padStart(3)),
      shown("b", characters[s]), element("span", "context", around(s + 1, s + 4)));
    const item = document.createElement("li");
    item.append(place, bar(weights[s]), element("span", "percent", percent(weights[s])));
    return item;
  }));
}

/** The likeliest next characters, and the actual one. */
function showPredictions(t) {
  const follows = characters[t + 1];
  find("predictions").replaceChildren(...data.next[t].map(([c, p]) => {
    const item = element("li", c === follows ? "actual" : "");
    const name = document.createElement("span");
    name.append(shown("b", c), c === follows ? " ✓" : "");
    item.append(name, bar(p), element("span", "percent", percent(p)));
    return item;
  }));
  if (follows === undefined) {
    find("actual").textContent = "The text ends here.";
  } else {
    const [p, rank] = data.actual[t];
    find("actual").textContent = `Actual next character ${quoted(t + 1)}: ${percent(p)}, rank ${rank}`;
  }
}

// --- Pointer and keyboard ----------------------------------------------------------------------

/** The query and the key position under the pointer. */
function cellAt(event) {
  const box = large.getBoundingClientRect();
  const place = (offset, size) => Math.min(T - 1, Math.max(0, Math.floor((T * offset) / size)));
  return [place(event.clientY - box.top, box.height), place(event.clientX - box.left, box.width)];
}

find("plot").addEventListener("pointermove", (event) => {
  const [t, s] = cellAt(event);
  hover(event, t);
  find("cell").textContent = s > t
    ? `${quoted(t)} cannot attend to ${quoted(s)}, which comes later`
    : `${quoted(t)} to ${quoted(s)}: weight ${percent(weight(chosen.layer, chosen.head, t, s))}`;
});
find("plot").addEventListener("click", (event) => pin(cellAt(event)[0]));

const within = (value, count) => Math.min(count - 1, Math.max(0, value));
document.addEventListener("keydown", (event) => {
  // Alt+← belongs to the browser; but many keyboards need Alt or AltGr to type [
  if (event.metaKey || ((event.ctrlKey || event.altKey) && event.key.length > 1)) return;
  const { layer, head, t } = chosen;
  const change = {
    ArrowLeft: { t: within(t - 1, T) },
    ArrowRight: { t: within(t + 1, T) },
    ArrowUp: { layer: within(layer - 1, data.layers) },
    ArrowDown: { layer: within(layer + 1, data.layers) },
    "[": { head: within(head - 1, data.heads) },
    "]": { head: within(head + 1, data.heads) },
    Home: { t: 0 },
    End: { t: T - 1 },
    Enter: { pinned: true },
    Escape: { pinned: false },
  }[event.key];
  if (!change) return;
  event.preventDefault();
  choose(change);
  if ("head" in change) showHead();
  if ("t" in change) spans[change.t].scrollIntoView({ block: "nearest" });
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintAll);
find("run").textContent = `${data.title}, ${data.layers} × ${data.heads} heads` +
  (data.unit === "byte" ? "; characters here are bytes of UTF-8" : "");
document.title = `Attention: ${data.title}`;
paintAll();
show();
