// Matrix products, the inner loops of the network. A matrix (outputs x inputs) is stored row by row.

/**
 * Compute y = x W^T + b for several rows of x.
 *
 * Eight products are summed at once, so that the processor need not wait for each sum.
 *
 * @param {{weight: Float32Array, bias: ?Float32Array, inputs: number, outputs: number}} layer
 * @param {Float32Array} x - rows x inputs; may be longer.
 * @param {number} rows
 * @param {Float32Array} y - rows x outputs, overwritten; may be longer.
 */
function linear(layer, x, rows, y) {
  let row = 0;
  for (; row + 4 <= rows; row += 4) linearOfFour(layer, x, row, y);
  for (; row < rows; row++) linearOfOne(layer, x, row, y);
}

/** Compute one row of y, four outputs at a time. */
function linearOfOne({ weight, bias, inputs, outputs }, x, row, y) {
  const from = row * inputs;
  const to = row * outputs;
  let o = 0;
  for (; o + 4 <= outputs; o += 4) {
    let [a, b, c, d] = [0, 0, 0, 0];
    let i = o * inputs;
    for (let k = 0; k < inputs; k++, i++) {
      const value = x[from + k];
      a += weight[i] * value;
      b += weight[i + inputs] * value;
      c += weight[i + 2 * inputs] * value;
      d += weight[i + 3 * inputs] * value;
    }
    y[to + o] = a;
    y[to + o + 1] = b;
    y[to + o + 2] = c;
    y[to + o + 3] = d;
  }
  for (; o < outputs; o++) {
    let sum = 0;
    for (let k = 0, i = o * inputs; k < inputs; k++, i++) sum += weight[i] * x[from + k];
    y[to + o] = sum;
  }
  if (bias) for (o = 0; o < outputs; o++) y[to + o] += bias[o];
}

/** Compute four rows of y, from `row` on. Each weight is read once for all of them. */
function linearOfFour({ weight, bias, inputs, outputs }, x, row, y) {
  const x0 = row * inputs;
  const [x1, x2, x3] = [x0 + inputs, x0 + 2 * inputs, x0 + 3 * inputs];
  let to = row * outputs;
  for (let o = 0, i = 0; o < outputs; o++, to++) {
    const start = bias ? bias[o] : 0;
    let [a, b, c, d] = [start, start, start, start];
    for (let k = 0; k < inputs; k++, i++) {
      const w = weight[i];
      a += w * x[x0 + k];
      b += w * x[x1 + k];
      c += w * x[x2 + k];
      d += w * x[x3 + k];
    }
    y[to] = a;
    y[to + outputs] = b;
    y[to + 2 * outputs] = c;
    y[to + 3 * outputs] = d;
  }
}

/** Return the dot product of `count` numbers of a and b from the indices i and j on. */
function dot(a, i, b, j, count) {
  let sum = 0;
  for (let k = 0; k < count; k++) sum += a[i + k] * b[j + k];
  return sum;
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
    for (let k = 0; k < size; k++) variance += (x[start + k] - mean) ** 2;
    const factor = 1 / Math.sqrt(variance / size + 1e-5);
    for (let k = 0; k < size; k++) {
      const normal = (x[start + k] - mean) * factor;
      y[start + k] = affine ? normal * affine.weight[k] + affine.bias[k] : normal;
    }
  }
}

/** Replace `count` scores from an index on by their softmax. */
function softmax(scores, start, count) {
  let max = -Infinity;
  for (let k = start; k < start + count; k++) max = Math.max(max, scores[k]);
  let sum = 0;
  for (let k = start; k < start + count; k++) sum += scores[k] = Math.exp(scores[k] - max);
  for (let k = start; k < start + count; k++) scores[k] /= sum;
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
