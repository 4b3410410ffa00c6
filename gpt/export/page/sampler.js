// Choose an id from logits, by the rules of gpt/sampling/sampler.py in the same order, in float64.

/** Keep the k largest logits, and any logit that equals the smallest of these. */
function keepTopK(logits, k) {
  if (k >= logits.length) return logits;
  const kth = logits.slice().sort()[logits.length - k];
  return logits.map((x) => (x < kth ? -Infinity : x));
}

/** Keep the smallest set of likeliest ids whose probabilities sum to at least p. */
function keepTopP(logits, p) {
  const ordered = logits.slice().sort().reverse();
  const probabilities = logSoftmax(ordered).map(Math.exp);
  let needed = 0;
  let sum = 0;
  for (const each of probabilities) {
    sum += each;
    if (sum - each < p) needed++; // the sum of the likelier ones
  }
  const least = ordered[Math.max(needed, 1) - 1];
  return logits.map((x) => (x < least ? -Infinity : x));
}

/** Keep ids that are at least p times as likely as the likeliest. */
function keepMinP(logits, p) {
  const least = largest(logits) + Math.log(p);
  return logits.map((x) => (x < least ? -Infinity : x));
}

/** Draw an id from the softmax of logits, given a uniform number in [0, 1). */
function draw(logits, uniform) {
  const max = largest(logits);
  let total = 0;
  const sums = logits.map((x) => (total += Math.exp(x - max)));
  const passed = sums.findIndex((sum) => sum > uniform * total);
  const last = sums.findIndex((sum) => sum >= total); // the last possible id
  return passed < 0 ? last : Math.min(passed, last);
}

/**
 * Draw an id.
 *
 * @param {Float64Array} logits - logits or log-probabilities of V ids.
 * @param {number} uniform - a uniform number in [0, 1).
 * @param {object} rules - the settings of the section `sample` of a config.
 */
function choose(logits, uniform, rules) {
  const { temperature = 1, top_k, top_p = 1, min_p = 0 } = rules;
  if (temperature === 0) return logits.indexOf(largest(logits));
  logits = applyTemperature(logits, temperature);
  if (top_k) logits = keepTopK(logits, top_k);
  if (top_p < 1) logits = keepTopP(logits, top_p);
  if (min_p > 0) logits = keepMinP(logits, min_p);
  return draw(logits, uniform);
}
