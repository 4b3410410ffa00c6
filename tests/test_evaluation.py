"""Losses of a text: the whole of it, and an evenly spread part."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gpt.evaluation.loss import evaluate
from gpt.model.transformer import GPT
from gpt.text import batches
from gpt.text.batches import spread_windows
from gpt.text.corpus import Corpus
from tests.conftest import small


@pytest.fixture
def model(corpus: Corpus) -> GPT:
    model = GPT(small().model, len(corpus.vocabulary), torch.Generator().manual_seed(2))
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(3))
    return model


@pytest.mark.parametrize("characters", [1, 13, 97, 500, 10**9])
def test_a_part_of_the_text_is_scored_as_in_the_whole(
    corpus: Corpus, model: GPT, monkeypatch: pytest.MonkeyPatch, characters: int
) -> None:
    """The oracle scores window after window, of which a part is some, the same distance apart."""
    monkeypatch.setattr(batches, "EVAL_CHARACTERS", 3 * 13)
    T, ids = 13, corpus.ids[:501]
    losses = []
    for start in range(0, len(ids) - 1, T):
        window = torch.from_numpy(ids[start : start + T + 1].astype(np.int64))
        logits = model(window[None, :-1])[0].log_softmax(1)
        losses.append(-logits[torch.arange(len(window) - 1), window[1:]])
    if characters < 500:
        whole = losses[: 500 // T]
        n = max(1, characters // T)
        losses = [whole[math.floor(i * len(whole) / n)] for i in range(n)]
    expected = torch.cat(losses).mean().item()
    assert evaluate(model, ids, characters=characters) == pytest.approx(expected, rel=1e-5)


def test_a_part_of_a_text_shorter_than_a_window_is_all_of_it(corpus: Corpus, model: GPT) -> None:
    """It was looked for beyond the text's end."""
    for length in (5, 13, 14):
        ids = corpus.ids[:length]
        assert evaluate(model, ids, characters=3) == evaluate(model, ids)


def test_a_part_is_spread_over_all_of_the_text() -> None:
    ids = np.arange(10_007)
    firsts = torch.cat([x[:, 0] for x, _ in spread_windows(ids, 7, 7 * 53)])
    assert len(firsts) == 53
    gaps = firsts.diff()
    assert (int(firsts[0]), int(gaps.max() - gaps.min()) <= 7) == (0, True)
    assert 10_007 - int(firsts[-1]) <= gaps.max() + 7


def test_progress_adds_up_to_every_character_that_is_scored(
    corpus: Corpus, model: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "EVAL_CHARACTERS", 2 * 13)
    scored: list[int] = []
    evaluate(model, corpus.ids, on_progress=scored.append)
    assert sum(scored) == len(corpus.ids) - 1
    assert len(scored) > 40
    scored.clear()
    evaluate(model, corpus.ids, characters=13 * 17 + 5, on_progress=scored.append)
    assert sum(scored) == 13 * 17


def test_an_evaluation_leaves_later_threads_as_many_threads(
    corpus: Corpus, model: GPT, set_threads: Callable[[int], None]
) -> None:
    """Set in a thread of the pool, one thread became the default of all threads made later."""
    from concurrent.futures import ThreadPoolExecutor

    set_threads(3)
    evaluate(model, corpus.val)
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == 3
