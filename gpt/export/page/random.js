// The random numbers of `gpt sample`: the same seed gives the same draws as numpy.
//
//   seed -> BLAKE2b (gpt/seeds.py) -> SeedSequence (numpy) -> key of Philox -> uniform numbers

const MASK64 = (1n << 64n) - 1n;

const BLAKE2B_IV = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const BLAKE2B_PERMUTATIONS = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
  [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
  [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
  [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
  [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
  [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

/** Return the BLAKE2b hash (RFC 7693) of 8 bytes of an ASCII text of at most 128 characters. */
function blake2b64(text) {
  const message = new Array(16).fill(0n);
  for (let i = 0; i < text.length; i++) {
    message[i >> 3] |= BigInt(text.charCodeAt(i)) << BigInt(8 * (i & 7));
  }
  const start = [BLAKE2B_IV[0] ^ 0x01010008n, ...BLAKE2B_IV.slice(1)]; // digest of 8 bytes, no key
  const v = [...start, ...BLAKE2B_IV];
  v[12] ^= BigInt(text.length);
  v[14] ^= MASK64; // this block is the last one
  const rotate = (x, bits) => ((x >> bits) | (x << (64n - bits))) & MASK64;
  const mix = (a, b, c, d, x, y) => {
    v[a] = (v[a] + v[b] + x) & MASK64;
    v[d] = rotate(v[d] ^ v[a], 32n);
    v[c] = (v[c] + v[d]) & MASK64;
    v[b] = rotate(v[b] ^ v[c], 24n);
    v[a] = (v[a] + v[b] + y) & MASK64;
    v[d] = rotate(v[d] ^ v[a], 16n);
    v[c] = (v[c] + v[d]) & MASK64;
    v[b] = rotate(v[b] ^ v[c], 63n);
  };
  for (let round = 0; round < 12; round++) {
    const m = BLAKE2B_PERMUTATIONS[round % 10].map((i) => message[i]);
    for (let i = 0; i < 4; i++) mix(i, i + 4, i + 8, i + 12, m[2 * i], m[2 * i + 1]);
    for (let i = 0; i < 4; i++) {
      mix(i, 4 + ((i + 1) & 3), 8 + ((i + 2) & 3), 12 + ((i + 3) & 3), m[8 + 2 * i], m[9 + 2 * i]);
    }
  }
  return start[0] ^ v[0] ^ v[8]; // little-endian, as `derive_seed` reads it
}

/** Return the two 64-bit words that numpy's SeedSequence generates from a 64-bit seed. */
function seedSequence(seed) {
  const entropy = seed >> 32n ? [Number(seed & 0xffffffffn), Number(seed >> 32n)] : [Number(seed)];
  let constant = 0x43b0d7e5;
  const hash = (value) => {
    value ^= constant;
    constant = Math.imul(constant, 0x931e8875);
    value = Math.imul(value, constant);
    return value ^ (value >>> 16);
  };
  const mix = (x, y) => {
    const mixed = (Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y)) | 0;
    return mixed ^ (mixed >>> 16);
  };
  const pool = [0, 1, 2, 3].map((i) => hash(entropy[i] ?? 0));
  for (let from = 0; from < 4; from++) {
    for (let to = 0; to < 4; to++) {
      if (from !== to) pool[to] = mix(pool[to], hash(pool[from]));
    }
  }
  constant = 0x8b51f9dd;
  const words = pool.map((value) => {
    value ^= constant;
    constant = Math.imul(constant, 0x58f38ded);
    value = Math.imul(value, constant);
    return BigInt((value ^ (value >>> 16)) >>> 0);
  });
  return [words[0] | (words[1] << 32n), words[2] | (words[3] << 32n)];
}

/** Uniform numbers in [0, 1) that `gpt sample` draws for its first sample with a seed. */
class Uniforms {
  /**
   * @param {number} seed - a whole number from 0 on.
   * @param {number} skip - how many numbers to skip.
   */
  constructor(seed, skip = 0) {
    this.key = seedSequence(blake2b64(`${seed}/sample/0/0`));
    this.drawn = skip;
  }

  next() {
    const place = this.drawn++ & 3;
    if (place === 0 || !this.block) this.block = this.philox(BigInt((this.drawn - 1) >> 2) + 1n);
    return Number(this.block[place] >> 11n) / 2 ** 53;
  }

  /** Return the four 64-bit words of Philox 4x64-10 (Salmon et al. 2011) for a counter. */
  philox(counter) {
    let [a, b, c, d] = [counter, 0n, 0n, 0n];
    let [k0, k1] = this.key;
    for (let round = 0; round < 10; round++) {
      const p = 0xd2e7470ee14c6c93n * a;
      const q = 0xca5a826395121157n * c;
      [a, b, c, d] = [(q >> 64n) ^ b ^ k0, q & MASK64, (p >> 64n) ^ d ^ k1, p & MASK64];
      k0 = (k0 + 0x9e3779b97f4a7c15n) & MASK64;
      k1 = (k1 + 0xbb67ae8584caa73bn) & MASK64;
    }
    return [a, b, c, d];
  }
}
