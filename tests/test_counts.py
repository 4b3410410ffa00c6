"""N-gram counts of the train split and of the window: exact, causal, and part of the model."""

import hashlib
import itertools
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors.torch import save_file
from torch.nn.functional import nll_loss
from torch.nn.utils import clip_grad_norm_

import gpt
from gpt import load
from gpt.config.schema import Config
from gpt.counts import ngram_counts
from gpt.counts.experts import MANY_IDS, Experts
from gpt.counts.kneser_ney import NO_ID, Floats, KneserNey
from gpt.counts.long_contexts import NEAREST, index_contexts
from gpt.counts.mixture import Gate, Mixture, gate_inputs, mixture_from, weighted, without_network
from gpt.counts.ngram_counts import count_ngrams, longest_context
from gpt.counts.window import Characters
from gpt.distributed.ranks import SINGLE
from gpt.errors import CheckpointError, ConfigError, Interrupted
from gpt.model.ensemble import LanguageModel, make_model
from gpt.model.windows import (
    ADAPTATION_RATE,
    ADAPTED_IDS,
    ADVANTAGE,
    DECAY,
    MAX_GRADIENT,
    AdaptiveGate,
    Switch,
    mixed,
)
from gpt.runs.read import read_checkpoint
from gpt.sampling.counted_texts import CountedTexts
from gpt.text.corpus import load_corpus
from gpt.text.sources import open_source
from gpt.text.vocabulary import Vocabulary
from gpt.training.build_step import build_step
from gpt.training.evaluator import Evaluator, Progress
from gpt.training.gate_fit import GateFit, held_out_ids
from gpt.training.run_context import RunContext
from gpt.training.time_budget import CHARACTER, EVALUATION, Stopwatch
from tests.conftest import PANGRAM, small
from tests.pretend import CPU

V = 5
VOCABULARY = Vocabulary("\n abc")
CHARACTERS = Characters.of(VOCABULARY.names)
TEXTS = st.lists(st.integers(0, V - 1), max_size=41)
TRAINS = st.lists(st.integers(0, V - 1), min_size=2, max_size=41)
COUNTED = {"T": 31, "attention_window": 13, "counts": 3, "window_counts": 2}


def array(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.uint8)


def text_of(tmp_path: Path) -> str:
    """A text of 29 lines that differ by a number, in a file."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{i} {PANGRAM}" for i in range(29)), "utf-8")
    return str(path)


def counted(**model: object) -> Config:
    """A small config with counts, and these settings of the model."""
    sizes = small().model.model_dump(exclude={"T", "attention_window"})
    return small(model=sizes | COUNTED | model)


def fitted() -> Mixture:
    """The mixture of a network that predicts nothing and the counts of a random text."""
    ids = np.random.default_rng(5).integers(0, V, 211).astype(np.uint8)
    return GateFit(counted(), ids, VOCABULARY).fit(ZeroNetwork(), 0)


def mixture_of(train: list[int]) -> Mixture:
    """Counts of this train split, and gates that are not fitted."""
    experts, gate = Experts.of(array(train), V, 3, 3, CHARACTERS), fitted().gate
    return Mixture(experts, gate, gate, 97)


def train(tmp_path: Path, name: str, **settings: object) -> Path:
    config = counted(**settings)
    return Path(gpt.train(config, text=text_of(tmp_path), run_dir=tmp_path / name).run)


@given(TEXTS, st.integers(1, 3))
def test_the_longest_ngrams_are_counted_by_occurrences_and_shorter_ones_by_preceding_ids(
    ids: list[int], order: int
) -> None:
    counts = count_ngrams(array(ids), V, order)
    windows = [tuple(ids[i : i + order + 1]) for i in range(len(ids) - order)]
    expected = Counter(windows)
    for n in range(order, -1, -1):
        keys = [sum(id_ * V ** (n - i) for i, id_ in enumerate(ngram)) for ngram in expected]
        assert dict(zip(counts.keys[n].tolist(), counts.counts[n].tolist(), strict=True)) == dict(
            zip(keys, expected.values(), strict=True)
        )
        expected = Counter(ngram[1:] for ngram in expected)


@given(TEXTS)
def test_a_text_counted_in_parts_has_the_counts_of_the_whole(ids: list[int]) -> None:
    whole = count_ngrams(array(ids), V, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_counts, "SORTED_IDS", 7)
        parts = count_ngrams(array(ids), V, 2)
    for n in range(3):
        assert parts.keys[n].tolist() == whole.keys[n].tolist()
        assert parts.counts[n].tolist() == whole.counts[n].tolist()


@pytest.mark.parametrize(("size", "order"), [(2, 61), (65, 9), (256, 6), (7000, 3)])
def test_the_longest_context_is_the_last_whose_ngrams_fit_63_bits(size: int, order: int) -> None:
    assert longest_context(size) == order
    assert size ** (order + 1) < 2**63 <= size ** (order + 2)


def slow_discounts(counts: list[int]) -> list[float]:
    """Chen and Goodman's estimates (equation 17), or defaults if one cannot be estimated."""
    n = [counts.count(times) for times in range(5)]
    if 0 in n[1:]:
        return [0.5, 1.0, 1.5]
    y = n[1] / (n[1] + 2 * n[2])
    found = [times - (times + 1) * y * n[times + 1] / n[times] for times in (1, 2, 3)]
    return [min(max(0.1, d), times - 0.1 * (times > 1)) for times, d in enumerate(found, 1)]


def slow_kneser_ney(ids: list[int], context: list[int], order: int) -> list[float]:
    """Interpolated Kneser-Ney by the formula."""
    levels = [Counter(tuple(ids[i : i + order + 1]) for i in range(len(ids) - order))]
    for _ in range(order):
        levels.insert(0, Counter(ngram[1:] for ngram in levels[0]))
    p = [1 / V] * V
    for n, level in enumerate(levels):
        if n > len(context):
            break
        before = tuple(context[len(context) - n :])
        found = {ngram[-1]: count for ngram, count in level.items() if ngram[:-1] == before}
        if not found:
            continue
        total = sum(found.values())
        of_times = slow_discounts(list(level.values()))
        discounts = {id_: of_times[min(count, 3) - 1] for id_, count in found.items()}
        freed = sum(discounts.values()) / total
        p = [
            freed * p[id_] + (found.get(id_, 0) - discounts.get(id_, 0)) / total for id_ in range(V)
        ]
    return p


@given(TEXTS, st.lists(st.integers(0, V - 1), max_size=4))
def test_kneser_ney_is_the_formula(ids: list[int], context: list[int]) -> None:
    model = KneserNey(count_ngrams(array(ids), V, 3))
    padded = ([NO_ID] * 3 + context)[-3:]
    predictions, _ = model.predict(np.array([padded]))
    expected = slow_kneser_ney(ids, context[-3:], 3)
    np.testing.assert_allclose(predictions[-1][0], expected, atol=1e-6)


@given(TEXTS, st.lists(st.integers(0, V - 1), min_size=3, max_size=23))
def test_the_probability_of_each_id_is_that_of_the_whole_distribution(
    ids: list[int], text: list[int]
) -> None:
    model = KneserNey(count_ngrams(array(ids), V, 3))
    expected = [slow_kneser_ney(ids, text[i - 3 : i], 3)[text[i]] for i in range(3, len(text))]
    np.testing.assert_allclose(model.probabilities(array(text)), expected, atol=1e-6)


def test_a_vocabulary_of_any_size_is_counted_without_a_table() -> None:
    """V^3 numbers would be a million gigabytes."""
    many = 100_003
    ids = np.random.default_rng(3).integers(many, size=1009, dtype=np.uint32)
    ids = np.concatenate([ids, ids])
    counts = count_ngrams(ids, many, 2)
    assert len(counts.keys[2]) == 1009
    assert -np.log(KneserNey(counts).probabilities(ids)).mean() < math.log(many) / 2


@given(TRAINS, TEXTS.filter(bool))
def test_each_expert_sums_to_1_and_is_the_same_one_id_at_a_time(
    ids: list[int], window: list[int]
) -> None:
    mixture = mixture_of(ids)
    log_p, _ = mixture.experts.of_window(np.array(window))
    np.testing.assert_allclose(np.exp(log_p).sum(-1), 1, atol=1e-5)
    log_p, features = mixture.for_sampling().experts.of_window(np.array(window))
    for others in ([], [window]):
        texts = CountedTexts(mixture, [window[:1], *others])
        for i in range(len(window)):
            one_log_p, one_features = texts.predict()
            np.testing.assert_allclose(one_log_p[0], log_p[i], atol=1e-4)
            np.testing.assert_allclose(one_features[0], features[i], atol=1e-5)
            following = window[i + 1] if i + 1 < len(window) else 0
            texts.append(np.array([following, *(0 for _ in others)]))


@given(
    st.lists(st.integers(0, 1), min_size=2, max_size=97),
    st.lists(st.integers(0, 1), min_size=1, max_size=41),
    st.sampled_from([2, 254, 255, 257]),
)
def test_long_contexts_are_counted_as_in_the_train_split(
    train: list[int], window: list[int], size: int
) -> None:
    """The oracle compares each context with each place of the train split."""
    first = size - 2  # the largest ids are the ones that could be taken for missing ids
    orders = (3, 7)
    contexts = index_contexts(np.array(train) + first, size, orders)
    counts = contexts.counts_in(np.array(window) + first, slice(None))
    for i in range(1, len(window) + 1):
        for n, found in zip(orders, counts[:, i - 1], strict=True):
            context = window[max(i - n, 0) : i]
            following = [
                train[j + n] + first
                for j in range(len(train) - n)
                if train[j : j + n] == context and len(context) == n
            ]
            expected = np.bincount(following, minlength=size)
            assert (found <= expected).all()
            if len(following) <= NEAREST // 2:
                np.testing.assert_array_equal(found, expected)
            else:
                assert found.sum() >= NEAREST // 2


@given(TRAINS, st.lists(TEXTS.filter(bool), min_size=1, max_size=5))
def test_texts_of_several_lengths_are_counted_separately(
    ids: list[int], windows: list[list[int]]
) -> None:
    mixture = mixture_of(ids)
    log_p, features = CountedTexts(mixture, windows).predict()
    for row, window in enumerate(windows):
        alone_log_p, alone_features = mixture.experts.of_train.of_window(np.array(window))
        np.testing.assert_allclose(log_p[row], alone_log_p[-1], atol=1e-4)
        np.testing.assert_allclose(features[row], alone_features[-1], atol=1e-5)


@given(TRAINS, TEXTS.filter(bool), TEXTS)
def test_later_ids_of_a_window_change_no_earlier_prediction(
    ids: list[int], window: list[int], later: list[int]
) -> None:
    experts = Experts.of(array(ids), V, 3, 3, CHARACTERS)
    log_p, features = experts.of_window(np.array(window))
    longer_log_p, longer_features = experts.of_window(np.array(window + later))
    np.testing.assert_array_equal(longer_log_p[: len(window)], log_p)
    np.testing.assert_array_equal(longer_features[: len(window)], features)


@given(TEXTS.filter(bool))
def test_the_keys_of_words_and_lines_are_equal_where_these_are(window: list[int]) -> None:
    """The oracle finds the current word, and the character above, in the text itself."""
    text, words, above = VOCABULARY.decode(window), [], []
    for end in range(1, len(text) + 1):
        words.append(re.search(r"(\w+|\W)\Z", text[:end], re.ASCII)[0])
        *lines, line = text[:end].split("\n")
        line_above = (lines[-1] + "\n")[len(line) :][:1] if lines else ""
        above.append((line_above, text[max(end - 2, 0) : end]))
    for keys, contexts in zip(CHARACTERS.keys(np.array(window)), (words, above), strict=True):
        for i, j in itertools.combinations(range(len(text)), 2):
            assert (keys[i] == keys[j]) == (contexts[i] == contexts[j])


@given(TRAINS, TEXTS.filter(bool), st.integers(0, 43))
def test_a_window_in_blocks_has_the_predictions_of_the_whole(
    ids: list[int], window: list[int], start: int
) -> None:
    experts = Experts.of(array(ids), V, 3, 3, CHARACTERS)
    whole = experts.of_window(np.array(window))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpt.counts.experts.BLOCK_NUMBERS", 3 * experts.size * V)
        start %= len(window)
        parts = zip(*experts.blocks(np.array(window), start), strict=True)
        for expected, blocks in zip(whole, parts, strict=True):
            np.testing.assert_array_equal(np.concatenate(blocks), expected[start:])


def test_window_counts_learn_a_repetition_that_the_train_split_lacks() -> None:
    experts = Experts.of(array([0, 1] * 19), V, 2, 3, CHARACTERS)
    log_p, _ = experts.of_window(np.array([2, 3, 4] * 5))
    last = np.exp(log_p[-1])
    longest = [experts.names.index(f"order {n} of the window") for n in (2, 3, 6)]
    assert (last[longest, 2] > 0.8).all()  # 2 always followed 4 in this window
    assert last[0, 2] < 0.3  # by the train split


def test_the_gate_is_fitted_on_text_that_neither_counts_nor_network_have_seen(
    tmp_path: Path,
) -> None:
    """Bug: the start was held out, which in a sorted list of names is of another kind than val."""
    rng = np.random.default_rng(3)
    ids = rng.integers(0, V, 1009).astype(np.uint8)
    config = counted()
    fit = GateFit(config, ids, VOCABULARY)
    n = held_out_ids(len(ids), 13, fit.experts.size, V)
    assert 0 < n < len(ids) / 4
    start = (len(ids) - n) // 2
    others = np.concatenate([ids[:start], ids[start + n :]])
    rest = Experts.of(others, V, 3, 2, CHARACTERS)
    x = ids[start : start + 31].astype(np.int64)
    np.testing.assert_array_equal(fit.log_probabilities[:31], rest.of_window(x)[0])
    assert fit.held_out.tolist() == ids[start : start + n].tolist()
    assert fit.network_ids.tolist() == others.tolist()
    assert fit.experts.counts.counts[3].sum() == len(ids) - 3  # the model counts all of it


def test_val_loss_is_that_of_the_loaded_model_in_windows_of_t(tmp_path: Path) -> None:
    run = train(tmp_path, "run")
    text = Path(text_of(tmp_path)).read_text("utf-8")
    val = text[int(0.9 * len(text)) :]
    model = gpt.load(run, "last")
    nats = []
    ids = model.vocabulary.encode(val).astype(int)
    for start in range(0, len(val) - 1, 31):
        log_p = model.logits(val[start : start + 31])
        np.testing.assert_allclose(log_p.exp().sum(-1), 1, atol=1e-5)
        nats += [-float(log_p[i, id_]) for i, id_ in enumerate(ids[start + 1 : start + 32])]
    assert len(nats) == len(val) - 1
    assert model.checkpoint.val_loss == pytest.approx(sum(nats) / len(nats), abs=1e-4)
    assert model.loss(val) == pytest.approx(model.checkpoint.val_loss, abs=1e-5)


def test_counts_predict_better_than_the_network_alone(tmp_path: Path) -> None:
    run = train(tmp_path, "run")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["val_loss"] < last["val_loss_network"] / 2


def test_a_resumed_run_with_counts_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = train(tmp_path, "whole")
    steps = read_checkpoint(whole, "last").step
    reached: list[int] = []
    with pytest.raises(Interrupted):
        gpt.train(
            counted(),
            text=text_of(tmp_path),
            run_dir=tmp_path / "half",
            on_event=lambda event: reached.append(event.get("step", 0)),
            should_stop=lambda: max(reached, default=0) >= 5,
        )
    gpt.resume(tmp_path / "half")
    assert read_checkpoint(tmp_path / "half", "last").step == steps
    folder = f"checkpoints/step-{steps}"
    for name in ("model.safetensors", "counts.safetensors"):
        whole_bytes = (whole / folder / name).read_bytes()
        assert (tmp_path / "half" / folder / name).read_bytes() == whole_bytes


def test_samples_longer_than_every_window_follow_the_seed_alone(tmp_path: Path) -> None:
    model = gpt.load(train(tmp_path, "run"))
    long = "".join(model.generate("the ", length=101, seed=7))
    assert len(long) == 101
    assert long.startswith("".join(model.generate("the ", length=37, seed=7)))
    both = list(gpt.load(model.run).sample(["the "], num_samples=2, length=101, seed=7))
    assert "".join(chunk.text for chunk in both if chunk.sample == 0) == long


def test_attend_shows_what_comes_from_counts_and_what_from_the_network(
    tmp_path: Path, gpt: Callable[..., tuple[int, str, str]]
) -> None:
    model = load(train(tmp_path, "run"), "last")
    text = "the quick 27 "
    found = model.attention_analysis(text)
    counts = found.with_counts
    assert counts is not None
    log_p, ids = model.logits(text), torch.from_numpy(model.vocabulary.encode(text).astype(int))
    assert counts.lens.predicted[1].equal(log_p.argmax(-1))
    torch.testing.assert_close(counts.lens.probabilities[1], log_p.exp().amax(-1))
    torch.testing.assert_close(counts.lens.losses[1], -log_p[:-1].gather(1, ids[1:, None])[:, 0])
    assert counts.lens.losses[1].mean().item() == pytest.approx(model.loss(text), abs=1e-5)
    assert (counts.lens.losses[1] != found.losses).any()
    assert counts.names == [
        *(f"order {n} of the train split" for n in (3, 6, 12)),
        *(f"order {n} of the window" for n in (1, 2, 4, 8)),
        *["the current word", "the character above and the last 2", "network"],
    ]
    assert counts.weights.shape == (len(text), 10)

    code, out, _ = gpt("attend", tmp_path / "run", "--checkpoint", "last", "--text", text)
    alone, mixed = counts.lens.losses.mean(-1).tolist()
    weight = counts.weights[:-1, -1].mean()
    assert code == 0
    assert " ".join(out.split()).endswith(
        f"With counts: network alone {found.losses.mean():.4f}, counts alone {alone:.4f}, "
        f"mixed {mixed:.4f} (mean weight of the network {weight:.2f})."
    )
    assert gpt("attend", tmp_path / "run")[0] == 0  # the val split is longer than 13 characters


def test_counts_alone_and_the_mixture_are_probabilities() -> None:
    """And counts alone follow from the experts alone: the network changes nothing."""
    rng = np.random.default_rng(11)
    p = rng.dirichlet(np.ones(V), (17, 4)).astype(np.float32)  # three experts and the network
    experts, network = np.log(p[:, :3]), np.log(p[:, 3])
    weights = rng.uniform(0.1, 1, (17, 4)).astype(np.float32)
    alone = without_network(weights)
    assert (alone[:, 3] == 0).all()
    np.testing.assert_allclose(alone.sum(1), weights.sum(1), rtol=1e-5)
    np.testing.assert_allclose(alone[:, 0] / alone[:, 1], weights[:, 0] / weights[:, 1], rtol=1e-5)
    product = np.prod(p[:, :3] ** alone[:, :3, None], 1)
    found = np.exp(weighted(alone, experts, network))
    np.testing.assert_allclose(found, product / product.sum(1, keepdims=True), atol=1e-5)
    for each in (alone, weights):
        np.testing.assert_allclose(np.exp(weighted(each, experts, network)).sum(1), 1, atol=1e-5)


def test_the_weights_of_experts_that_cancel_out_stay_finite() -> None:
    alone = without_network(np.array([[0.5, -0.5, 1]], np.float32))
    assert np.isfinite(alone).all()


def test_an_ensemble_shares_one_table_of_counts(tmp_path: Path) -> None:
    run = train(tmp_path, "run", ensemble=2)
    model = gpt.load(run, "last")
    text = "the quick brown fox"
    assert model.logits(text).exp().sum(-1).numpy() == pytest.approx(1, abs=1e-5)
    assert model.checkpoint.mixture is not None


def test_stored_counts_are_what_was_trained_with(tmp_path: Path) -> None:
    run = train(tmp_path, "run")
    mixture = read_checkpoint(run, "last").mixture
    assert mixture is not None
    again = mixture_from(
        mixture.tensors(),
        mixture.experts.characters,
        counted().model,
    )
    for name, array_ in mixture.tensors().items():
        np.testing.assert_array_equal(again.tensors()[name], array_)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("keys.2", lambda a: a[::-1].copy()),
        ("keys.0", lambda a: a + V**9),
        ("keys.1", lambda a: a.astype(np.int32)),
        ("counts.1", lambda a: a * 0),
        ("counts.3", lambda a: a[:-1]),
        ("gate.bias", lambda a: a * np.float32(math.nan)),
        ("gate.weight", lambda a: a[:-1]),
        ("gate.weight", lambda a: a + np.float32(1e30)),
        ("gate.scale", lambda a: a * 0),
        ("places", lambda a: a + 1),
        ("places", lambda a: a.astype(np.int64)),
        ("places", lambda a: a[1:]),
        ("reversed_ids", lambda a: a + V),
        ("keys.0", lambda a: np.array([0, 2**63 - 1, -(2**63), -5, 4][: len(a)])),
    ],
)
def test_impossible_counts_in_a_file_are_refused(name: str, change: object) -> None:
    config = counted()
    ids = np.random.default_rng(5).integers(0, V, 211).astype(np.uint8)
    fit = GateFit(config, ids, VOCABULARY)
    mixture = fit.fit(ZeroNetwork(), 0)
    tensors = mixture.tensors()
    assert mixture_from(tensors, CHARACTERS, config.model).T == 31
    assert callable(change)
    with pytest.raises(ValueError, match=name.split(".")[0]):
        mixture_from(tensors | {name: change(tensors[name])}, CHARACTERS, config.model)


class ZeroNetwork(torch.nn.Module):
    """Predicts every id with equal probability."""

    def __init__(self) -> None:
        super().__init__()
        self.config = small().model
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*ids.shape, V)


def test_a_checkpoint_without_its_counts_is_damaged(tmp_path: Path) -> None:
    run = train(tmp_path, "run")
    checkpoint = max((run / "checkpoints").glob("step-*"), key=lambda p: int(p.name[5:]))
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    assert gpt.load(copy).checkpoint.mixture is not None
    (copy / "counts.safetensors").unlink()
    with pytest.raises(CheckpointError, match="counts"):
        gpt.load(copy)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"T": 31, "attention_window": 13}, "set model.counts"),
        ({"window_counts": 3}, "model.counts of at least 1"),
    ],
)
def test_windows_and_counts_that_do_not_fit_are_refused(
    settings: dict[str, int], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        small(model={"T": 13, "C": 24, "n_head": 3} | settings)


def test_attention_reaches_no_further_than_the_window() -> None:
    assert small(model={"T": 31, "attention_window": 37, "C": 24}).model.attention_window == 31


def test_weights_of_the_gate_depend_on_the_position() -> None:
    rng = np.random.default_rng(7)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    gate = Gate(draw(11), np.abs(draw(11)) + 1, draw(11, 32), draw(32), draw(32, 3), draw(3))
    weights = gate.weights(draw(17, 11))
    assert weights.shape == (17, 3)
    assert len(np.unique(weights[:, 0])) == 17


@pytest.mark.pictures
def test_a_text_of_one_character_is_trained_on_and_sampled(tmp_path: Path) -> None:
    """Bug: without contexts, counts had no shape."""
    text = tmp_path / "a.txt"
    text.write_text("a" * 2003, "utf-8")
    run = Path(gpt.train(counted(), text=str(text), run_dir=tmp_path / "run").run)
    assert "".join(gpt.load(run).generate("a", length=17)) == "a" * 17


def test_samples_do_not_depend_on_what_the_text_repeats() -> None:
    """Bug: 97 % of a sample at temperature 0.5 repeated its own earlier lines."""
    mixture, context = fitted(), [3, 1, 4, 2, 0, 3, 1, 4, 2, 2, 1, 0, 1]  # the longest counted: 12
    network = np.log(np.full((1, V), 1 / V))
    repeated = CountedTexts(mixture, [4 * context]).mix(network)
    other = CountedTexts(mixture, [39 * [0] + context]).mix(network)
    np.testing.assert_array_equal(repeated, other)
    np.testing.assert_allclose(np.exp(repeated).sum(-1), 1, atol=1e-5)


def test_the_gate_of_samples_predicts_new_text_better_than_the_network() -> None:
    """Bug: the gate for all experts, with the weights of the window moved, was worse than none."""
    rng = np.random.default_rng(5)
    text = np.tile(rng.integers(0, V, 31), 7).astype(np.uint8)
    sampled = GateFit(counted(), text, VOCABULARY).fit(ZeroNetwork(), 0).for_sampling()
    window = text[:31].astype(np.int64)
    log_p, features = sampled.experts.of_window(window[:-1])
    mixed = sampled.mix(log_p, features, np.log(np.full((30, V), 1 / V, np.float32)))
    assert -mixed[np.arange(30), window[1:]].mean() < 0.5 * math.log(V)


def test_a_long_text_of_many_ids_is_sampled() -> None:
    """Bug: with 1000 ids or more, a sample of more than 256 characters ended in an IndexError."""
    ids = np.arange(MANY_IDS)
    experts = Experts.of(ids, MANY_IDS, 1, 2, Characters(ids > 9, 0))
    gate = fitted().gate
    texts = CountedTexts(Mixture(experts, gate, gate, 997), [[0]])
    text = np.arange(1, 523) % 31
    for each in text:
        texts.append(np.array([each]))
    log_p, _ = experts.of_train.of_window(np.array([0, *text]))
    np.testing.assert_allclose(texts.predict()[0][0], log_p[-1], atol=1e-4)


def test_a_train_split_as_long_as_the_attention_window_is_refused() -> None:
    """Bug: the network had too few ids for one window."""
    with pytest.raises(ConfigError, match=r"expected fewer than the 13 ids"):
        GateFit(counted(), np.zeros(15, np.uint8), VOCABULARY)


def test_a_type_that_numpy_lacks_is_a_damaged_file(tmp_path: Path) -> None:
    """Bug: bfloat16 in a file ended in a TypeError."""
    run = train(tmp_path, "run")
    checkpoint = max((run / "checkpoints").glob("step-*"), key=lambda p: int(p.name[5:]))
    counts = checkpoint / "counts.safetensors"
    save_file({"keys.0": torch.zeros(3, dtype=torch.bfloat16)}, counts)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["sha256"]["counts.safetensors"] = hashlib.sha256(counts.read_bytes()).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="numpy's types"):
        gpt.load(run, "last")


def test_the_time_to_fit_the_gate_is_not_that_of_scoring_characters(tmp_path: Path) -> None:
    """Bug: with a long val split, minutes were reserved for an evaluation of seconds."""
    now = [0.0]

    class SlowFit(GateFit):
        def fit(self, model: LanguageModel, step: int) -> Mixture:
            now[0] += 7
            return super().fit(model, step)

    config, corpus = counted(), load_corpus(open_source(text_of(tmp_path)))
    model, stopwatch = (
        make_model(config.model, len(corpus.vocabulary), 0),
        Stopwatch(lambda: now[0]),
    )
    fit = SlowFit(config, corpus.train, corpus.vocabulary)
    context = RunContext(config, corpus, tmp_path, SINGLE, lambda: False, torch.device("cpu"), fit)
    Evaluator(context, model, stopwatch, Progress()).evaluate(3, is_last=True)
    stopwatch.lap(EVALUATION)
    stopwatch.settle()
    assert stopwatch.seconds == {EVALUATION: 7, CHARACTER: 0}


def test_the_first_plan_includes_the_time_of_the_counts(tmp_path: Path) -> None:
    """Bug: the network alone was timed, so a run of a minute on a GPU planned 294 steps, not 11.

    Here fitting the gate takes 7 seconds, a prediction by counts 1, and nothing else any time.
    Bug: 22 MB of text did not fit into a minute, as the first predictions, which take five times as
    long, were timed. Here they take 101 seconds more.
    """
    seconds: list[int] = []

    class SlowExperts(Experts):
        def blocks(self, ids: NDArray[np.int64], start: int = 0) -> Iterator[tuple[Floats, Floats]]:
            for log_p, features in super().blocks(ids, start):
                seconds.append(len(features) + 101 * (seconds == [7]))
                yield log_p, features

    class SlowFit(GateFit):
        def fit(self, model: LanguageModel, step: int) -> Mixture:
            seconds.append(7)
            return super().fit(model, step)

    config, corpus = counted(), load_corpus(open_source(text_of(tmp_path)))
    fit = SlowFit(config, corpus.train, corpus.vocabulary)
    fit.experts = SlowExperts(
        fit.experts.counts, fit.experts.long_contexts, 2, fit.experts.characters
    )
    context = RunContext(config, corpus, tmp_path, SINGLE, lambda: False, torch.device("cpu"), fit)
    model = make_model(config.model, len(corpus.vocabulary), 0)
    update = build_step(config, model, CPU, SINGLE, context.network_ids, corpus.vocabulary)
    stopwatch = Stopwatch(lambda: sum(seconds))
    stopwatch.probe(update.probe, update, context)
    assert stopwatch.seconds == {EVALUATION: 7, CHARACTER: 1}


@given(st.integers(0, 2**32), st.integers(1, 97))
def test_the_average_prefers_what_predicted_the_last_ids_well(seed: int, size: int) -> None:
    """Bug: in a text whose val split was of another kind, the mixture cost 7 nats per character."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(V, 0.3), (97, 3)).astype(np.float32)
    log_p, following = np.log(np.maximum(p, 1e-9)), rng.integers(0, V, 97)
    switch = Switch()
    blocks = range(0, 97, size)
    found = [switch.average(log_p[i : i + size], following[i : i + size]) for i in blocks]
    losses, prior = np.zeros(3), np.array([ADVANTAGE, 0, 0])
    for i, average in enumerate(np.exp(np.concatenate(found))):
        weights = np.exp(prior - losses)
        np.testing.assert_allclose(average, weights / weights.sum() @ np.exp(log_p[i]), atol=1e-5)
        losses = DECAY * losses - log_p[i, :, following[i]]


@given(st.integers(0, 2**32))
def test_the_gate_takes_a_step_of_gradient_descent_after_each_block_of_ids(seed: int) -> None:
    """Bug: in a text whose val split was of another kind, the gate's weights stayed wrong."""
    rng = np.random.default_rng(seed)
    mixture, M = fitted(), 53
    gate, E, F = mixture.gate, mixture.experts.size, mixture.experts.features
    log_p = np.log(rng.dirichlet(np.full(V, 0.1), (M, E + 1)) + 1e-9).astype(np.float32)
    experts, network = log_p[:, :-1], log_p[:, -1]
    features, following = rng.random((M, F), np.float32), rng.integers(0, V, M)
    found, weights_used = AdaptiveGate(gate).mix(experts, features, network, following)
    np.testing.assert_allclose(np.exp(found).sum(-1), 1, atol=1e-4)
    hidden = torch.from_numpy(gate.hidden(gate_inputs(experts, features, network)))
    layer, bias = torch.from_numpy(gate.weight.copy()), torch.from_numpy(gate.bias.copy())
    for rows in torch.arange(M).split(ADAPTED_IDS):
        weights = hidden[rows] @ layer.requires_grad_() + bias.requires_grad_()
        np.testing.assert_allclose(weights_used[rows], weights.detach(), atol=2e-4)
        predictions = torch.from_numpy(log_p)[rows]
        expected = torch.einsum("me,mev->mv", weights, predictions).log_softmax(-1)
        np.testing.assert_allclose(found[rows], expected.detach(), atol=2e-3)
        nll_loss(expected, torch.from_numpy(following)[rows], reduction="sum").backward()
        clip_grad_norm_([layer, bias], MAX_GRADIENT)
        layer, bias = (each.detach() - ADAPTATION_RATE * each.grad for each in (layer, bias))


@given(st.lists(st.integers(0, V - 1), min_size=41, max_size=53), st.integers(1, 23))
def test_a_mixture_predicts_a_window_the_same_in_blocks_of_any_size(
    window: list[int], size: int
) -> None:
    """Bug: the gate also changed at the end of each block, so predictions depended on its size."""
    mixture, ids, logits = fitted(), torch.tensor([window]), torch.zeros(1, len(window), V)
    whole = mixed(mixture, ids, logits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpt.counts.experts.BLOCK_NUMBERS", size * mixture.experts.size * V)
        np.testing.assert_allclose(mixed(mixture, ids, logits), whole, atol=1e-4)


@given(st.lists(st.integers(0, V - 1), min_size=41, max_size=53), st.integers(1, 40))
def test_later_ids_of_a_window_change_no_earlier_prediction_of_the_mixture(
    window: list[int], kept: int
) -> None:
    """The network predicts nothing here. All that adapts to the window is included."""
    mixture, changed = fitted(), [*window[:kept], *(V - 1 - id_ for id_ in window[kept:])]
    both = torch.tensor([window, changed])
    log_p = mixed(mixture, both, torch.zeros(2, len(window), V))
    np.testing.assert_allclose(log_p[0, :kept], log_p[1, :kept], atol=1e-5)
    np.testing.assert_allclose(log_p.exp().sum(-1), 1, atol=1e-4)
