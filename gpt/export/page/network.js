// The transformer of gpt/model, with a cache of keys and values. Shapes: n new ids, H heads,
// hs = head_size, vs = value_size, C channels, V vocabulary size, T ids of the context.

const PASS_IDS = 32; // largest number of ids that are computed together

/** One network: a single model, or a member of an ensemble. */
class Network {
  /**
   * @param {object} config - the section `model` of the config.
   * @param {number} V - vocabulary size.
   * @param {Object<string, Float32Array>} weights - by parameter name, from `unpack`.
   * @param {string} prefix - the beginning of the names of this network's parameters.
   */
  constructor(config, V, weights, prefix = "") {
    const { T, C, n_head: H, head_size: hs, value_size: vs, n_layer, ngram } = config;
    const array = (name) => weights[prefix + name] ?? null;
    const layer = (name, inputs, outputs) =>
      ({ weight: array(`${name}.weight`), bias: array(`${name}.bias`), inputs, outputs });
    this.config = config;
    this.V = V;
    this.tables = [array("token_embedding.weight")];
    for (let i = 0; i < ngram - 1; i++) this.tables.push(array(`ngram_embeddings.${i}.weight`));
    this.positions = array("position_embedding.weight");
    this.blocks = Array.from({ length: n_layer }, (_, i) => ({
      attentionNorm: layer(`blocks.${i}.attention_norm`, C, C),
      qkv: layer(`blocks.${i}.attention.qkv`, C, H * (2 * hs + vs)),
      projection: layer(`blocks.${i}.attention.projection`, H * vs, C),
      mlpNorm: layer(`blocks.${i}.mlp_norm`, C, C),
      expand: layer(`blocks.${i}.mlp.expand`, C, 4 * C),
      contract: layer(`blocks.${i}.mlp.projection`, 4 * C, C),
      // (H, T + 1, hs): an offset key has channels of the next position, too
      keys: new Float32Array(H * (T + 1) * hs),
      values: new Float32Array(H * T * vs), // (H, T, vs)
    }));
    this.norm = layer("norm", C, C);
    this.head = layer("head", C, V);
    this.rotations = config.positions === "rotary" ? rotations(T, hs) : null;
    this.ids = []; // the ids whose keys and values are cached
    const rows = (size) => new Float32Array(PASS_IDS * size);
    this.x = rows(C); // the residual stream
    this.normal = rows(C);
    this.qkv = rows(H * (2 * hs + vs));
    this.attended = rows(H * vs);
    this.added = rows(C);
    this.hidden = rows(4 * C);
    this.logits = rows(V);
    this.scores = new Float32Array(T);
  }

  /**
   * Return the logits (V) of the id after `ids`, of which there are at most T.
   *
   * Keys and values of the first ids that are the same as in the last call are not computed again.
   */
  after(ids, trace = null) {
    let start = 0;
    while (start < ids.length - 1 && this.ids[start] === ids[start]) start++;
    this.ids.length = start;
    while (ids.length - start > 1) {
      const end = Math.min(start + PASS_IDS, ids.length - 1);
      this.append(ids.slice(start, end), false);
      start = end;
    }
    return this.append([ids[start]], true, trace);
  }

  /** Discard all ids, so that `append` begins a new text. */
  clear() {
    this.ids.length = 0;
  }

  /**
   * Append at most PASS_IDS ids.
   *
   * @param {number[]} ids
   * @param {boolean} wantLogits - whether to compute logits.
   * @param {?object} trace - if given, one id is appended, and all that is computed for it is
   *   stored here: `streams` and `layers`.
   * @returns {Float32Array} logits (n x V), which the next call overwrites.
   */
  append(ids, wantLogits, trace = null) {
    const { C, activation } = this.config;
    const n = ids.length;
    const start = this.ids.length;
    this.ids.push(...ids);
    this.embed(start, n);
    for (const block of this.blocks) {
      trace?.streams.push(this.x.slice(0, C));
      layerNorm(this.x, n, C, this.normal, block.attentionNorm);
      linear(block.qkv, this.normal, n, this.qkv);
      this.rotate(start, n);
      this.store(block, start, n);
      const traced = trace && { scores: [], weights: [] };
      for (let row = 0; row < n; row++) this.attend(block, start + row, row, traced);
      linear(block.projection, this.attended, n, this.added);
      for (let k = 0; k < n * C; k++) this.x[k] += this.added[k];
      layerNorm(this.x, n, C, this.normal, block.mlpNorm);
      linear(block.expand, this.normal, n, this.hidden);
      activate(this.hidden, n * 4 * C, activation);
      linear(block.contract, this.hidden, n, this.added);
      for (let k = 0; k < n * C; k++) this.x[k] += this.added[k];
      trace?.layers.push(Object.assign(traced, {
        qkv: this.qkv.slice(0, block.qkv.outputs),
        attended: this.attended.slice(0, block.projection.inputs),
        hidden: this.hidden.slice(0, 4 * C),
      }));
    }
    trace?.streams.push(this.x.slice(0, C));
    return wantLogits ? this.predict(n) : null;
  }

  /** Return the logits (n x V) of the n vectors of the residual stream. */
  predict(n) {
    layerNorm(this.x, n, this.config.C, this.normal, this.norm);
    linear(this.head, this.normal, n, this.logits);
    return this.logits.subarray(0, n * this.V);
  }

  /** Set the stream to the sums of the embeddings of the n ids from `start` on. */
  embed(start, n) {
    const { C } = this.config;
    this.x.fill(0, 0, n * C);
    for (let row = 0; row < n; row++) {
      const vectors = this.tables.map((table, back) => [table, this.ids[start + row - back]]);
      if (this.positions) vectors.push([this.positions, start + row]);
      for (const [table, index] of vectors) {
        if (index === undefined) continue; // before the first id
        for (let k = 0; k < C; k++) this.x[row * C + k] += table[index * C + k];
      }
    }
  }

  /** Normalise (`qk_norm`) and rotate (rotary positions) the queries and keys, in place. */
  rotate(start, n) {
    const { n_head: H, head_size: hs, value_size: vs, qk_norm } = this.config;
    const width = H * (2 * hs + vs);
    const half = hs / 2;
    for (let row = 0; row < n; row++) {
      const qk = this.qkv.subarray(row * width, row * width + 2 * H * hs);
      if (qk_norm) layerNorm(qk, 2 * H, hs, qk);
      if (!this.rotations) continue;
      for (let i = 0; i < 2 * H * hs; i += hs) {
        for (let pair = 0; pair < half; pair++) {
          const cos = this.rotations.cos[(start + row) * half + pair];
          const sin = this.rotations.sin[(start + row) * half + pair];
          const [a, b] = [qk[i + pair], qk[i + half + pair]];
          qk[i + pair] = a * cos - b * sin;
          qk[i + half + pair] = a * sin + b * cos;
        }
      }
    }
  }

  /** Copy the keys and values of n new ids into the cache of a block. */
  store(block, start, n) {
    const { T, n_head: H, head_size: hs, value_size: vs, key_offset } = this.config;
    const width = H * (2 * hs + vs);
    const half = hs / 2;
    const staying = Math.floor(hs / 4); // channel pairs (i, i + half) that an offset key keeps
    for (let row = 0; row < n; row++) {
      for (let head = 0; head < H; head++) {
        const k = row * width + (H + head) * hs;
        const v = row * width + 2 * H * hs + head * vs;
        const key = (head * (T + 1) + start + row) * hs;
        for (let i = 0; i < hs; i++) {
          const isMoved = key_offset && i % half >= staying; // to the key of the next position
          block.keys[key + i + (isMoved ? hs : 0)] = this.qkv[k + i];
          if (isMoved && start + row === 0) block.keys[key + i] = 0;
        }
        block.values.set(this.qkv.subarray(v, v + vs), (head * T + start + row) * vs);
      }
    }
  }

  /** Compute the attention outputs (H vs) of the query in a row of `qkv`, at a position. */
  attend(block, position, row, traced) {
    const { T, n_head: H, head_size: hs, value_size: vs, attention_scale } = this.config;
    const scale = attention_scale / Math.sqrt(hs);
    const { keys, values } = block;
    const { scores, attended } = this;
    const count = position + 1;
    for (let head = 0; head < H; head++) {
      const query = row * H * (2 * hs + vs) + head * hs;
      for (let s = 0; s < count; s++) {
        scores[s] = scale * dot(keys, (head * (T + 1) + s) * hs, this.qkv, query, hs);
      }
      traced?.scores.push(scores.slice(0, count));
      softmax(scores, count);
      traced?.weights.push(scores.slice(0, count));
      const out = (row * H + head) * vs;
      attended.fill(0, out, out + vs);
      for (let s = 0; s < count; s++) {
        const value = (head * T + s) * vs;
        for (let i = 0; i < vs; i++) attended[out + i] += scores[s] * values[value + i];
      }
    }
  }
}

/** Return the cosines and sines (T x hs / 2) of the rotary angles by position and channel pair. */
function rotations(T, hs) {
  const half = hs / 2;
  const angles = Float64Array.from(
    { length: T * half },
    (_, i) => Math.floor(i / half) * 10000 ** (-(i % half) / half),
  );
  return { cos: Float32Array.from(angles, Math.cos), sin: Float32Array.from(angles, Math.sin) };
}

/** Return the logarithm of the mean of the probabilities that several networks predict. */
function meanPrediction(logits) {
  if (logits.length === 1) return Float64Array.from(logits[0]);
  const probabilities = logits.map((each) => logSoftmax(each).map(Math.exp));
  return probabilities[0].map((_, id) => {
    let sum = 0;
    for (const p of probabilities) sum += p[id];
    return Math.log(sum / probabilities.length);
  });
}
