
const header = JSON.parse(find("header").textContent);
const vocabulary = new Vocabulary(header.vocabulary);
const client = new ModelClient(find("worker").textContent);
const bars = new Bars(vocabulary, act((id) => branch(id)));
const text = new TextView(vocabulary, act(choose));
const inside = new InsideView(header, vocabulary, client, text);
const isStill = matchMedia("(prefers-reduced-motion: reduce)");

/** The text that the model wrote: its settings, and the number of ids after the last prompt. */
const written = { settings: null, ids: 0 };
let running = null;  // the request that writes or measures, as `ModelClient.start` returns it
let turn = 0;  // number of actions so far; a new action cancels an earlier one that waits
let shown = null;  // log-probabilities of the ids that can be drawn at the selected place, Float64Array (V)

/** Return a function that calls `action`, and shows the message if it fails. */
function act(action) {
  return (...given) => Promise.resolve(action(...given)).catch((error) => {
    notify(`This did not work: ${error.message}`);
    enable();
  });
}

function notify(message) {
  find("notice").textContent = message;
}

/** Show how far an action is. */
function progress(message) {
  find("status").textContent = message;
}

/** Show a result. A screen reader also says it, and the text that was written. */
function report(message, added = "") {
  progress(message);
  find("announcement").textContent = `${message} ${added}`;
}

/** A button that is not enabled keeps the focus, but does nothing. */
function enable() {
  for (const [id, isEnabled] of [["continue", written.ids > 0 && !running], ["stop", running !== null]]) {
    find(id).setAttribute("aria-disabled", !isEnabled);
  }
}

// --- Settings and the link ----------------------------------------------------------------------

const FIELDS = ["prompt", "temperature", "top_k", "top_p", "min_p", "length", "seed", "stops"];

/** Read the form. An empty number is null. */
function settings() {
  return Object.fromEntries(FIELDS.map((name) => {
    const field = find(name);
    if (!["number", "range"].includes(field.type)) return [name, field.value];
    return [name, field.value === "" ? null : field.valueAsNumber];
  }));
}

/** Fill the form. The run's defaults replace missing and invalid values. */
function fill(values) {
  const defaults = { prompt: "", stops: "", ...header.sample, seed: 1 };
  for (const name of FIELDS) {
    const field = find(name);
    field.value = values[name] ?? defaults[name] ?? "";
    if (!field.checkValidity()) field.value = defaults[name] ?? "";
  }
  showTemperature();
}

/** Return the fragment of a link to the settings in the form. If the text was written with them, the link repeats it. */
function fragment() {
  const now = settings();
  const same = FIELDS.every((name) => name === "length" || now[name] === written.settings?.[name]);
  if (same && written.ids) now.length = [...text.from(text.ids.length - written.ids)].length;
  return new URLSearchParams(Object.entries(now).map(([name, value]) => [name, value ?? ""])).toString();
}

async function copyLink() {
  history.replaceState(null, "", `#${fragment()}`);
  try {
    await navigator.clipboard.writeText(location.href);
    report("Copied a link to this page with the text’s prompt, seed and settings.");
  } catch {
    report("The address of this page now has the prompt, the seed and the settings.");
  }
}

async function openLink() {
  const values = new URLSearchParams(location.hash.slice(1));
  fill(Object.fromEntries(values));
  if (values.size) await generate();
}

function showTemperature() {
  find("temperature-value").textContent = find("temperature").valueAsNumber.toFixed(2);
}

// --- Writing and measuring ----------------------------------------------------------------------

/** Encode a text; show which characters were left out, as they are not in the vocabulary. */
function encode(typed) {
  const { ids, outside } = vocabulary.encode(typed);
  const total = [...outside.values()].reduce((a, b) => a + b, 0);
  notify(total ? `Left out characters that are not in the model’s vocabulary: ${listed(outside)}` : "");
  return ids;
}

/** End what is running. Return false if another action began in the meantime. */
async function takeTurn() {
  const mine = ++turn;
  if (running) client.stop(running.id);
  await running?.finished.catch(() => {});  // the action that started it shows the error
  return mine === turn;
}

/** Run a request that has parts; `running` is set until it has finished. */
async function run(message, onPart) {
  running = client.start(message, onPart);
  enable();
  try {
    return await running.finished;
  } finally {
    running = null;
    enable();
  }
}

/** Write a text from a prompt: the one in the form, or `ids` if it was chosen by a bar. */
async function generate(ids = null) {
  if (!find("form").reportValidity()) return;
  if (!(await takeTurn())) return;
  written.settings = settings();
  written.ids = 0;
  const prompt = ids ?? encode(written.settings.prompt);
  if (prompt.length) text.reset(prompt, { prompt: prompt.length });
  else text.reset([vocabulary.start], { hidden: 1 });
  await write();
}

/** Continue the text by the number of characters in the form. */
async function goOn() {
  if (!written.ids || running || !find("form").reportValidity()) return;
  const now = settings();
  if (now.seed !== written.settings.seed) written.ids = 0;
  written.settings = { ...now, prompt: written.settings.prompt };
  await write();
}

async function write() {
  const { stops, seed, length, ...rules } = written.settings;
  const started = performance.now(), from = text.ids.length;
  let top = [], frame = 0;
  const draw = () => {
    frame = 0;
    text.extend();
    if (!isStill.matches && top.length) showBars(top, text.ids.length - 1);
  };
  text.select(-1);
  progress("Writing …");
  const { reason } = await run({
    op: "generate", ids: text.ids.slice(), seed, length, skip: written.ids, rules: { ...header.sample, ...rules },
    stops: stops ? [vocabulary.normalized(unescaped(stops))] : [],
  }, (part) => {
    if (part.op !== "token") return;
    text.push(part.token, part.probability);
    written.ids += 1;
    top = part.top;
    frame ||= requestAnimationFrame(draw);
  });
  cancelAnimationFrame(frame);
  text.extend();
  const added = text.from(from), seconds = (performance.now() - started) / 1000;
  const characters = [...added].length;
  const ending = { stop: ", up to the stop string", stopped: ", stopped", length: "" }[reason];
  const result = `${count(characters)} characters in ${seconds.toFixed(1)} s${ending}`;
  report(`${result}; seed ${seed}, ${meanSurprise(from)}.`, added);
  if (reason !== "stopped") await choose(Infinity);
}

/** Show the surprise of each character of the typed text. */
async function measure() {
  if (!(await takeTurn())) return;
  const ids = encode(find("prompt").value);
  written.ids = 0;
  text.reset(ids);
  bars.show([]);
  if (ids.length < 2) {
    report("Type or paste a text of at least two characters to measure it.");
    return;
  }
  // the first character is not scored; in a model of bytes, its last byte is the context of the next one
  const first = text.texts.findIndex((shownText) => shownText !== "");
  const { reason } = await run({ op: "score", ids: ids.slice(first) }, ({ op, start, probabilities }) => {
    if (op !== "scores") return;
    const from = first + start;
    text.score(from, probabilities);
    progress(`Measured ${count(from + probabilities.length)} of ${count(ids.length)} ${vocabulary.unit}s …`);
  });
  if (reason === "stopped") return;
  report(`${count([...text.from(0)].length)} characters, ${meanSurprise(first + 1)}. ` +
    "The stronger the colour of a character, the less the model expected it.");
  await choose(first + 1);
}

/** Describe the mean surprise of the ids from `start` on, in nats per character. */
function meanSurprise(start) {
  let sum = 0;
  for (let t = start; t < text.ids.length; t++) sum -= Math.log(text.p[t]);
  const characters = Math.max(1, [...text.from(start)].length);
  return `mean surprise ${(sum / characters).toFixed(3)} nats per character`;
}

// --- A place in the text ------------------------------------------------------------------------

/** Select a place; Infinity: the place after the text, which may still grow. */
async function choose(place) {
  if (!(await takeTurn())) return;
  text.select(Math.min(place, text.ids.length));
  await showPlace();
}

/** Show what could stand at the selected place, and the inside view. */
const showPlace = joined(async () => {
  const place = text.selected, ids = text.ids.slice(0, place);
  if (place < 0) return;
  const skip = Math.max(0, written.ids - (text.ids.length - place));  // number of ids that the model wrote
  if (!ids.length) {
    shown = null;
    bars.show([]);
    find("place").textContent = `The first ${vocabulary.unit} is not predicted: nothing stands before it.`;
  } else {
    const { probabilities } = await client.ask({ op: "distribution", ids, skip });
    if (text.selected !== place) return;
    shown = Float64Array.from(probabilities, Math.log);
    cool();
  }
  await inside.show(ids, skip);
});

/** Apply the temperature to the probabilities at the selected place. */
function cool() {
  showTemperature();
  if (!shown || text.selected < 0) return;
  showBars(likeliest(shown, find("temperature").valueAsNumber), text.selected);
}

function showBars(top, place) {
  const actual = text.ids[place], number = count(place - text.hidden + 1);
  const p = text.p[place];
  const unit = vocabulary.isBytes ? "Byte" : "Character";
  find("place").textContent = actual === undefined ? `${unit} ${number}, after the text`
    : `${unit} ${number}: “${symbol(vocabulary.names[actual])}”` +
      (p >= 0 ? `, surprise ${(-Math.log(p)).toFixed(2)} nats` : "");
  bars.place = place;
  bars.show(top, actual);
}

/** Cut the text at the place of the bars, append `id`, and continue the result as a new prompt. */
async function branch(id) {
  const ids = [...text.ids.slice(text.hidden, bars.place), id];
  find("prompt").value = vocabulary.decode(ids);
  notify("");
  await generate(ids);
}

// --- Events -------------------------------------------------------------------------------------

find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  act(generate)();
});
find("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("form").requestSubmit();
});
find("another").addEventListener("click", act(() => {
  find("seed").value = ((find("seed").valueAsNumber || 0) + 1) % Number.MAX_SAFE_INTEGER;
  return generate();
}));
find("continue").addEventListener("click", act(goOn));
find("stop").addEventListener("click", act(() => running && choose(Infinity)));
find("measure").addEventListener("click", act(measure));
find("link").addEventListener("click", act(copyLink));
find("temperature").addEventListener("input", cool);
window.addEventListener("hashchange", act(openLink));

find("temperature").max = Math.max(2, header.sample.temperature);
enable();
act(async () => {
  const loading = client.ask({ op: "load", header, weights: find("weights").textContent });
  const opened = act(openLink)();
  await loading;
  if (!running) report("The model is ready.");
  await opened;
})();
