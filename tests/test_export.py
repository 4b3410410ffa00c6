"""The model in an exported page: the same numbers and texts as ours, in a real browser."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gpt.config.schema import SampleConfig
from gpt.errors import UsageError
from gpt.evaluation.loss import evaluate
from gpt.export.html import FOLDER, WORKER_FILES, page_content
from gpt.inspection.pages import contents_of
from gpt.model.attention_maps import attend_text, blocks_of, run_with_streams
from gpt.model.ensemble import members_of
from gpt.model.transformer import GPT
from gpt.runs.format import CheckpointData
from gpt.runs.weights import load_model
from gpt.sampling.generate import generate, sample_streams
from gpt.sampling.numpy_engine import NumpyEngine
from gpt.sampling.sampler import log_softmax
from gpt.sampling.stopping import collect
from gpt.text.vocabulary import BYTES
from tests.conftest import small
from tests.test_page import Chrome, browser  # noqa: F401
from tests.test_sampling import SHAPES, VOCABULARY, data_of
from tests.test_sampling import model as network_of

WORKER = contents_of([FOLDER / name for name in WORKER_FILES])
RULES = {"temperature": 0.9, "top_k": 7, "top_p": 0.95, "min_p": 0.01}

# Load a model in a new worker, send requests one by one, and return all answers to each.
ASK = """
const [source, header, weights, requests, done] = arguments;
const url = URL.createObjectURL(new Blob([source], {type: "text/javascript"}));
const worker = new Worker(url);
const parts = ["token", "scores"];
const plain = (key, value) => ArrayBuffer.isView(value) ? Array.from(value) : value;
const ask = (request) => new Promise((resolve) => {
  const answers = [];
  worker.onmessage = ({data}) => {
    answers.push(data);
    if (!parts.includes(data.op)) resolve(answers);
  };
  worker.postMessage({id: 3, ...request});
});
(async () => {
  const answers = [await ask({op: "load", header, weights})];
  for (const request of requests) answers.push(await ask(request));
  worker.terminate();
  done(JSON.stringify(answers, plain));
})();
"""


def rounded(checkpoint: CheckpointData) -> CheckpointData:
    """The checkpoint with weights rounded to float16, as a page stores them."""
    weights = checkpoint.weights.items()
    rounded_weights = {name: w.astype(np.float16).astype(np.float32) for name, w in weights}
    return replace(checkpoint, weights=rounded_weights)


class Page:
    """A model that runs in the browser, and the same model with the page's weights in Python."""

    def __init__(self, browser: Chrome, checkpoint: CheckpointData) -> None:  # noqa: F811
        self.browser, self.content = browser, page_content(checkpoint)
        self.checkpoint = rounded(checkpoint)

    def ask(self, *requests: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """Return the answers to each request, after loading the model."""
        answers: list[list[dict[str, Any]]] = json.loads(
            self.browser.execute_async_script(ASK, WORKER, *self.content, requests)
        )
        assert answers[0][-1] == {"op": "loaded", "id": 3}
        return answers[1:]

    def sample(self, ids: list[int], length: int, **request: Any) -> str:
        """Return a sample of at most `length` characters after `ids`.

        Ours has the same text and, up to 1e-4, the same log-probabilities.
        """
        request = {
            "op": "generate",
            "ids": ids,
            "seed": 5,
            "rules": RULES,
            "length": length,
        } | request
        [answers] = self.ask(request)
        engine = NumpyEngine(self.checkpoint.config.model, self.checkpoint.weights, 1)
        chunks = generate(
            engine,
            self.checkpoint.vocabulary,
            [ids],
            sample_streams(5, [0]),
            length=length,
            rules=SampleConfig.model_validate(request["rules"]),
            stops=request.get("stops", ()),
        )
        [sample] = collect(chunks, [""])
        assert "".join(answer["text"] for answer in answers[:-1]) == sample.text
        if not self.checkpoint.vocabulary.is_bytes:
            theirs = np.log([answer["probability"] for answer in answers[:-1]])
            assert theirs == pytest.approx(np.array(sample.log_probabilities), abs=1e-4)
        return sample.text


@pytest.fixture
def open_page(browser: Chrome) -> Callable[..., Page]:  # noqa: F811
    browser.get("about:blank")
    return lambda checkpoint: Page(browser, checkpoint)


def logits_of(checkpoint: CheckpointData, ids: list[int]) -> NDArray[np.float64]:
    with torch.no_grad():
        logits = load_model(checkpoint, torch.device("cpu"))(torch.tensor([ids]))
    return logits[0].double().numpy()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_page_computes_our_probabilities_and_writes_our_text(open_page, shape):
    """The text is longer than T, so the context is cut several times."""
    page = open_page(data_of(network_of(**shape)))
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9]
    [[answer]] = page.ask({"op": "distribution", "ids": ids})
    expected = log_softmax(logits_of(page.checkpoint, ids))[-1]
    assert np.log(answer["probabilities"]) == pytest.approx(expected, abs=1e-4)
    page.sample(ids[:5], 101)


def network_with(V: int) -> GPT:
    generator = torch.Generator().manual_seed(3)
    network = GPT(small().model, V, generator)
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return network


@pytest.mark.parametrize("ensemble", [1, 3])
def test_a_page_measures_a_text_as_a_val_loss_is_measured(open_page, ensemble):
    """The text has several windows of T ids, and the page several passes in each."""
    page = open_page(data_of(network_of(ensemble=ensemble, T=41)))
    ids = np.random.default_rng(11).integers(0, len(VOCABULARY), 101)
    [answers] = page.ask({"op": "score", "ids": ids.tolist()})
    p = np.concatenate([a["probabilities"] for a in answers if a["op"] == "scores"])[1:]
    expected = evaluate(load_model(page.checkpoint, torch.device("cpu")), ids.astype(np.uint8))
    assert -np.log(p.astype(float)).mean() == pytest.approx(expected, abs=1e-5)


def test_bytes_become_characters_and_stop_strings_end_a_text(open_page):
    page = open_page(replace(data_of(network_with(256)), vocabulary=BYTES))
    prompt = list("日本é".encode()[:-1])
    text = page.sample(prompt, 67, rules={"temperature": 0.5, "min_p": 0.0})
    stop = text[40:42]
    stopped = page.sample(
        prompt, 67, rules={"temperature": 0.5, "min_p": 0.0}, stops=[stop, "never"]
    )
    assert stopped == text[: text.index(stop)]


def test_attention_and_the_inside_view_show_what_the_network_computes(open_page):
    page = open_page(data_of(network_of(key_offset=True, attention_scale=1.5)))
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    [[inside]] = page.ask({"op": "inside", "ids": ids, "layer": 1, "head": 2})
    [network] = members_of(load_model(page.checkpoint, torch.device("cpu")))
    vocabulary = page.checkpoint.vocabulary
    weights = attend_text(network, vocabulary, vocabulary.decode(ids)).weights[:, :, -1].numpy()
    assert inside["start"] == 0
    assert np.array(inside["weights"]) == pytest.approx(weights, abs=1e-5)

    with torch.no_grad():
        _, streams = run_with_streams(network, torch.tensor(ids))
        block = blocks_of(network)[1]
        q, k, _ = (y[0, 2] for y in block.attention.heads(block.attention_norm(streams[1])))
        hidden = network.norm(torch.stack([s[0, -1] for s in streams]))
        lens = torch.softmax(network.head(hidden), -1)
    assert inside["query"] == pytest.approx(q[-1].numpy(), abs=1e-4)
    scores = 1.5 * (k @ q[-1]).numpy() / len(q[-1]) ** 0.5
    assert inside["scores"] == pytest.approx(scores, abs=1e-4)
    assert np.array(inside["streams"]) == pytest.approx(
        np.array([s[0, -1] for s in streams]), abs=1e-4
    )
    for shown, p in zip(inside["lens"], lens.numpy(), strict=True):
        assert [probability for _, probability in shown] == pytest.approx(
            np.sort(p)[::-1][:10], abs=1e-5
        )


def test_the_likeliest_follow_the_temperature(open_page):
    page = open_page(data_of(network_of()))
    ids = [3, 1, 4]
    request = {"op": "generate", "ids": ids, "seed": 5, "length": 1}
    [distribution], [cool, _], [greedy, _] = page.ask(
        {"op": "distribution", "ids": ids},
        request | {"rules": {"temperature": 0.5}},
        request | {"rules": {"temperature": 0}},
    )
    log_p = log_softmax(logits_of(page.checkpoint, ids)[-1:])[0]
    assert distribution["probabilities"] == pytest.approx(np.exp(log_p), abs=1e-5)
    cooled = np.exp(log_softmax(log_p[None] / 0.5)[0])
    order = np.argsort(-cooled)[:10]
    assert [id_ for id_, _ in cool["top"]] == order.tolist()
    assert [p for _, p in cool["top"]] == pytest.approx(cooled[order], abs=1e-5)
    assert greedy["top"][0] == [order[0], 1]


def test_a_weight_that_float16_cannot_store_is_refused():
    """As infinity, it would break the page only when it writes."""
    checkpoint = data_of(network_of())
    weights = checkpoint.weights | {"norm.bias": np.full(24, -65_600, np.float32)}
    with pytest.raises(UsageError, match=r"is 65,600, .* most 65,504"):
        page_content(replace(checkpoint, weights=weights))
