
// Unpack the arrays of a page: base64 of raw deflate -> bytes -> typed arrays.

const ALIGNMENT = 4; // bytes to which each array is padded, as in html.py

/** Decode base64 and inflate it. Return a promise of a Uint8Array. */
async function unpack(text) {
  const characters = atob(text);
  const compressed = new Uint8Array(characters.length);
  for (let i = 0; i < characters.length; i++) compressed[i] = characters.charCodeAt(i);
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * Split bytes into arrays by name. Matrices of float16 become Float32Arrays. A matrix of int8 has
 * another array, NAME.scale, by which each of its rows is multiplied.
 *
 * @param {Uint8Array} bytes - the arrays, one after the other, little-endian.
 * @param {{name: string, dtype: string, shape: number[]}[]} entries - their types, in this order.
 */
function splitArrays(bytes, entries) {
  const types = { int8: Int8Array, float16: Uint16Array, float32: Float32Array };
  const arrays = {};
  let start = bytes.byteOffset;
  for (const { name, dtype, shape } of entries) {
    const array = new types[dtype](bytes.buffer, start, shape.reduce((a, b) => a * b, 1));
    start += Math.ceil(array.byteLength / ALIGNMENT) * ALIGNMENT;
    arrays[name] = dtype === "float16" ? fromFloat16(array) : array;
  }
  return arrays;
}

/** Return the matrix `name` of `arrays` as float32, times its scales if it has any; null if missing. */
function restored(arrays, name) {
  const [matrix, scale] = [arrays[name] ?? null, arrays[`${name}.scale`]];
  if (!scale) return matrix;
  const numbers = new Float32Array(matrix.length);
  const columns = matrix.length / scale.length;
  for (let row = 0, i = 0; row < scale.length; row++) {
    for (let k = 0; k < columns; k++, i++) numbers[i] = matrix[i] * scale[row];
  }
  return numbers;
}

/** Convert the bits of float16 numbers (IEEE 754 half precision) to float32. */
function fromFloat16(bits) {
  const table = new Float32Array(65536);
  for (let i = 0; i < 65536; i++) {
    const sign = i & 0x8000 ? -1 : 1;
    const exponent = (i >> 10) & 31;
    const fraction = (i & 1023) / 1024;
    // exponent 0: subnormal numbers. Infinity and NaN (exponent 31) do not occur.
    table[i] = sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction);
  }
  const numbers = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) numbers[i] = table[bits[i]];
  return numbers;
}
