"""Compare an exported page with `gpt sample`, and measure its speed, in headless Chromium.

    python scripts/bench_export.py [RUN]

Speeds are those of models of 0.8 and 10.65 million parameters with random weights. With RUN, a
trained run with a vocabulary of characters, the script also prints the losses of the page, which
rounds weights, and of the run on 10,000 characters of val, and whether both sample the same text.
"""

import argparse
import json
from typing import Any

import numpy as np
import torch
from check_page import start_browser
from selenium.webdriver import Chrome
from selenium.webdriver.remote.remote_connection import RemoteConnection

from gpt import api
from gpt.api.resolve import read_text
from gpt.config.schema import Config, ModelConfig
from gpt.export.html import page_content, worker_source
from gpt.model.ensemble import make_model
from gpt.runs.format import CheckpointData
from gpt.runs.weights import weights_of
from gpt.text.vocabulary import Vocabulary

SIZES = {"0.8 M": (128, 4, 4), "10.65 M": (384, 6, 6)}  # C, n_layer, n_head
T, V = 256, 65  # of these models
SPEED_CHARACTERS = 600  # characters of a timed sample; its context is cut twice
REPEATS = 3  # samples; the fastest counts: other programs only slow it down
SCORED_CHARACTERS = 10_000  # characters of val whose loss is compared
PROMPT_CHARACTERS, SAMPLED_CHARACTERS = 100, 500  # of the sample that is compared
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


def ask(browser: Chrome, checkpoint: CheckpointData, requests: list[dict[str, Any]]) -> Any:
    """Load a model in the browser; return the answers and times of the load and the `requests`."""
    content = page_content("page", checkpoint)
    answers = browser.execute_async_script(RUN_REQUESTS, worker_source(), *content, requests)
    return json.loads(answers)


def random_model(C: int, n_layer: int, n_head: int) -> CheckpointData:
    """Return a model with random weights."""
    sizes = ModelConfig(T=T, C=C, n_layer=n_layer, n_head=n_head, ngram=1, positions="learned")
    torch.manual_seed(1)
    model = make_model(sizes, V)
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    vocabulary = Vocabulary("".join(map(chr, range(33, 33 + V))))
    return CheckpointData(0, Config(model=sizes), vocabulary, weights_of(model))


def measure_speeds(browser: Chrome) -> None:
    """Print how many characters a second models of several sizes write."""
    request = {
        "op": "generate", "ids": [1, 2, 3], "seed": 1, "rules": {}, "length": SPEED_CHARACTERS
    }  # fmt: skip
    for name, sizes in SIZES.items():
        load, *timed = ask(browser, random_model(*sizes), [request] * REPEATS)
        speed = SPEED_CHARACTERS / min(result["ms"] for result in timed) * 1000
        print(f"{name}: loaded in {load['ms'] / 1000:.1f} s, {speed:,.0f} characters/s")


def compare(browser: Chrome, name: str) -> None:
    """Print how the page of the run `name` differs from the run."""
    model = api.load(name)
    val = read_text(model.config, model.vocabulary, model.run).val
    ids = val[: SCORED_CHARACTERS + 1].tolist()
    text = model.vocabulary.decode(ids)
    sample = {"seed": 1, "length": SAMPLED_CHARACTERS, "rules": model.config.sample.model_dump()}
    requests: list[dict[str, Any]] = [
        {"op": "score", "ids": ids},
        {"op": "generate", "ids": ids[:PROMPT_CHARACTERS], **sample},
    ]
    load, scored, sampled = ask(browser, model.checkpoint, requests)
    print(f"{name}: loaded in {load['ms'] / 1000:.1f} s")
    parts = [part["probabilities"] for part in scored["answers"][1:-1]]
    theirs = -np.log(np.concatenate(parts)).mean()
    speed = SCORED_CHARACTERS / scored["ms"] * 1000
    print(f"loss: page {theirs:.6f}, run {model.loss(text):.6f} nats; {speed:,.0f} characters/s")
    written = "".join(answer.get("text", "") for answer in sampled["answers"])
    ours = model.generate(text[:PROMPT_CHARACTERS], length=SAMPLED_CHARACTERS, seed=1)
    speed = SAMPLED_CHARACTERS / sampled["ms"] * 1000
    print(f"the same sample: {written == ''.join(ours)}; {speed:,.0f} characters/s")


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
