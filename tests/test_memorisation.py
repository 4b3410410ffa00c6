"""`gpt eval --memorisation`: copies of the train split, and how well it is continued."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpt import api
from gpt.evaluation.memorisation import COPY_LENGTHS, find_copies
from tests.conftest import PANGRAM, small

Gpt = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("seed", range(7))
def test_copies_are_those_of_a_search_one_substring_at_a_time(seed: int) -> None:
    source = np.random.default_rng(seed)
    text = source.integers(2, size=617).astype(np.uint8)
    text[300:431] = text[100:231]  # two occurrences
    lengths = (29, 157, 1, 61)
    pieces = [source.integers(2, size=n).astype(np.uint8) for n in lengths]
    pieces[1][11 : 11 + 17 * seed] = text[307 : 307 + 17 * seed]
    shares, longest = find_copies(text, pieces)
    whole, best = text.tobytes(), 0
    for n in range(1, 158):
        substrings = [
            piece[i : i + n].tobytes() for piece in pieces for i in range(len(piece) - n + 1)
        ]
        there = [substring in whole for substring in substrings]
        best = n if any(there) else best
        if n in COPY_LENGTHS:
            assert shares[n] == pytest.approx(np.mean(there))
    assert len(longest) == best
    assert longest.tobytes() in whole


@pytest.mark.parametrize("place", [0, 2**20 - 53, 2**20 + 199_900])
def test_a_planted_quotation_of_100_characters_is_found_exactly(place: int) -> None:
    """It is at the start or the end of the text, or across two parts that are searched apart."""
    source = np.random.default_rng(1)
    text = source.integers(97, size=2**20 + 200_000).astype(np.uint8)
    pieces = [source.integers(97, size=509).astype(np.uint8) for _ in range(3)]
    pieces[1][211:311] = text[place : place + 100]
    if place:
        pieces[1][210] = (int(text[place - 1]) + 1) % 97
    pieces[1][311] = 97  # occurs nowhere
    shares, longest = find_copies(text, pieces)
    np.testing.assert_array_equal(longest, pieces[1][211:311])
    expected = {n: max(101 - n, 0) / (3 * (510 - n)) for n in COPY_LENGTHS}
    assert shares == pytest.approx(expected)


def words(seed: int, count: int) -> str:
    """A text of `count` words, which are drawn independently."""
    source = np.random.default_rng(seed)
    return " ".join(source.choice(PANGRAM.split(), size=count))


def test_an_overfitted_model_is_detected_and_a_normal_one_is_not(gpt: Gpt) -> None:
    config = small(model__T=24, model__C=48, train__batch_size=16, train__eval_every=1000)
    settings = {"train.learning_rate": 0.01, "train.checkpoint_every": 1000}
    reports = {}
    for name, word_count, steps in (("normal", 2003, 50), ("overfitted", 151, 150)):
        Path(f"{name}.txt").write_text(words(1, word_count))
        changes = settings | {"train.steps": steps}
        api.train(config, text=f"{name}.txt", settings=changes, run_dir=name)
        code, out, err = gpt("eval", name, "--memorisation", "--json", "--checkpoint", "last")
        assert code == 0, err
        reports[name] = json.loads(out)["memorisation"]
    assert not reports["normal"]["memorised"], reports["normal"]["verdict"]
    overfitted = reports["overfitted"]
    assert overfitted["memorised"]
    assert overfitted["train"]["exact"] > 0.5
    assert overfitted["train"]["loss"] < overfitted["unseen"]["loss"]
    assert overfitted["samples"]["shares"]["32"] > overfitted["human"]["shares"]["32"]
    assert overfitted["samples"]["longest_text"] in Path("overfitted.txt").read_text()
    code, out, _ = gpt("eval", "overfitted", "--memorisation", "--checkpoint", "last")
    assert (code, "memorised" in out) == (0, True)


def test_part_of_the_train_split_is_not_called_unseen(gpt: Gpt) -> None:
    """Bug: for the train split itself, the verdict was that there is no sign of memorisation."""
    Path("a.txt").write_text(words(1, 503))
    run = api.train(small(train__steps=2), text="a.txt", run_dir="run").run
    Path("part.txt").write_text(words(1, 503)[:1201])
    code, out, _ = gpt("eval", run, "part.txt", "--memorisation", "--json")
    assert code == 0
    verdict = json.loads(out)["memorisation"]["verdict"]
    assert verdict.startswith("the evaluated text is not unseen")


def test_it_needs_the_runs_text_and_a_text_that_is_long_enough(gpt: Gpt) -> None:
    """Bug: a text shorter than the substrings that are compared was said to share none of them."""
    Path("a.txt").write_text(PANGRAM * 29)
    run = api.train(small(), text="a.txt", run_dir="run").run
    Path("short.txt").write_text(PANGRAM[:31])
    code, out, err = gpt("eval", run, "short.txt", "--memorisation")
    assert (code, out) == (2, "")
    assert "--memorisation: expected at least 32 characters in short.txt, got 31" in err
    Path("a.txt").rename("b.txt")
    code, out, err = gpt("eval", run, "b.txt", "--memorisation")
    assert (code, out) == (2, "")
    assert "--memorisation needs the text that the run was trained on; put it back" in err


@pytest.mark.parametrize("changes", [
    {"data.vocabulary": "bytes"},
    {"data.max_vocabulary": 7},
    {"model.ensemble": 2},
])  # fmt: skip
def test_every_kind_of_model_is_searched(changes: dict[str, object]) -> None:
    Path("a.txt").write_text((PANGRAM + "né à 日本\n") * 31, "utf-8")
    run = api.train(small(), text="a.txt", settings=changes, run_dir="run").run
    report = api.evaluate(api.load(run), memorisation=True).memorisation
    assert report is not None
    assert report.human.shares[8] == 1  # the text repeats itself
    assert 0 <= report.samples.shares[8] <= 1
    assert report.train.loss == pytest.approx(report.unseen.loss, rel=0.2)
