// The inner loop of all matrix products, in WebAssembly with SIMD, and the same loop in JavaScript
// for browsers without it. WebAssembly is several times faster.
//
// kernel(w, stride, x, y, inputs, outputs) computes y[o] = sum over i of w[o * stride + i] * x[i]
// for each o < outputs. `inputs` is a multiple of 8, and `outputs` of 4. The numbers w are float32 or int8;
// large models are limited by the time to read w from memory, which is four times as long for float32.

/** The loop in JavaScript: arrays, each followed by the index of its first element. */
function plainKernel(w, from, stride, x, xFrom, y, yFrom, inputs, outputs) {
  for (let o = 0; o < outputs; o += 4) {
    const w0 = from + o * stride;
    const w1 = w0 + stride;
    const w2 = w1 + stride;
    const w3 = w2 + stride;
    let a = 0;
    let b = 0;
    let c = 0;
    let d = 0;
    for (let i = 0; i < inputs; i += 2) {
      const u = x[xFrom + i];
      const v = x[xFrom + i + 1];
      a += w[w0 + i] * u + w[w0 + i + 1] * v;
      b += w[w1 + i] * u + w[w1 + i + 1] * v;
      c += w[w2 + i] * u + w[w2 + i + 1] * v;
      d += w[w3 + i] * u + w[w3 + i + 1] * v;
    }
    y[yFrom + o] = a;
    y[yFrom + o + 1] = b;
    y[yFrom + o + 2] = c;
    y[yFrom + o + 3] = d;
  }
}

/**
 * Assemble the loop as a WebAssembly module, which imports its memory as "page"."memory".
 *
 * Sizes and addresses are in bytes. Four outputs are computed at once; each has a vector of four
 * sums, which are added up at the end.
 *
 * @param {boolean} isInt8 - whether w is int8, not float32.
 */
function kernelModule(isInt8) {
  const [I32, V128] = [0x7f, 0x7b];
  // parameters and local variables, by number
  const [w, stride, x, y, inputs, outputs, xp, end, p0, p1, p2, p3, x0, x1, a, b, c, d, eight] =
    Array(19).keys();
  const get = (local) => [0x20, local];
  const set = (local) => [0x21, local];
  const constant = (n) => [0x41, n]; // below 64
  const ADD = 0x6a;
  const F32_ADD = 0x92;
  const VECTOR_ADD = [0xfd, 0xe4, 0x01];
  const VECTOR_MULTIPLY = [0xfd, 0xe6, 0x01];
  const load = (address, offset) => [...get(address), 0xfd, 0x00, 0, offset]; // v128.load
  const advance = (local, by) => [...get(local), ...by, ADD, ...set(local)];
  const repeatWhile = (body, condition) => [0x03, 0x40, ...body, ...condition, 0x0d, 0, 0x0b];
  const zero = (sums) => [0xfd, 0x0c, ...Array(16).fill(0), ...set(sums)];
  const addProduct = (sums, four, values) =>
    [...get(sums), ...four, ...get(values), ...VECTOR_MULTIPLY, ...VECTOR_ADD, ...set(sums)];
  const floats = (sums, row) =>
    [...addProduct(sums, load(row, 0), x0), ...addProduct(sums, load(row, 16), x1)];
  const toFloats = [0xfd, 0xfa, 0x01]; // f32x4.convert_i32x4_s
  const bytes = (sums, row) => [
    ...get(row), 0xfd, 0x01, 0, 0, ...set(eight), // v128.load8x8_s: eight bytes, to int16
    ...addProduct(sums, [...get(eight), 0xfd, 0xa7, 0x01, ...toFloats], x0), // the lower, to int32
    ...addProduct(sums, [...get(eight), 0xfd, 0xa8, 0x01, ...toFloats], x1), // the higher four
  ];
  const addProducts = isInt8 ? bytes : floats;
  const lane = (sums, i) => [...get(sums), 0xfd, 0x1f, i];
  const store = (sums, offset) => [
    ...get(y), ...lane(sums, 0), ...lane(sums, 1), F32_ADD, ...lane(sums, 2), ...lane(sums, 3),
    F32_ADD, F32_ADD, 0x38, 0, offset,
  ];
  const sums = [a, b, c, d];
  const rows = [p0, p1, p2, p3];
  const body = repeatWhile(
    [
      ...sums.flatMap(zero),
      ...get(w), ...set(p0),
      ...[1, 2, 3].flatMap((i) => [...get(rows[i - 1]), ...get(stride), ADD, ...set(rows[i])]),
      ...get(p3), ...get(stride), ADD, ...set(w),
      ...get(x), ...set(xp),
      ...get(x), ...get(inputs), ADD, ...set(end),
      ...repeatWhile(
        [
          ...load(xp, 0), ...set(x0),
          ...load(xp, 16), ...set(x1),
          ...sums.flatMap((each, i) => addProducts(each, rows[i])),
          ...rows.flatMap((row) => advance(row, constant(isInt8 ? 8 : 32))),
          ...advance(xp, constant(32)),
        ],
        [...get(xp), ...get(end), 0x49], // xp < end
      ),
      ...sums.flatMap((each, i) => store(each, 4 * i)),
      ...advance(y, constant(16)),
      ...get(outputs), ...constant(4), 0x6b, ...set(outputs), // outputs -= 4
    ],
    [...get(outputs), ...constant(0), 0x4a], // outputs > 0
  );
  const sized = (bytes) => [(bytes.length & 127) | 128, bytes.length >> 7, ...bytes]; // LEB128
  const name = (text) => [text.length, ...[...text].map((letter) => letter.charCodeAt(0))];
  const code = [2, 6, I32, 7, V128, ...body, 0x0b]; // 6 local addresses, 7 local vectors
  return new Uint8Array([
    0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, // magic number and version
    1, ...sized([1, 0x60, 6, ...Array(6).fill(I32), 0]), // the type: 6 numbers, no result
    2, ...sized([1, ...name("page"), ...name("memory"), 2, 0, 0]), // the imported memory
    3, ...sized([1, 0]), // one function of this type
    7, ...sized([1, ...name("kernel"), 0, 0]), // its export
    10, ...sized([1, ...sized(code)]),
  ]);
}

/** Memory for arrays that JavaScript and the kernel share. */
class Arena {
  constructor() {
    this.size = 0; // bytes
    this.reserved = [];
    this.kernels = null; // {float32, int8}: by the type of w; null without WebAssembly
  }

  /** Reserve `count` numbers, which become the array `owner[name]` when the arena is opened. */
  reserve(owner, name, count, type = Float32Array) {
    this.reserved.push({ owner, name, type, start: this.size, count });
    this.size += Math.ceil((count * type.BYTES_PER_ELEMENT) / ALIGNMENT) * ALIGNMENT;
  }

  /** Allocate the memory, filled with zeros, and create the reserved arrays. */
  open() {
    let buffer = null;
    try {
      const memory = new WebAssembly.Memory({ initial: Math.ceil(this.size / 65536) });
      const kernel = (isInt8) => {
        const module = new WebAssembly.Module(kernelModule(isInt8));
        return new WebAssembly.Instance(module, { page: { memory } }).exports.kernel;
      };
      this.kernels = { float32: kernel(false), int8: kernel(true) };
      buffer = memory.buffer;
    } catch {
      buffer = new ArrayBuffer(this.size); // no WebAssembly, no SIMD, or forbidden here
    }
    for (const { owner, name, type, start, count } of this.reserved) {
      owner[name] = new type(buffer, start, count);
    }
  }

  /**
   * Compute y[o] = sum over i of w[o * stride + i] * x[i] for each o < outputs.
   *
   * Arrays are those of this arena; each is followed by the index of its first element.
   */
  multiply(w, from, stride, x, xFrom, y, yFrom, inputs, outputs) {
    const [wide, tall] = [inputs & ~7, outputs & ~3]; // the part that the kernel computes
    if (wide && tall) {
      if (this.kernels) {
        const size = w.BYTES_PER_ELEMENT;
        const wp = w.byteOffset + size * from;
        const [xp, yp] = [x.byteOffset + 4 * xFrom, y.byteOffset + 4 * yFrom];
        const kernel = size === 1 ? this.kernels.int8 : this.kernels.float32;
        kernel(wp, size * stride, xp, yp, 4 * wide, tall);
      } else {
        plainKernel(w, from, stride, x, xFrom, y, yFrom, wide, tall);
      }
    }
    for (let o = 0; o < outputs; o++) {
      let i = wide && o < tall ? wide : 0;
      if (i === inputs) continue;
      let sum = i ? y[yFrom + o] : 0;
      for (; i < inputs; i++) sum += w[from + o * stride + i] * x[xFrom + i];
      y[yFrom + o] = sum;
    }
  }
}
