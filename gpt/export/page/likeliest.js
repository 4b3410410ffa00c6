
// The probabilities of logits. `-Infinity` is the logit of an id that must not be drawn.

const LIKELIEST = 10; // number of ids that are shown with their probabilities

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

/** Divide logits by the temperature, after subtracting the largest. */
function applyTemperature(logits, temperature) {
  const max = largest(logits);
  return logits.map((x) => (x - max) / temperature);
}

/** Return the ten likeliest [id, probability] after the temperature, the likeliest first. */
function likeliest(logits, temperature = 1) {
  const cooled = temperature === 0 ? logits : applyTemperature(logits, temperature);
  const top = []; // [id, logit], the largest first
  cooled.forEach((logit, id) => {
    if (logit === -Infinity) return;
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
