
// What the model computes for one character, step by step.

/**
 * Return the numbers of the step that predicts what follows a text, for the inside view.
 *
 * For an ensemble, they describe the first network.
 * n: ids of the context, C: channels.
 *
 * - start: index of the first id of the context
 * - streams: the residual stream (C) before the first layer (the embedding), and after each layer
 * - lens: for each stream, the ten likeliest next ids [id, probability] if the output layer read it
 * - weights: the attention weights [layer][head] (n) of the last id
 * - query (head_size), scores (n) before the softmax, and output (value_size): those of the head
 *   `head` in the layer `layer`
 * - hidden (4 C): the activations of the MLP in the layer `layer`
 *
 * @param {Model} model
 * @param {object} request - {ids, layer, head, skip}; worker.js describes it.
 */
function inside(model, { ids, layer, head, skip = 0 }) {
  const [network] = model.networks;
  const context = ids.slice(-contextLength(ids.length, skip, model.T));
  const trace = { streams: [], layers: [] };
  network.after(context, trace);
  const { head_size: hs, value_size: vs } = network.config;
  const { qkv, attended, scores, hidden } = trace.layers[layer];
  return {
    start: ids.length - context.length,
    streams: trace.streams,
    lens: trace.streams.map((x) => lens(network, x)),
    weights: trace.layers.map(({ weights }) => weights),
    query: qkv.slice(head * hs, (head + 1) * hs),
    scores: scores[head],
    output: attended.slice(head * vs, (head + 1) * vs),
    hidden,
  };
}

/** Return the ten likeliest ids if the output layer reads a vector of the residual stream. */
function lens(network, x) {
  network.x.set(x);
  return likeliest(Float64Array.from(network.predict(1)));
}
