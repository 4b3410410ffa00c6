"""One function maps ids to probabilities; samples, logits, loss, the server and the page agree."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import gpt
from gpt.api.model import Model
from gpt.sampling.stopping import collect
from tests.conftest import trained
from tests.serving import ask, shared_server  # noqa: F401
from tests.test_export import Page
from tests.test_page import Chrome, browser  # noqa: F401

T = 31
PLAIN = {"temperature": 1.0, "min_p": 0.0}


@pytest.fixture(name="run", scope="module", params=[1, 3], ids=["plain", "ensemble"])
def trained_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"), model__T=T, model__ensemble=request.param)


def sampled(model: Model, prompt: str, length: int) -> tuple[str, NDArray[np.float64]]:
    """A sample, and the log-probabilities that `sample` returns for its characters."""
    [sample] = collect(model.sample([prompt], length=length, seed=7, rules=PLAIN), [prompt])
    return sample.text, np.array(sample.log_probabilities)


def from_logits(model: Model, text: str) -> NDArray[np.float64]:
    """The log-probabilities of at most T characters, those after the first one of `text`."""
    log_p = torch.log_softmax(model.logits(text[:-1]).double(), -1)
    ids = torch.from_numpy(model.vocabulary.encode(text).astype(np.int64))[1:]
    return log_p.gather(1, ids[:, None])[:, 0].numpy()


def echoed(url: str, text: str) -> NDArray[np.float64]:
    """The log-probabilities of all characters of `text` but the first, by the server."""
    fields = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0}
    status, answer, _ = ask(url, fields)
    assert status == 200
    return np.array(answer["choices"][0]["logprobs"]["token_logprobs"][1:])


def test_up_to_t_all_parts_agree(run, server, browser):  # noqa: F811
    """Bug: the printed loss was that of a mixture with n-gram counts, samples those of another."""
    model, prompt = gpt.load(run), "the "
    sample, log_p = sampled(model, prompt, T - len(prompt))
    text, first = prompt + sample, len(prompt) - 1
    all_log_p = from_logits(model, text)
    assert all_log_p[first:] == pytest.approx(log_p, abs=1e-4)
    assert model.loss(text) == pytest.approx(-all_log_p.mean(), abs=1e-4)
    assert echoed(server, text) == pytest.approx(all_log_p, abs=1e-4)
    browser.get("about:blank")
    page = Page(browser, model.checkpoint)
    [answers] = page.ask({"op": "score", "ids": model.vocabulary.encode(text).tolist()})
    p = np.concatenate([each["probabilities"] for each in answers if each["op"] == "scores"])[1:]
    with_rounded_weights = from_logits(Model(run, page.checkpoint, "cpu"), text)
    assert np.log(p.astype(float)) == pytest.approx(with_rounded_weights, abs=1e-4)


def test_beyond_t_samples_server_and_page_move_the_context_alike(run, server, browser):  # noqa: F811
    model, prompt = gpt.load(run), "the "
    sample, log_p = sampled(model, prompt, 3 * T)
    text = prompt + sample
    assert echoed(server, text)[len(prompt) - 1 :] == pytest.approx(log_p, abs=1e-4)
    browser.get("about:blank")
    page = Page(browser, model.checkpoint)
    page.sample(model.vocabulary.encode(prompt).tolist(), 3 * T, rules=PLAIN)  # compares with ours
    starts = range(0, len(text) - 1, T)
    windows = [from_logits(model, text[start : start + T + 1]) for start in starts]
    assert model.loss(text) == pytest.approx(-np.concatenate(windows).mean(), abs=1e-4)
