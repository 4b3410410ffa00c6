
// Unpack the weights of a page: base64 of float16 numbers -> arrays of float32.

/**
 * Return arrays by name.
 *
 * @param {string} text - the arrays as float16, little-endian, one after the other, in base64.
 * @param {[string, number][]} sizes - the name of each array, and how many numbers it has.
 */
function unpack(text, sizes) {
  const bytes = atob(text);
  const table = float16Numbers();
  const arrays = {};
  let byte = 0;
  for (const [name, size] of sizes) {
    arrays[name] = new Float32Array(size);
    for (let i = 0; i < size; i++, byte += 2) {
      arrays[name][i] = table[bytes.charCodeAt(byte) | (bytes.charCodeAt(byte + 1) << 8)];
    }
  }
  return arrays;
}

/** Return the number that each of the 65,536 float16 bit patterns stands for (IEEE 754). */
function float16Numbers() {
  return Float32Array.from({ length: 65536 }, (_, bits) => {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = (bits & 1023) / 1024;
    // exponent 0: subnormal numbers. Infinity and NaN (exponent 31) do not occur.
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction);
  });
}
