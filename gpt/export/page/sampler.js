// Choose an id from logits, by the rules of gpt/sampling/sampler.py in the same order, in float64.
// `-Infinity` is the logit of an id that must not be drawn.

const PENALTY_CHARACTERS = 64; // number of last ids whose occurrences the penalties count
const LIKELIEST = 10; // ids that are shown with their probabilities

/** Return the log-probabilities of logits. */
function logSoftmax(logits) {
  const max = largest(logits);
  let sum = 0;
  for (const x of logits) sum += Math.exp(x - max);
  const shift = max + Math.log(sum);
  return Float64Array.from(logits, (x) => x - shift);
}

/** Return the largest of some numbers. */
function largest(numbers) {
  let max = -Infinity;
  for (const x of numbers) if (x > max) max = x;
  return max;
}

/** Subtract the penalties from the logits of ids that occur among the `recent` ids, in place. */
function applyPenalties(logits, recent, presence, frequency) {
  const counts = new Map();
  for (const id of recent.slice(-PENALTY_CHARACTERS)) counts.set(id, (counts.get(id) ?? 0) + 1);
  for (const [id, count] of counts) logits[id] -= presence + count * frequency;
}

/** Divide logits by the temperature, after subtracting the largest. */
function applyTemperature(logits, temperature) {
  const max = largest(logits);
  return logits.map((x) => (x - max) / temperature);
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
 * @param {number[]} recent - the ids before, to which the penalties apply.
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

/** Return the ten likeliest [id, probability] after the temperature, the likeliest first. */
function likeliest(logits, temperature = 1) {
  const cooled = temperature === 0 ? logits : applyTemperature(logits, temperature);
  const top = []; // [id, logit], the largest first
  cooled.forEach((logit, id) => {
    if (top.length === LIKELIEST && logit <= top[LIKELIEST - 1][1]) return;
    let place = top.length;
    while (place > 0 && top[place - 1][1] < logit) place--;
    top.splice(place, 0, [id, logit]);
    top.length = Math.min(top.length, LIKELIEST);
  });
  if (temperature === 0) return top.map(([id], i) => [id, i === 0 ? 1 : 0]);
  const log_p = logSoftmax(cooled);
  return top.map(([id]) => [id, Math.exp(log_p[id])]);
}
