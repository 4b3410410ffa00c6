// What the network computes for one character, step by step.

/**
 * Return what the first network computes for the id at a position, and what it attends to.
 *
 * @param {Model} model
 * @param {number[]} ids
 * @param {number} position - index of the id that is followed through the model.
 * @param {number} skip - how many of the last ids were generated.
 * @returns {{trace: object, context: number[], start: number}} `start` is the index of the first id
 *   of the context.
 */
function traced(model, ids, position, skip) {
  const text = ids.slice(0, position + 1);
  const generated = Math.max(skip - (ids.length - text.length), 0);
  const context = text.slice(-contextLength(text.length, generated, model.T));
  const trace = { streams: [], layers: [] };
  model.networks[0].after(context, trace);
  return { trace, context, text, generated, start: text.length - context.length };
}

/**
 * Return {weights, start}: the attention weights [layer][head] of the id at a position.
 *
 * The arguments are those of `traced`.
 */
function attention(model, { ids, position, skip = 0 }) {
  const { trace, start } = traced(model, ids, position, skip);
  return { weights: trace.layers.map((layer) => layer.weights), start };
}

/**
 * Return the numbers of one step for the inside view. n: ids of the context, C: channels.
 *
 * - start: index of the first id of the context
 * - streams: the residual stream (C) before the first layer (the embedding), and after each layer
 * - lens: for each stream, the ten likeliest next ids [id, probability] if the output layer read it
 * - query (head_size), keys (n x head_size), scores (n) before the softmax, weights (n) and output
 *   (value_size): those of the head `head` in the layer `layer`
 * - hidden (4 C): the activations of the MLP in the layer `layer`
 * - network (V): the probabilities of the network; of an ensemble, their mean
 * - counts: null without n-gram counts; else the `names` of the experts (predictors by counts),
 *   their `probabilities` [expert] (V), and the `weights` of the experts and, last, the network
 * - probabilities (V): those of the model
 */
function inside(model, { ids, position, layer, head, skip = 0 }) {
  const { trace, context, text, generated, start } = traced(model, ids, position, skip);
  const [network] = model.networks;
  const { n_head: H, head_size: hs, value_size: vs } = network.config;
  const { keys } = network.blocks[layer];
  const { qkv, attended, weights, scores, hidden } = trace.layers[layer];
  const firstKey = head * (model.T + 1) * hs;
  const { counts, probabilities, network: byNetwork } = predictions(model, text, generated);
  return {
    start,
    streams: trace.streams,
    lens: trace.streams.map((x) => lens(network, x)),
    query: qkv.slice(head * hs, (head + 1) * hs),
    keys: keys.slice(firstKey, firstKey + context.length * hs),
    scores: scores[head],
    weights: weights[head],
    output: attended.slice(head * vs, (head + 1) * vs),
    hidden,
    network: byNetwork,
    counts,
    probabilities,
  };
}

/** Return the ten likeliest ids if the output layer reads a vector of the residual stream. */
function lens(network, x) {
  network.x.set(x);
  return likeliest(Float64Array.from(network.predict(1)));
}

/** Return the probabilities of the network, of the counts and of both, after a text. */
function predictions({ networks, T, mixture }, text, generated) {
  const exp = (logP) => Float32Array.from(logP, Math.exp);
  const context = text.slice(-contextLength(text.length, generated, T));
  const logP = logSoftmax(meanPrediction(networks.map((network) => network.after(context))));
  if (!mixture) return { network: exp(logP), counts: null, probabilities: exp(logP) };
  const predicted = mixture.predict(text);
  const mixed = mixture.mix(predicted, logP);
  const counts = {
    names: mixture.names,
    probabilities: predicted.experts.map(exp),
    weights: Float32Array.from(mixed.weights),
  };
  return { network: exp(logP), counts, probabilities: exp(mixed.logP) };
}
