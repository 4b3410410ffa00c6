"""Compare an exported page with `gpt sample`, and measure its speed, in headless Chromium.

    python scripts/bench_export.py [RUN]

Speeds are those of models of 0.8 and 10.65 million parameters with random weights. With RUN, a
trained run, the script also prints: the size of its page; the largest difference of the logits of
20 texts of the val split; the loss of the page and of the run, whose weights are rounded alike, on
10,000 characters of val; and whether both sample the same 500 characters.
"""

import argparse
import json
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from check_page import start_browser
from selenium.webdriver import Chrome
from selenium.webdriver.remote.remote_connection import RemoteConnection

from gpt import api
from gpt.api.resolve import read_text
from gpt.config.schema import Config, ModelConfig, SampleConfig
from gpt.evaluation.loss import evaluate, scored_val
from gpt.export.html import page_content, worker_source
from gpt.export.shipped_weights import rounded
from gpt.model.ensemble import make_model
from gpt.runs.format import CheckpointData
from gpt.runs.weights import load_model, weights_of
from gpt.sampling.generate import generate, sample_sources
from gpt.sampling.numpy_engine import NumpyEngine
from gpt.text.vocabulary import Vocabulary

Content = tuple[dict[str, Any], str]

SIZES = {"0.8 M": (128, 4, 4), "10.65 M": (384, 6, 6)}  # C, n_layer, n_head
T, V = 256, 65  # of these models
RANDOM_VAL_IDS = 3000  # ids of a random val text, with which these models are rounded to 8 bits
SPEED_CHARACTERS = 600  # characters of a timed sample; its context is cut twice
REPEATS = 3  # samples with WebAssembly; the fastest counts: other programs only slow it down
TEXTS, TEXT_CHARACTERS = 20, 100  # whose logits are compared
SCORED_CHARACTERS = 10_000  # characters of val whose loss is compared
SAMPLED_CHARACTERS = 500
TIMEOUT_S = 600  # longest time of a request

# Load a model in a worker, send requests one by one, and return all answers and the times in ms.
RUN_REQUESTS = """
const [source, header, weights, requests, done] = arguments;
const url = URL.createObjectURL(new Blob([source], {type: "text/javascript"}));
const worker = new Worker(url);
const ask = (request) => new Promise((resolve) => {
  const began = performance.now();
  const answers = [];
  worker.onmessage = ({data}) => {
    answers.push(data);
    if (["token", "scores"].includes(data.op)) return;
    resolve({answers, ms: performance.now() - began});
  };
  worker.postMessage({id: 1, ...request});
});
const plain = (key, value) => ArrayBuffer.isView(value) ? Array.from(value) : value;
(async () => {
  const results = [];
  const load = {op: "load", header, weights};
  for (const request of [load, ...requests]) results.push(await ask(request));
  worker.terminate();
  done(JSON.stringify(results, plain));
})();
"""


def ask(browser: Chrome, content: Content, requests: list[dict[str, Any]], prefix: str = "") -> Any:
    """Load a model in the browser; return the answers and times of the load and the `requests`.

    Args:
        browser: the browser.
        content: the model, from `page_content`.
        requests: messages to the worker.
        prefix: JavaScript that the worker runs first.
    """
    answers = browser.execute_async_script(
        RUN_REQUESTS, prefix + worker_source(), *content, requests
    )
    return json.loads(answers)


def random_content(C: int, n_layer: int, n_head: int, *, has_val: bool) -> Content:
    """Return a model with random weights. With a val text, its page has 8-bit weights."""
    sizes = ModelConfig(T=T, C=C, n_layer=n_layer, n_head=n_head, ngram=1, positions="learned")
    torch.manual_seed(1)
    model = make_model(sizes, V)
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    vocabulary = Vocabulary("".join(map(chr, range(33, 33 + V))))
    checkpoint = CheckpointData(0, Config(model=sizes), vocabulary, weights_of(model))
    val = np.random.default_rng(1).integers(0, V, RANDOM_VAL_IDS).astype(np.uint8)
    return page_content("random", checkpoint, val if has_val else None)


def measure_speeds(browser: Chrome) -> None:
    """Print how many characters a second models of several sizes write."""
    request = {
        "op": "generate", "ids": [1, 2, 3], "seed": 1, "rules": {}, "length": SPEED_CHARACTERS
    }  # fmt: skip
    kernels = (("WebAssembly", "", REPEATS), ("JavaScript", "delete self.WebAssembly;", 1))
    for name, sizes in SIZES.items():
        for has_val in (True, False):
            content = random_content(*sizes, has_val=has_val)
            header, weights = content
            size = len(weights) / 1e6
            kind = header["weights"]["kind"]
            print(f"{name} ({header['parameters']:,} parameters), {kind}: {size:.2f} MB of data")
            for kernel, prefix, repeats in kernels:
                _, *timed = ask(browser, content, [request] * repeats, prefix)
                speed = SPEED_CHARACTERS / min(result["ms"] for result in timed) * 1000
                print(f"{name}, {kind}, {kernel}: {speed:,.0f} characters/s")


def compare(browser: Chrome, name: str) -> None:
    """Print how the page of the run `name` differs from the run."""
    model = api.load(name)
    val = scored_val(read_text(model.config, model.vocabulary, model.run))
    content = page_content(name, model.checkpoint, val)
    header, data = content
    size = len(data) / 1e6
    print(f"{name}: {header['parameters']:,} parameters as {header['weights']}; {size:.2f} MB")
    weights = rounded(model.checkpoint.weights, header["weights"]["kind"]).restored()
    checkpoint = replace(model.checkpoint, weights=weights)
    ids = [int(id_) for id_ in val[: SCORED_CHARACTERS + 1]]
    texts = [ids[TEXT_CHARACTERS * i :][:TEXT_CHARACTERS] for i in range(TEXTS)]
    rules = SampleConfig(temperature=0.8)
    sample = {"op": "generate", "ids": texts[0], "seed": 1, "length": SAMPLED_CHARACTERS}
    requests: list[dict[str, Any]] = [{"op": "logits", "ids": text} for text in texts]
    requests += [{"op": "score", "ids": ids}, sample | {"rules": rules.model_dump()}]
    load, *logits, scored, sampled = ask(browser, content, requests)
    network = load_model(checkpoint, torch.device("cpu"))
    with torch.no_grad():
        ours = [network(torch.tensor([text]))[0].numpy() for text in texts]
    pairs = zip(ours, logits, strict=True)
    differences = [
        np.abs(our.ravel() - their["answers"][-1]["logits"]).max() for our, their in pairs
    ]
    print(f"loaded in {load['ms'] / 1000:.1f} s")
    print(f"logits of {TEXTS} texts: largest difference {max(differences):.1e}")
    parts = [part["probabilities"] for part in scored["answers"][1:-1]]
    theirs = -np.log(np.concatenate(parts)).mean()
    expected = evaluate(network, val[: SCORED_CHARACTERS + 1], checkpoint.vocabulary)
    speed = SCORED_CHARACTERS / scored["ms"] * 1000
    print(f"loss of {SCORED_CHARACTERS:,} characters: page {theirs:.6f}, run {expected:.6f} nats")
    print(f"scored {speed:,.0f} characters/s")
    engine = NumpyEngine(checkpoint.config.model, weights, 1)
    chunks = generate(
        engine,
        checkpoint.vocabulary,
        [texts[0]],
        sample_sources(1, [0]),
        length=SAMPLED_CHARACTERS,
        rules=rules,
    )
    text = "".join(answer.get("text", "") for answer in sampled["answers"])
    is_same = text == "".join(chunk.text for chunk in chunks)
    speed = SAMPLED_CHARACTERS / sampled["ms"] * 1000
    print(f"the same {SAMPLED_CHARACTERS} characters: {is_same}; {speed:,.0f} characters/s")


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", nargs="?", help="a trained run, whose page is compared")
    run = parser.parse_args().run
    browser = start_browser()
    browser.set_script_timeout(TIMEOUT_S)
    assert isinstance(browser.command_executor, RemoteConnection)
    browser.command_executor.client_config.timeout = TIMEOUT_S
    try:
        measure_speeds(browser)
        if run is not None:
            compare(browser, run)
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
