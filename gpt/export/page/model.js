// The model of a page: one network, or several in an ensemble, whose probabilities are averaged.

class Model {
  /**
   * @param {object} header - the content of the element `header`.
   * @param {string} weights - the content of the element `weights`.
   */
  constructor(header, weights) {
    const { model: config, vocabulary } = header;
    const arrays = unpack(weights, header.arrays);
    const prefixes = Array.from({ length: config.ensemble }, (_, m) => `members.${m}.`);
    if (config.ensemble === 1) prefixes[0] = "";
    this.V = vocabulary.size;
    this.T = config.T;
    this.vocabulary = new Vocabulary(vocabulary);
    this.networks = prefixes.map((prefix) => new Network(config, this.V, arrays, prefix));
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
    return { logits, logP: logSoftmax(logits) };
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
