// The whole model of a page: networks (several in an ensemble) and n-gram counts.

class Model {
  /**
   * Unpack a model.
   *
   * @param {object} header - the content of the element `header`.
   * @param {{weights: string, counts: ?string}} data - the texts of the elements with these ids.
   */
  static async load(header, data) {
    const model = new Model();
    const { model: config, vocabulary, counts } = header;
    const V = vocabulary.size;
    const weights = splitArrays(await unpack(data.weights), header.arrays);
    const prefixes = Array.from({ length: config.ensemble }, (_, m) => `members.${m}.`);
    if (config.ensemble === 1) prefixes[0] = "";
    model.V = V;
    model.T = config.attention_window;
    model.vocabulary = new Vocabulary(vocabulary, header.text);
    model.networks = prefixes.map((prefix) => new Network(config, V, weights, prefix));
    model.mixture = null;
    if (counts) {
      const arrays = splitArrays(await unpack(data.counts), counts.arrays);
      model.mixture = new Mixture(counts, arrays, V);
    }
    return model;
  }

  /** Ids of a window: the longest context of the counts or, without counts, of the network. */
  get windowLength() {
    return this.mixture ? this.mixture.T : this.T;
  }

  /**
   * Predict the id after a text, as `gpt sample` does.
   *
   * @param {number[]} text - ids, at least one.
   * @param {number} generated - how many of the last ids were generated.
   * @returns {{logits: Float64Array, logP: Float64Array}} (V) each; the rules of sampling apply to
   *   the logits.
   */
  after(text, generated) {
    const context = text.slice(-contextLength(text.length, generated, this.T));
    const logits = meanPrediction(this.networks.map((network) => network.after(context)));
    if (!logits.every(Number.isFinite)) {
      throw new Error("the model is broken: its logits are NaN or infinite");
    }
    const network = logSoftmax(logits);
    if (!this.mixture) return { logits, logP: network };
    const { logP } = this.mixture.mix(this.mixture.predict(text), network);
    return { logits: logP.slice(), logP };
  }
}

/**
 * Return how many of the last ids of a text are the context of the next id.
 *
 * The context begins with the last T ids of the prompt and grows by each generated id. When it
 * exceeds T ids, only its last T / 2 are kept.
 *
 * @param {number} length - ids of the text.
 * @param {number} generated - how many of the last ids were generated.
 * @param {number} T - ids of the longest context.
 */
function contextLength(length, generated, T) {
  const kept = Math.max(Math.floor(T / 2), 1);
  const grown = Math.min(length - generated, T) + generated;
  return grown <= T ? grown : kept + ((grown - T - 1) % (T - kept + 1));
}
