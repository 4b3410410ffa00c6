/*
The worker of an exported page: it runs the model, so that the page stays responsive.

The page starts it from the element with the id `worker`, which also works for a page opened from
a disk:

    const source = document.getElementById("worker").textContent;
    const worker = new Worker(URL.createObjectURL(new Blob([source], {type: "text/javascript"})));

A request is a message {op, id, ...}. Each answer repeats the `id` of its request. Requests are
answered in order, except that `stop` ends a running `generate` or `score`. Ids are numbers from 0
to V - 1: the page encodes and decodes text by `header.vocabulary`. `rules` are
{temperature, top_k, top_p, min_p}; missing ones do nothing.

    {op: "load", id, header, weights}   first; header: the parsed JSON of the element `header`;
                                        weights: the text of the element `weights`
      -> {op: "loaded", id}

    {op: "generate", id, ids, seed, rules, length, stops, skip}
                                        ids: the text so far, at least one id; length: characters
                                        to generate; stops: strings that end the text, and are not
                                        part of it. skip (default 0): how many of the last ids were
                                        generated with this seed before. With it, 100 and another
                                        100 characters equal 200 generated at once.
      -> {op: "token", id, token, text, probability, top}
                                        token: the id; text: the characters that it completes (none
                                        or several in a model of bytes); probability: that of the
                                        model; top: the ten likeliest [id, probability] after the
                                        temperature
      -> {op: "done", id, reason}       reason: "length", "stop" (a stop string) or "stopped"
    {op: "stop", id}                    id: the id of the request to end; `stop` has no answer

    The other requests may also have `skip`, so that their contexts are those of the generation.

    {op: "distribution", id, ids}
      -> {op: "distribution", id, probabilities}
                                        those of the model after ids, Float32Array (V)

    {op: "score", id, ids}              the probability of each id given the ids before it, in
                                        consecutive windows of T ids, as val losses are measured
      -> {op: "scores", id, start, probabilities}
                                        those of the ids from index `start` on; the first id of the
                                        text is not predicted: NaN
      -> {op: "done", id, reason}       reason: "length" or "stopped"

    {op: "inside", id, ids, layer, head}
      -> {op: "inside", id, ...}        see inside.js

    -> {op: "error", id, message}       instead of an answer
*/

const BREATH_MS = 16; // milliseconds of work after which the worker looks for a `stop`

let model = null;
let queue = Promise.resolve();
const stopped = new Set(); // ids of requests to end
let lastBreath = 0;

/** Process waiting messages, if BREATH_MS have passed since the last time. */
async function breathe() {
  if (performance.now() - lastBreath < BREATH_MS) return;
  await new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel(); // a timeout would take at least 4 ms
    port1.onmessage = () => resolve(port1.close());
    port2.postMessage(null);
  });
  lastBreath = performance.now();
}

/** The handlers of requests. `send` posts an answer, and `isStopped` first processes waiting messages. */
const operations = {
  async load({ header, weights }, send) {
    model = new Model(header, weights);
    send("loaded");
  },
  async generate(request, send, isStopped) {
    const reason = await generate(model, request, (token) => send("token", token), isStopped);
    send("done", { reason });
  },
  async distribution({ ids, skip = 0 }, send) {
    const { logP } = model.after(ids, skip);
    send("distribution", { probabilities: Float32Array.from(logP, Math.exp) });
  },
  async score({ ids }, send, isStopped) {
    send("done", { reason: await score(model, ids, (part) => send("scores", part), isStopped) });
  },
  async inside(request, send) {
    send("inside", inside(model, request));
  },
};

async function answer(request) {
  const { id, op } = request;
  const send = (name, content = {}) => postMessage({ ...content, op: name, id });
  const isStopped = async () => {
    await breathe();
    return stopped.delete(id);
  };
  try {
    await operations[op](request, send, isStopped);
  } catch (error) {
    send("error", { message: String(error.message ?? error) });
  }
}

onmessage = ({ data: request }) => {
  if (request.op === "stop") stopped.add(request.id);
  else queue = queue.then(() => answer(request));
};
