// Counts of the n-grams of the train split as a tree, as in gpt/counts/ngram_tree.py.
//
// Level j has a node for each distinct n-gram of j ids, in ascending order, first id first. The
// children of a node are the n-grams of the next level that append one id: they are adjacent.

const DEFAULT_DISCOUNTS = [0.5, 1, 1.5]; // for texts too short to estimate them
const MAX_DISCOUNTS = [1, 1.9, 2.9];

/**
 * Count the n-grams of 1 to N + 1 ids in a text.
 *
 * Positions are sorted by the last id, then by the id before it, and so on: after j passes they are
 * in the order of the j-grams that end there. In the order N + 1, n-grams are counted. In lower
 * orders, distinct ids before an n-gram are counted (the continuation counts of Kneser-Ney). The
 * first N positions end no (N + 1)-gram and are counted in no order.
 *
 * @param {Uint8Array|Uint16Array} text - ids.
 * @param {number} V - number of distinct ids.
 * @param {number} N - ids of the longest context.
 * @returns {{ids, counts, children}[]} for each level, the last id of each node's n-gram, its
 *   count, and its number of children.
 */
function countNgrams(text, V, N) {
  const length = text.length;
  const levels = [];
  let order = Uint32Array.from({ length }, (_, p) => p);
  let ranks = new Uint32Array(length); // of the n-gram that ends at each position
  for (let j = 1; j <= N + 1; j++) {
    order = sortedBy(order, text, j - 1, V);
    const level = { ids: new text.constructor(order.length), counts: new Uint32Array(order.length) };
    const longerRanks = new Uint32Array(length);
    const parents = j > 1 ? new Uint32Array(levels[j - 2].ids.length) : null;
    let size = 0;
    let isCounted = true; // whether the current node was counted in the level before
    let [first, shorter] = [-1, -1]; // the first id of the current n-gram, and the rank of the rest
    for (let i = 0; i < order.length; i++) {
      const p = order[i];
      const rank = ranks[p];
      if (text[p - j + 1] !== first || rank !== shorter) {
        [first, shorter] = [text[p - j + 1], rank];
        level.ids[size++] = text[p];
        if (parents) parents[ranks[p - 1]]++;
        isCounted = false;
      }
      longerRanks[p] = size - 1;
      if (p < N) continue;
      if (j === N + 1) level.counts[size - 1]++;
      if (!isCounted && j > 1) levels[j - 2].counts[rank]++;
      isCounted = true;
    }
    level.ids = level.ids.slice(0, size);
    level.counts = level.counts.slice(0, size);
    if (parents) levels[j - 2].children = parents;
    levels.push(level);
    ranks = longerRanks;
  }
  levels[N].children = new Uint32Array(levels[N].ids.length);
  return levels;
}

/**
 * Return the positions p >= back, stably sorted by keys[p - back]. This is counting sort.
 *
 * @param {Uint32Array} positions
 * @param {TypedArray} keys - numbers from 0 to `size` - 1.
 * @param {number} back
 * @param {number} size
 */
function sortedBy(positions, keys, back, size) {
  const starts = new Uint32Array(size + 1);
  let total = 0;
  for (let i = 0; i < positions.length; i++) {
    if (positions[i] < back) continue;
    starts[keys[positions[i] - back] + 1]++;
    total++;
  }
  for (let key = 1; key <= size; key++) starts[key] += starts[key - 1];
  const sorted = new Uint32Array(total);
  for (let i = 0; i < positions.length; i++) {
    const p = positions[i];
    if (p >= back) sorted[starts[keys[p - back]]++] = p;
  }
  return sorted;
}

/** Predictions by interpolated Kneser-Ney smoothing; gpt/counts/kneser_ney.py has the formula. */
class NgramTree {
  /**
   * @param {{ids, counts, children}[]} levels - from `countNgrams`.
   * @param {number} V - number of distinct ids.
   */
  constructor(levels, V) {
    this.V = V;
    this.N = levels.length - 1;
    const discounts = levels.map(({ counts }) => discountsOf(counts));
    this.levels = levels.map(({ ids, children }) => {
      const size = ids.length;
      const node = {
        ids,
        first: new Uint32Array(size + 1), // the index of the first child
        totals: new Float32Array(size), // the number of ids counted after the n-gram
        shares: new Float32Array(size).fill(1), // the weight of the shorter context's prediction
        probabilities: new Float32Array(size), // (count - discount) / total of the context
      };
      for (let i = 0; i < size; i++) node.first[i + 1] = node.first[i] + children[i];
      return node;
    });
    for (let level = 0; level < this.N; level++) {
      const { first, totals, shares } = this.levels[level];
      const { probabilities } = this.levels[level + 1];
      const { counts } = levels[level + 1];
      for (let i = 0; i < totals.length; i++) {
        let [total, freed] = [0, 0];
        for (let child = first[i]; child < first[i + 1]; child++) {
          total += counts[child];
          freed += discounts[level + 1][Math.min(counts[child], 3)];
        }
        totals[i] = total;
        if (!total) continue;
        shares[i] = freed / total;
        for (let child = first[i]; child < first[i + 1]; child++) {
          const count = counts[child];
          probabilities[child] = (count - discounts[level + 1][Math.min(count, 3)]) / total;
        }
      }
    }
    this.unigrams = this.withoutContext(levels[0], discounts[0]);
  }

  /** Return the probability of each id without context (V). */
  withoutContext({ ids, counts }, discounts) {
    let [total, freed] = [0, 0];
    for (const count of counts) {
      total += count;
      freed += discounts[Math.min(count, 3)];
    }
    const p = new Float64Array(this.V).fill(total ? freed / total / this.V : 1 / this.V);
    ids.forEach((id, i) => {
      if (total) p[id] += (counts[i] - discounts[Math.min(counts[i], 3)]) / total;
    });
    return p;
  }

  /**
   * Predict the id after a text.
   *
   * @param {number[]} text - ids; only the last N are used.
   * @returns {{orders: Float64Array[], totals: number[]}} the distributions (V) after the last 0 to
   *   N ids, and how many ids were counted after the last 1 to N ids.
   */
  predict(text) {
    const orders = [this.unigrams];
    const totals = [];
    for (let n = 1; n <= this.N; n++) {
      const node = n <= text.length ? this.find(text, n) : -1;
      totals.push(node < 0 ? 0 : this.levels[n - 1].totals[node]);
      if (node < 0) {
        orders.push(orders[n - 1]);
        continue;
      }
      const { first, shares } = this.levels[n - 1];
      const { ids, probabilities } = this.levels[n];
      const p = orders[n - 1].map((lower) => lower * shares[node]);
      for (let i = first[node]; i < first[node + 1]; i++) p[ids[i]] += probabilities[i];
      orders.push(p);
    }
    return { orders, totals };
  }

  /** Return the index in its level of the node of the last n ids of a text; -1 if it is missing. */
  find(text, n) {
    let [start, end] = [0, this.levels[0].ids.length];
    let node = -1;
    for (let level = 0; level < n; level++) {
      const { ids, first } = this.levels[level];
      const id = text[text.length - n + level];
      let [low, high] = [start, end];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (ids[middle] < id) low = middle + 1;
        else high = middle;
      }
      if (low === end || ids[low] !== id) return -1;
      node = low;
      [start, end] = [first[node], first[node + 1]];
    }
    return node;
  }
}

/** Return what is subtracted from counts of 0, 1, 2, and 3 or more, in modified Kneser-Ney. */
function discountsOf(counts) {
  const n = [0, 0, 0, 0, 0]; // how many n-grams occur 0 to 4 times
  for (const count of counts) if (count <= 4) n[count]++;
  const [, n1, n2, n3, n4] = n;
  if (!(n1 && n2 && n3 && n4)) return [0, ...DEFAULT_DISCOUNTS];
  const y = n1 / (n1 + 2 * n2);
  const estimates = [1 - (2 * y * n2) / n1, 2 - (3 * y * n3) / n2, 3 - (4 * y * n4) / n3];
  return [0, ...estimates.map((d, i) => Math.min(Math.max(d, 0.1), MAX_DISCOUNTS[i]))];
}
