// The layers of the network, apart from attention. A matrix (outputs x inputs) is stored by rows.

const BLOCK_NUMBERS = 4096; // weights that are multiplied with all rows before the next ones

/**
 * Compute y = x W^T + b for several rows of x.
 *
 * @param {Arena} arena - the memory of all arrays.
 * @param {{weight: TypedArray, scale: ?Float32Array, bias: ?Float32Array, inputs: number,
 *   outputs: number}} layer - W is `weight`, each row of it times its `scale` if given.
 * @param {Float32Array} x - rows x inputs; may be longer.
 * @param {number} rows
 * @param {Float32Array} y - rows x outputs, overwritten; may be longer.
 */
function linear(arena, { weight, scale, bias, inputs, outputs }, x, rows, y) {
  const block = rows > 1 ? Math.max(4, Math.floor(BLOCK_NUMBERS / inputs) & ~3) : outputs;
  for (let o = 0; o < outputs; o += block) {
    const count = Math.min(block, outputs - o);
    for (let row = 0; row < rows; row++) {
      const [from, to] = [row * inputs, row * outputs + o];
      arena.multiply(weight, o * inputs, inputs, x, from, y, to, inputs, count);
    }
  }
  for (let row = 0, to = 0; row < rows; row++, to += outputs) {
    if (scale) for (let o = 0; o < outputs; o++) y[to + o] *= scale[o];
    if (bias) for (let o = 0; o < outputs; o++) y[to + o] += bias[o];
  }
}

/**
 * Normalise rows to mean 0 and variance 1 (LayerNorm, arXiv:1607.06450), then scale and shift them.
 *
 * @param {Float32Array} x - rows x size.
 * @param {number} rows
 * @param {number} size
 * @param {Float32Array} y - rows x size, overwritten; may be x.
 * @param {?{weight: Float32Array, bias: Float32Array}} affine - scale and shift, if any.
 */
function layerNorm(x, rows, size, y, affine = null) {
  for (let row = 0, start = 0; row < rows; row++, start += size) {
    let mean = 0;
    for (let k = 0; k < size; k++) mean += x[start + k];
    mean /= size;
    let variance = 0;
    for (let k = 0; k < size; k++) {
      const deviation = x[start + k] - mean;
      variance += deviation * deviation;
    }
    const factor = 1 / Math.sqrt(variance / size + 1e-5);
    for (let k = 0; k < size; k++) {
      const normal = (x[start + k] - mean) * factor;
      y[start + k] = affine ? normal * affine.weight[k] + affine.bias[k] : normal;
    }
  }
}

/** Replace the first `count` scores by their softmax. */
function softmax(scores, count) {
  let max = -Infinity;
  for (let k = 0; k < count; k++) if (scores[k] > max) max = scores[k];
  let sum = 0;
  for (let k = 0; k < count; k++) {
    scores[k] = Math.exp(scores[k] - max);
    sum += scores[k];
  }
  for (let k = 0; k < count; k++) scores[k] /= sum;
}

/** Apply the activation of the MLP in place: GELU, or the square of ReLU. */
function activate(h, count, activation) {
  if (activation === "relu2") {
    for (let k = 0; k < count; k++) h[k] = h[k] > 0 ? h[k] * h[k] : 0;
    return;
  }
  const c = Math.sqrt(2 / Math.PI);
  for (let k = 0; k < count; k++) {
    h[k] = 0.5 * h[k] * (1 + Math.tanh(c * (h[k] + 0.044715 * h[k] ** 3)));
  }
}
