
const SHOWN_NUMBERS = 6;  // largest number of elements of a vector that are written out
const SHOWN_KEYS = 8;  // number of positions in the list of the largest attention weights
const MAP_IDS = 256;  // number of last positions of the context in the small map of a head

/** The numbers of one step, from the character that the model reads to what it predicts. */
class InsideView {
  constructor(header, vocabulary, client, text) {
    Object.assign(this, { config: header.model, vocabulary, client, text });
    this.layer = this.head = 0;
    this.ids = [];  // the text whose next character is predicted
    this.skip = 0;  // number of ids at the end of `ids` that the model wrote
    this.isTinted = true;
    this.update = joined(() => this.compute());
    find("inside").addEventListener("toggle", () => this.update());
  }

  /** If the view is open, show how the model predicts the id after `ids`. The model wrote the last `skip` ids. */
  async show(ids, skip = 0) {
    Object.assign(this, { ids, skip });
    await this.update();
  }

  async compute() {
    const { ids, skip, layer, head } = this;
    const isOpen = find("inside").open && ids.length > 0;
    find("steps").hidden = !isOpen;
    if (!isOpen) {
      this.text.tint();
      find("reading").textContent = "Write or measure a text, and click a character to see how the model predicts it.";
      return;
    }
    const step = await this.client.ask({ op: "inside", ids, skip, layer, head });
    if (ids !== this.ids) return;
    const last = this.symbol(ids.at(-1));
    find("reading").textContent = `The model reads “${last}”, and predicts what follows it with these numbers.`;
    find("steps").replaceChildren(
      this.embedding(step, last), this.attention(step), this.mlp(step), this.lens(step),
    );
    this.text.tint(this.isTinted ? step.weights[layer][head] : undefined, step.start);
  }

  symbol(id) {
    return symbol(this.vocabulary.names[id]);
  }

  embedding({ streams }, last) {
    const { ngram, positions } = this.config;
    const added = [ngram > 1 && "the characters before it", positions === "learned" && "its position"].filter(Boolean);
    return this.step("Embedding", `The id ${this.ids.at(-1)} of “${last}” selects a row of ${streams[0].length} learnt ` +
      `numbers.${added.length ? ` Rows for ${added.join(" and ")} are added.` : ""} They begin the residual stream, ` +
      "to which every block adds.", [this.vector("stream", streams[0])]);
  }

  attention({ weights, start, query, scores, output }) {
    const label = document.createElement("label"), tick = document.createElement("input");
    tick.type = "checkbox";
    tick.checked = this.isTinted;
    tick.addEventListener("change", () => {
      this.isTinted = tick.checked;
      this.update();
    });
    label.append(tick, " colour the text above by these weights");
    return this.step("Attention", "Each head compares the query of this position with the key of every position up " +
      "to it; softmax of the scores gives weights, by which it adds up their values. Choose a head:", [
      this.headButtons(weights),
      this.vector("query", query),
      this.keys(scores, weights[this.layer][this.head], start),
      this.vector("output", output),
      label,
    ]);
  }

  /** A button for each head, with a map of its weights: the last position is on the right. */
  headButtons(weights) {
    const grid = element("div", "heads");
    grid.setAttribute("role", "group");
    grid.setAttribute("aria-label", "Heads");
    grid.style.setProperty("--heads", this.config.n_head);
    weights.forEach((row, layer) => {
      grid.append(element("span", "label", `layer ${layer + 1}`));
      row.forEach((head, i) => {
        const button = element("button", "head");
        button.type = "button";
        button.setAttribute("aria-label", `layer ${layer + 1}, head ${i + 1}`);
        button.setAttribute("aria-pressed", layer === this.layer && i === this.head);
        button.append(picture(head.subarray(-MAP_IDS), 1));
        button.addEventListener("click", async () => {
          Object.assign(this, { layer, head: i });
          await this.update();
          find("steps").querySelector("[aria-pressed=true]").focus();
        });
        grid.append(button);
      });
    });
    return grid;
  }

  /** The positions of largest weight, each between its neighbours. */
  keys(scores, weights, start) {
    const order = Array.from(weights.keys()).sort((a, b) => weights[b] - weights[a] || a - b);
    const around = (from, to) => this.ids.slice(Math.max(0, from), to).map((id) => this.symbol(id)).join("");
    const rows = order.slice(0, SHOWN_KEYS).map((i) => {
      const place = document.createElement("th");
      const t = start + i;
      place.append(element("span", "context", around(t - 3, t)), element("b", "", this.symbol(this.ids[t])),
        element("span", "context", around(t + 1, t + 4)));
      return [place, fixed(scores[i]), percent(weights[i]), bar(weights[i])];
    });
    return this.table(["key", "score", "weight", ""], rows);
  }

  mlp({ hidden }) {
    const active = hidden.filter((x) => x > 0).length;
    return this.step("MLP", `The MLP of layer ${this.layer + 1} computes ${hidden.length} numbers from the stream ` +
      `of this position alone; ${active} of them are above 0. A second matrix maps them back to the stream.`,
      [this.vector("activations", hidden)]);
  }

  lens({ streams, lens }) {
    const rows = lens.map((top, i) => {
      const [id, p] = top[0];
      const layer = i === 0 ? "embedding" : `layer ${i}`;
      return [element("th", "", layer), fixed(Math.hypot(...streams[i])), `${this.symbol(id)} ${percent(p)}`, bar(p)];
    });
    return this.step("Logits", "If the model ended after a layer, the output matrix would turn the stream into " +
      "these predictions. Length is that of the stream. The last row is the network’s prediction.",
      [this.table(["after", "length", "likeliest", ""], rows)]);
  }

  step(title, sentence, parts) {
    const section = element("section", "step");
    section.append(element("h3", "", title), element("p", "quiet", sentence), ...parts);
    return section;
  }

  /** A vector: its first numbers, and all of them as a picture. */
  vector(name, numbers) {
    const shown = Array.from(numbers.subarray(0, SHOWN_NUMBERS), (x) => fixed(x)).join(", ");
    const largest = numbers.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    const row = element("div", "vector");
    row.append(element("span", "label", name), picture(numbers, largest),
      element("span", "numbers", shown + (numbers.length > SHOWN_NUMBERS ? ", …" : "")));
    return row;
  }

  table(heading, rows) {
    const table = document.createElement("table"), head = document.createElement("tr");
    head.append(...heading.map((each) => element(each ? "th" : "td", "", each)));
    table.append(head, ...rows.map((cells) => {
      const row = document.createElement("tr");
      row.append(...cells.map((cell) => {
        if (typeof cell === "string") return element("td", "", cell);
        if (cell.tagName === "TH") return cell;
        const made = element("td", "share");
        made.append(cell);
        return made;
      }));
      return row;
    }));
    return table;
  }
}

/** Draw numbers side by side: positive ones in the colour of attention, negative ones in blue. */
function picture(numbers, largest) {
  const canvas = document.createElement("canvas");
  canvas.width = numbers.length;
  canvas.height = 1;
  canvas.setAttribute("aria-hidden", "true");
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).split(" ").map(Number);
  const positive = colour("--heat"), negative = colour("--cold");
  const image = new ImageData(numbers.length, 1);
  numbers.forEach((x, i) => {
    const opacity = Math.round(255 * Math.sqrt(Math.min(1, Math.abs(x) / (largest || 1))));
    image.data.set([...(x < 0 ? negative : positive), opacity], 4 * i);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
