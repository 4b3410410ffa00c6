"""Characters in, batches out."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.distributed import SINGLE
from gpt.errors import TextError
from gpt.evaluation.windows import scored_windows
from gpt.model.transformer import GPT
from gpt.reading import named
from gpt.reading.named import SHAKESPEARE_BYTES, locate_shakespeare
from gpt.reading.sources import open_source
from gpt.seeds import random_stream
from gpt.terminal import visible
from gpt.text.batches import batch, shuffled, token_dropout
from gpt.text.corpus import load_corpus
from gpt.text.vocabulary import MASKED
from gpt.training.members import build_step
from tests.conftest import SHARED_DATA, small

any_text = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\r\t\f\x85"))


def write(content: bytes, name: str = "text.txt") -> str:
    Path(name).write_bytes(content)
    return name


def test_a_download_is_kept_in_the_cache_and_a_wrong_one_refused(tmp_path, monkeypatch):
    content, origin = b"To be, or not to be" * 101, tmp_path / "origin.txt"
    sha256 = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(named, "SHAKESPEARE_URL", origin.as_uri())
    monkeypatch.setattr(named, "SHAKESPEARE_BYTES", len(content))
    monkeypatch.setattr(named, "SHAKESPEARE_SHA256", sha256)
    message = r"cannot download tinyshakespeare.*No such file.*put the file at"
    with pytest.raises(TextError, match=message):
        locate_shakespeare()
    for wrong in (content[:7], content + b"!"):
        origin.write_bytes(wrong)
        with pytest.raises(TextError, match=rf"with SHA-256.* \(1,919 bytes, SHA-256 {sha256}\)"):
            locate_shakespeare()
    origin.write_bytes(content)
    kept = locate_shakespeare()
    origin.unlink()
    assert locate_shakespeare() == kept and kept.read_bytes() == content
    Path("data").mkdir()
    write(content[:-1], "data/tinyshakespeare.txt")
    message = r"data/tinyshakespeare\.txt: expected tinyshakespeare .*remove it"
    with pytest.raises(TextError, match=message):
        locate_shakespeare()


def test_the_pinned_shakespeare_is_the_fields():
    file = SHARED_DATA / "tinyshakespeare.txt"
    if not file.exists():
        pytest.skip("tinyshakespeare.txt is not at hand")
    Path("data").mkdir()
    Path("data/tinyshakespeare.txt").symlink_to(file)
    corpus = load_corpus(open_source("tinyshakespeare"))
    assert (len(corpus.ids), len(corpus.vocabulary)) == (SHAKESPEARE_BYTES, 65)
    assert (len(corpus.train), len(corpus.val)) == (1_003_854, 111_540)  # nanoGPT's split


def test_a_batch_follows_from_seed_and_step_alone():
    ids = np.arange(251, dtype=np.uint8)
    first, _ = batch(ids, 5, 7, seed=3, step=11)
    batch(ids, 5, 7, seed=3, step=12)
    assert batch(ids, 5, 7, seed=3, step=11)[0].equal(first)
    assert not batch(ids, 5, 7, seed=3, step=12)[0].equal(first)
    assert not batch(ids, 5, 7, seed=4, step=11)[0].equal(first)


def test_token_dropout_draws_each_token_independently_from_seed_and_step():
    ids = torch.arange(101 * 103).view(101, 103)
    x = token_dropout(ids, 0.3, seed=3, step=11)
    dropped = x == MASKED
    assert x[~dropped].equal(ids[~dropped])
    for mean in (dropped.float().mean(), (dropped[1:] & dropped[:-1]).float().mean() ** 0.5):
        assert mean.item() == pytest.approx(0.3, abs=0.02)  # four deviations; independent, too
    assert token_dropout(ids, 0.3, seed=3, step=11).equal(x)
    for other in (
        token_dropout(ids, 0.3, seed=4, step=11),
        token_dropout(ids, 0.3, seed=3, step=12),
    ):
        assert not other.equal(x)


@given(n=st.integers(2, 503), T=st.integers(1, 89), B=st.integers(1, 31), seed=st.integers(0, 9))
def test_no_pass_reads_a_character_twice(n, T, B, seed):
    """Of 8 passes drawn with replacement, a character was read 8 times, give or take 3."""
    T = min(T, n - 1)
    windows, ids = max((n - T) // T, 1), np.arange(n, dtype=np.uint16)
    steps = range(-(-3 * windows // B))
    x = torch.cat([batch(ids, B, T, seed=seed, step=step)[0] for step in steps])
    for one in x[: 3 * windows].view(3, -1):
        assert one.unique().numel() == one.numel() > n - 2 * T


def test_any_window_stands_at_any_place_of_a_pass_as_often():
    """Of 20 windows, the 19th once was the 19th of its pass three times as often as it should."""
    places, passes = np.arange(20), 4001
    counts = np.zeros((20, 20))
    for number in range(passes):
        counts[places, shuffled(places, 20, random_stream(1, "batch", number))] += 1
    mean = passes / 20
    assert abs(counts - mean).max() < 5.5 * mean**0.5


@given(n=st.integers(2, 503), T=st.integers(1, 89), B=st.integers(1, 5))
def test_windows_score_each_character_but_the_first_once(n, T, B):
    ids = np.arange(n, dtype=np.uint16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpt.evaluation.windows.EVAL_CHARACTERS", B * T)
        windows = list(scored_windows(ids, T))
    assert np.concatenate([y.flatten() for _, y in windows]).tolist() == list(range(1, n))
    for x, y in windows:
        assert (y == x + 1).all()
        assert x.shape[1] == T or x.shape[0] == 1


def test_a_terminal_obeys_nothing_that_a_model_says():
    assert visible("a\x1b[2Jb\r\x07\x7f\x9b") == "a\\x1b[2Jb\\r\\x07\\x7f\\x9b"
    assert visible("left\u202eright\u2066\u2028") == "left\\u202eright\\u2066\\u2028"
    harmless = "tab\tline\n naïve 日本 नमस्ते 👩\u200d🚀 \u0641\u200c"
    assert visible(harmless) == harmless


def test_each_step_of_a_training_takes_the_batch_of_its_number():
    """Also when the step is repeated, as after a rollback, and when windows become longer."""
    config = small(
        model__T=12, train__first_window=4, train__steps=6, train__batch_size=5,
        model__character_dropout=0.3,
    )  # fmt: skip
    ids = (np.arange(997) ** 2 % 31).astype(np.uint8)
    step = build_step(config, GPT(config.model, 31), torch.device("cpu"), SINGLE, ids)
    taken: list[torch.Tensor] = []
    step.model.register_forward_pre_hook(lambda _model, inputs: taken.append(inputs[0]))
    for i in (0, 1, 2, 3, 2, 3, 4, 5, 5, 0):
        taken.clear()
        step(i)
        B, T = (15, 4) if i < 5 else (5, 12)
        x, _ = batch(ids, B, T, seed=config.seed, step=i)
        assert torch.cat(taken).equal(token_dropout(x, 0.3, seed=config.seed, step=i))
