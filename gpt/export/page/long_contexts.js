// Which ids followed a long context in the train split, as in gpt/counts/long_contexts.py.
//
// The places of the text are sorted by the ids before them, of which the last id is compared first.
// Places that follow the same ids are therefore adjacent (a suffix array of the reversed text).

const NEAREST = 32; // places that are compared with each context
const WINDOW_DISCOUNT = 0.6; // subtracted from each count

class LongContexts {
  /**
   * @param {Uint8Array|Uint16Array} text - ids of the train split.
   * @param {number} V - number of distinct ids.
   * @param {number[]} orders - numbers of ids in the contexts, ascending.
   * @param {number} compared - how many ids before each place are compared.
   */
  constructor(text, V, orders, compared) {
    this.text = text;
    this.V = V;
    this.orders = orders;
    this.longest = orders[orders.length - 1];
    // the ids before place p are text[p - 1], text[p - 2], ...; V stands for missing ones
    const padded = new Uint16Array(compared + text.length).fill(V);
    padded.set(text, compared);
    let places = Uint32Array.from({ length: text.length - 1 }, (_, i) => compared + text.length - 1 - i);
    const base = V + 1;
    if (base ** 2 <= 65536) { // sort by two ids at once
      const pairs = padded.map((id, i) => id * base + (i ? padded[i - 1] : V));
      for (let back = compared; back >= 2; back -= 2) places = sortedBy(places, pairs, back - 1, base ** 2);
    }
    const single = base ** 2 <= 65536 ? compared % 2 : compared;
    for (let back = single; back >= 1; back--) places = sortedBy(places, padded, back, base);
    places = places.map((place) => place - compared);
    this.places = places;
  }

  /**
   * Return how often each id followed the last n ids of a text, for each n of `orders`.
   *
   * @param {number[]} text - ids, at least one.
   * @returns {Float64Array[]} counts (V) by order.
   */
  countsAfter(text) {
    const found = this.search(text);
    const near = [];
    for (let i = found - NEAREST / 2; i < found + NEAREST / 2; i++) {
      if (i >= 0 && i < this.places.length) near.push(this.places[i]);
    }
    return this.orders.map((n) => {
      const counts = new Float64Array(this.V);
      for (const place of near) {
        if (this.compare(place, text, n) === 0) counts[this.text[place]]++;
      }
      return counts;
    });
  }

  /** Return the index in `places` of the first one whose context is not before that of a text. */
  search(text) {
    let [low, high] = [0, this.places.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.compare(this.places[middle], text, this.longest) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Compare the n ids before a place with the last n ids of a text: < 0, 0 or > 0. */
  compare(place, text, n) {
    for (let back = 1; back <= n; back++) {
      // missing ids are V in the train split and V + 1 in the text: they equal none
      const a = place < back ? this.V : this.text[place - back];
      const b = text.length < back ? this.V + 1 : text[text.length - back];
      if (a !== b) return a - b;
    }
    return 0;
  }
}

/**
 * Smooth counts of the ids after a context: P = p + share * (P after a shorter context).
 *
 * @param {Float64Array} counts - (V).
 * @returns {{p: Float64Array, share: number, total: number, distinct: number}}
 */
function termsOf(counts) {
  let [total, distinct] = [0, 0];
  for (const count of counts) {
    total += count;
    if (count) distinct++;
  }
  const p = counts.map((count) => (count ? (count - WINDOW_DISCOUNT) / total : 0));
  return { p, share: total ? (WINDOW_DISCOUNT * distinct) / total : 1, total, distinct };
}
