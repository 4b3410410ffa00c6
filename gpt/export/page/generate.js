// Continue a text, and score a text.

/** Holds back the last tokens of a text, which may be the beginning of a stop string. */
class StopBuffer {
  /**
   * @param {string[]} stops - strings that end the text.
   * @param {number} length - number of characters after which the text ends.
   * @param {function(object)} send - called with each token that is not held back any more.
   */
  constructor(stops, length, send) {
    this.stops = stops;
    this.remaining = length;
    this.send = send;
    this.longest = Math.max(1, ...stops.map((stop) => [...stop].length));
    this.tokens = [];
    this.characters = []; // the characters of `tokens`
  }

  /** Add a token; return the reason if it ends the text, else null. */
  push(token) {
    this.tokens.push(token);
    for (const character of token.text) {
      this.characters.push(character);
      this.remaining--;
      const text = this.characters.join("");
      const lengths = this.stops.filter((s) => text.endsWith(s)).map((s) => [...s].length);
      if (lengths.length) return this.release(Math.max(...lengths), "stop");
      if (this.remaining === 0) return this.release(0, "length");
    }
    return this.release(this.longest - 1, null);
  }

  /**
   * Send the tokens of all characters but the last `kept`; return `reason`.
   *
   * In a model of bytes, a token can complete two characters. They are sent together or, if the
   * text ends between them, the second one is dropped.
   */
  release(kept, reason) {
    while (this.characters.length > kept) {
      const count = [...this.tokens[0].text].length;
      const free = this.characters.length - kept;
      if (count > free && reason === null) break;
      const text = this.characters.splice(0, Math.min(count, free)).join("");
      this.send({ ...this.tokens.shift(), text });
    }
    return reason;
  }
}

/**
 * Continue a text as `gpt sample` does with the same seed.
 *
 * @param {Model} model
 * @param {object} request - {ids, seed, rules, length, stops, skip}; worker.js describes it.
 * @param {function(object)} send - called with each token.
 * @param {function(): Promise<boolean>} isStopped - also processes waiting messages.
 * @returns {Promise<string>} why the text ended: "length", "stop" or "stopped".
 */
async function generate(model, request, send, isStopped) {
  const { ids, seed, rules, length, stops = [], skip = 0 } = request;
  const text = Array.from(ids);
  const uniforms = new Uniforms(seed, skip);
  const decode = model.vocabulary.decoder();
  ids.slice(-3).forEach(decode); // in a model of bytes, the last ids may begin a character
  const buffer = new StopBuffer(stops, length, send);
  let reason = length > 0 ? null : "length";
  while (reason === null) {
    if (await isStopped()) return buffer.release(0, "stopped");
    const { logits, logP } = model.after(text, text.length - ids.length + skip);
    const token = choose(logits, uniforms.next(), rules);
    text.push(token);
    reason = buffer.push({
      token,
      text: decode(token),
      probability: Math.exp(logP[token]),
      top: likeliest(logits, rules.temperature),
    });
  }
  return reason;
}

/**
 * Compute the probability of each id of a text given the ids before it in its window.
 *
 * The windows are those of a val loss: consecutive, of T ids each.
 *
 * @param {Model} model
 * @param {number[]} ids
 * @param {function(object)} send - called with {start, probabilities} for each part of the text.
 * @param {function(): Promise<boolean>} isStopped - also processes waiting messages.
 * @returns {Promise<string>} why it ended: "length" (all is done) or "stopped".
 */
async function score(model, ids, send, isStopped) {
  const { V, T, networks } = model;
  send({ start: 0, probabilities: Float32Array.of(NaN) });
  let start = 0;
  while (start + 1 < ids.length) {
    if (await isStopped()) return "stopped";
    const end = Math.min(start + PASS_IDS, start - (start % T) + T, ids.length - 1);
    if (start % T === 0) networks.forEach((network) => network.clear());
    const logits = networks.map((network) => network.append(ids.slice(start, end), true));
    const probabilities = new Float32Array(end - start);
    for (let i = 0; i < end - start; i++) {
      const rows = logits.map((each) => each.subarray(i * V, (i + 1) * V));
      probabilities[i] = Math.exp(logSoftmax(meanPrediction(rows))[ids[start + i + 1]]);
    }
    send({ start: start + 1, probabilities });
    start = end;
  }
  return "length";
}
