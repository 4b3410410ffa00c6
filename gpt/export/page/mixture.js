// Mix the network's predictions with those of n-gram counts of the train split, as
// gpt/counts/mixture.py does while sampling:
//
//   log p(id) = sum over experts e of  weight_e * log p_e(id)  +  weight_net * log p_net(id) - log Z

const MIN_PROBABILITY = 1e-9; // of an expert

class Mixture {
  /**
   * Count the n-grams of the train split.
   *
   * @param {object} counts - `header.counts`.
   * @param {Object<string, TypedArray>} arrays - by name; `_counts` in html.py lists them.
   * @param {number} V - vocabulary size.
   */
  constructor(counts, arrays, V) {
    this.T = counts.T; // ids of a window, beyond which nothing is counted
    this.orders = counts.orders;
    this.names = counts.names;
    this.gate = arrays;
    const levels = arrays["ids.1"]
      ? Array.from({ length: counts.N + 1 }, (_, i) => ({
        ids: arrays[`ids.${i + 1}`],
        counts: arrays[`counts.${i + 1}`],
        children: arrays[`children.${i + 1}`],
      }))
      : countNgrams(arrays.text, V, counts.N);
    this.tree = new NgramTree(levels, V);
  }

  /**
   * Predict by counts alone.
   *
   * @param {number[]} text - ids, of which at most the last T count.
   * @returns {{experts: Float64Array[], features: number[]}} log-probabilities (V) of each expert;
   *   and how often their contexts were counted: log(1 + x).
   */
  predict(text) {
    const { orders, totals } = this.tree.predict(text);
    const features = [...totals, Math.min(text.length, this.T)];
    const experts = this.orders.map((n) => orders[n].map((q) => Math.log(Math.max(q, MIN_PROBABILITY))));
    return { experts, features: features.map(Math.log1p) };
  }

  /**
   * Mix the predictions of counts and network.
   *
   * @param {{experts: Float64Array[], features: number[]}} predicted - from `predict`.
   * @param {Float64Array} network - log-probabilities (V).
   * @returns {{logP: Float64Array, weights: number[]}} normalised log-probabilities (V); and the
   *   weights of the experts and, last, of the network.
   */
  mix({ experts, features }, network) {
    const best = network.indexOf(largest(network));
    const weights = this.weights([...features, network[best], ...experts.map((p) => p[best])]);
    const sums = network.map((x, id) => {
      let sum = weights[experts.length] * x;
      experts.forEach((p, e) => (sum += weights[e] * p[id]));
      return sum;
    });
    return { logP: logSoftmax(sums), weights };
  }

  /** Map the inputs of the gate, a small network, to the weights of experts and network. */
  weights(inputs) {
    const { mean, scale, hidden_weight, hidden_bias, weight, bias } = this.gate;
    const normal = inputs.map((x, i) => (x - mean[i]) / scale[i]);
    const hidden = Array.from(hidden_bias, (b, h) => {
      const sum = normal.reduce((total, x, i) => total + x * hidden_weight[i * hidden_bias.length + h], b);
      return Math.tanh(sum);
    });
    return Array.from(bias, (b, e) =>
      hidden.reduce((total, x, h) => total + x * weight[h * bias.length + e], b));
  }
}
