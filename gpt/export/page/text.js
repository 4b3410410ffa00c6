
const PAGE_IDS = 4096;  // number of ids that are shown at once
const CLAMPED_NATS = 6;  // surprise with the strongest colour, in nats

const percent = (p) => (p < 0.0005 ? "< 0.1 %" : `${(100 * p).toFixed(p < 0.1 ? 1 : 0)} %`);

/**
 * The text on the page: a span for each id, coloured by surprise.
 *
 * A place t is the index of an id, or `ids.length`: the place after the text.
 */
class TextView {
  /**
   * @param {Vocabulary} vocabulary
   * @param {function(number)} onChoose is called with a place that was clicked, or reached by a key
   */
  constructor(vocabulary, onChoose) {
    this.vocabulary = vocabulary;
    this.box = find("text");
    this.end = element("span", "end");
    this.end.setAttribute("role", "option");
    this.end.setAttribute("aria-label", "after the text");
    this.reset([]);
    this.box.addEventListener("keydown", (event) => this.press(event, onChoose));
    this.box.addEventListener("click", (event) => {
      const span = event.target.closest("#text span");
      if (span) onChoose(Number(span.id.slice(1)));
    });
    find("slider").addEventListener("input", (event) => this.open(event.target.value - 1));
  }

  /**
   * Show another text.
   * @param {number[]} ids the text
   * @param {{hidden: number, prompt: number}} lengths how many of the first ids are not shown, such as
   *   the start of an empty prompt, and how many are the prompt
   */
  reset(ids, { hidden = 0, prompt = hidden } = {}) {
    this.ids = [];
    this.p = [];  // the probability of each id; NaN: unknown
    this.texts = [];  // the characters that each id shows; the last byte of a character shows it
    this.hidden = hidden;
    this.prompt = prompt;
    this.selected = -1;
    this.decode = this.vocabulary.decoder();
    for (const id of ids) this.push(id, NaN);
    this.open(0);
  }

  /** Append an id of probability `p`; `extend` shows it. */
  push(id, p) {
    this.ids.push(id);
    this.p.push(p);
    this.texts.push(this.ids.length > this.hidden ? this.decode(id) : "");
  }

  /** Set the probabilities of the ids from `start` on. */
  score(start, probabilities) {
    probabilities.forEach((p, i) => {
      this.p[start + i] = p;
      const span = this.spans[start + i - this.first];
      if (span) this.colour(span, start + i);
    });
  }

  /** Return the text of the ids from `start` on. */
  from(start) {
    return this.texts.slice(start).join("");
  }

  /** Show a page of the text, counted from 0. */
  open(page) {
    this.page = page;
    this.first = Math.max(page * PAGE_IDS, this.hidden);
    this.spans = [];
    this.box.replaceChildren(this.end);
    this.append();
  }

  /** Show the ids that were pushed; go to the last page. */
  extend() {
    const last = Math.floor(Math.max(0, this.ids.length - 1) / PAGE_IDS);
    if (this.page === last) this.append();
    else this.open(last);
    this.box.scrollTop = this.box.scrollHeight;
  }

  append() {
    const to = Math.min(this.ids.length, (this.page + 1) * PAGE_IDS);
    const added = [];
    for (let t = this.first + this.spans.length; t < to; t++) {
      const span = this.span(t);
      this.spans.push(span);
      added.push(span, ...(this.texts[t] === "\n" ? [document.createElement("br")] : []));
    }
    this.end.before(...added);
    this.end.id = `t${this.ids.length}`;
    this.end.hidden = to < this.ids.length;
    this.mark(this.selected, true);
    const pages = Math.ceil(this.ids.length / PAGE_IDS);
    find("paging").hidden = pages < 2;
    find("slider").max = pages;
    find("slider").value = this.page + 1;
    find("page").textContent = `Page ${this.page + 1} of ${pages}`;
  }

  span(t) {
    const text = this.texts[t];  // several characters if this byte shows that the bytes before it are not UTF-8
    const shown = [...text].map((c) => (c === " " ? c : symbol(c))).join("");
    const span = element("span", shown === text ? "" : "sign", shown);
    span.id = `t${t}`;
    span.setAttribute("role", "option");
    if (t < this.prompt) span.classList.add("prompt");
    if (!text.trim()) span.setAttribute("aria-label", spoken(this.vocabulary.names[this.ids[t]]));
    this.colour(span, t);
    return span;
  }

  colour(span, t) {
    const surprise = -Math.log(this.p[t]);
    if (surprise >= 0) span.style.setProperty("--surprise", Math.min(1, surprise / CLAMPED_NATS).toFixed(3));
  }

  /** Colour the text by attention weights of the ids from `start` on; without weights, by surprise. */
  tint(weights, start) {
    this.box.classList.toggle("attending", weights !== undefined);
    const [least, , most] = find("legend").children;
    least.textContent = weights ? "no attention" : "likely";
    most.textContent = weights ? "all attention" : "surprising";
    if (!weights) return;
    this.spans.forEach((span, i) => {
      span.style.setProperty("--weight", Math.sqrt(weights[this.first + i - start] ?? 0).toFixed(3));
    });
  }

  /** Select a place, on any page. */
  select(t) {
    this.mark(this.selected, false);
    this.selected = t;
    const page = Math.floor(Math.max(0, Math.min(t, this.ids.length - 1)) / PAGE_IDS);
    if (page !== this.page) this.open(page);
    this.mark(t, true);
    this.box.setAttribute("aria-activedescendant", `t${t}`);
  }

  mark(t, isHere) {
    const span = t === this.ids.length ? this.end : this.spans[t - this.first];
    span?.classList.toggle("here", isHere);
    span?.setAttribute("aria-selected", isHere);
  }

  press(event, onChoose) {
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    const t = this.selected < 0 ? this.ids.length : this.selected;
    const to = {
      ArrowLeft: t - 1, ArrowRight: t + 1, Home: 0, End: this.ids.length,
      PageUp: t - PAGE_IDS, PageDown: t + PAGE_IDS,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    onChoose(Math.max(this.hidden, Math.min(to, this.ids.length)));
    (this.spans[this.selected - this.first] ?? this.end).scrollIntoView({ block: "nearest" });
  }
}
