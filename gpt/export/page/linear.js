// The layers of the network, apart from attention. A matrix (outputs x inputs) is stored by rows.

/**
 * Compute y = x W^T + b for several rows of x.
 *
 * @param {{weight: Float32Array, bias: ?Float32Array, inputs: number, outputs: number}} layer
 * @param {Float32Array} x - rows x inputs; may be longer.
 * @param {number} rows
 * @param {Float32Array} y - rows x outputs, overwritten; may be longer.
 */
function linear({ weight, bias, inputs, outputs }, x, rows, y) {
  for (let o = 0; o < outputs; o += 4) {
    for (let row = 0; row < rows; row++) {
      const [from, to] = [row * inputs, row * outputs];
      if (o + 4 <= outputs) fourDots(weight, o * inputs, x, from, inputs, y, to + o);
      else for (let i = o; i < outputs; i++) y[to + i] = dot(weight, i * inputs, x, from, inputs);
    }
  }
  if (!bias) return;
  for (let row = 0; row < rows; row++) {
    for (let o = 0; o < outputs; o++) y[row * outputs + o] += bias[o];
  }
}

/**
 * Store the dot products of four rows of a matrix and a vector, of `size` numbers each.
 *
 * This takes half the time of four calls of `dot`, which read the vector four times. The rows start
 * at w[i], the vector at x[j], and the results at y[to].
 */
function fourDots(w, i, x, j, size, y, to) {
  let [a, b, c, d] = [0, 0, 0, 0];
  for (let k = 0; k < size; k++) {
    const number = x[j + k];
    a += w[i + k] * number;
    b += w[i + k + size] * number;
    c += w[i + k + 2 * size] * number;
    d += w[i + k + 3 * size] * number;
  }
  y[to] = a;
  y[to + 1] = b;
  y[to + 2] = c;
  y[to + 3] = d;
}

/** Return the dot product of two vectors of `size` numbers, which start at a[i] and b[j]. */
function dot(a, i, b, j, size) {
  let sum = 0;
  for (let k = 0; k < size; k++) sum += a[i + k] * b[j + k];
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
