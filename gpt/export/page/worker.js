/*
The worker of an exported page: it runs the model, so that the page stays responsive.

The page starts it from the element with the id `worker`, which also works for a page opened from
a disk:

    const source = document.getElementById("worker").textContent;
    const worker = new Worker(URL.createObjectURL(new Blob([source], {type: "text/javascript"})));

A request is a message {op, id, ...}. Each answer repeats the `id` of its request. Requests are
answered in order, except that `stop` ends a running `generate` or `score`. Ids are numbers from 0
to V - 1: the page encodes and decodes text by `header.vocabulary`. `rules` are
{temperature, top_k, top_p, min_p, presence_penalty, frequency_penalty}; missing ones do nothing.

    {op: "load", id, header, data}      first; header: the parsed JSON of the element `header`;
                                        data: {weights, counts}, the text of these elements
      -> {op: "progress", id, share}    share of the work that is done, from 0 to 1
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
    {op: "stop", id}                    id: that of the request to end; no other answer

    {op: "distribution", id, ids, rules}
      -> {op: "distribution", id, top, probabilities}
                                        what follows ids: top as above; probabilities: those of the
                                        model, Float32Array (V)

    {op: "score", id, ids}              the probability of each id given the ids before it, in
                                        consecutive windows of T ids, as val losses are measured,
                                        but only with counts of the train split
      -> {op: "scores", id, start, probabilities}
                                        those of the ids from index `start` on; the first id of the
                                        text is not predicted: NaN
      -> {op: "done", id, reason}       reason: "length" or "stopped"

    {op: "attention", id, ids, position}
      -> {op: "attention", id, weights, start}
                                        weights[layer][head]: Float32Array, the weights of the ids
                                        from index `start` to `position`. Of an ensemble, the first
                                        member's.
    {op: "inside", id, ids, position, layer, head}
      -> {op: "inside", id, ...}        see inside.js

    {op: "logits", id, ids}             at most T ids
      -> {op: "logits", id, logits}     Float32Array (ids x V), of the network

    -> {op: "error", id, message}       instead of an answer
*/
