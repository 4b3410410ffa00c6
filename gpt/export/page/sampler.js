// Choose an id from logits, by the rules of gpt/sampling/sampler.py in the same order, in float64.

const PENALTY_CHARACTERS = 64; // number of last ids whose occurrences the penalties count

/** Subtract the penalties from the logits of ids that occur among the `recent` ids, in place. */
function applyPenalties(logits, recent, presence, frequency) {
  const counts = new Map();
  for (const id of recent.slice(-PENALTY_CHARACTERS)) counts.set(id, (counts.get(id) ?? 0) + 1);
  for (const [id, count] of counts) logits[id] -= presence + count * frequency;
}

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
 * @param {number[]} recent - the previous ids, to which the penalties apply.
 */
function choose(logits, uniform, rules, recent) {
  const { temperature = 1, top_k, top_p = 1, min_p = 0 } = rules;
  const { presence_penalty = 0, frequency_penalty = 0 } = rules;
  if (presence_penalty || frequency_penalty) {
    logits = logits.slice();
    applyPenalties(logits, recent, presence_penalty, frequency_penalty);
  }
  if (temperature === 0) return logits.indexOf(largest(logits));
  logits = applyTemperature(logits, temperature);
  if (top_k) logits = keepTopK(logits, top_k);
  if (top_p < 1) logits = keepTopP(logits, top_p);
  if (min_p > 0) logits = keepMinP(logits, min_p);
  return draw(logits, uniform);
}
