"""`gpt eval --memorisation`: how much of a model's samples is copied from its train split."""

import json
from pathlib import Path

import numpy as np
import pytest

from gpt import api
from gpt.evaluation.memorisation import copied_lines, copied_share
from gpt.text.vocabulary import Vocabulary
from tests.conftest import PANGRAM, small


@pytest.mark.parametrize("seed", range(7))
def test_copies_are_those_of_a_search_one_substring_at_a_time(seed):
    source = np.random.default_rng(seed)
    train = source.integers(2, size=617).astype(np.uint8)
    pieces = [source.integers(2, size=n).astype(np.uint8) for n in (32, 157, 61)]
    pieces[1][11 : 11 + 17 * seed] = train[307 : 307 + 17 * seed]
    substrings = [piece[i : i + 32].tobytes() for piece in pieces for i in range(len(piece) - 31)]
    expected = np.mean([substring in train.tobytes() for substring in substrings])
    assert copied_share(train, pieces) == pytest.approx(expected)


def test_a_line_that_train_has_is_a_copy():
    """Bug: of sampled names, 46 % were in the list, and the report said 0.0 %."""
    vocabulary = Vocabulary.of("abc\n")
    train, *pieces = map(vocabulary.encode, ["abc\nab\nb", "b\nab\nca\n\nc", "a\nb\nabc"])
    assert copied_lines(train, pieces, vocabulary) == 2 / 3


def words(seed: int, count: int) -> str:
    """A text of `count` words, which are drawn independently."""
    source = np.random.default_rng(seed)
    return " ".join(source.choice(PANGRAM.split(), size=count))


def test_an_overfitted_model_copies_and_a_normal_one_does_not(gpt):
    config = small(model__T=24, model__C=48, train__batch_size=16, train__eval_every=1000)
    settings = {"train.learning_rate": 0.01, "train.checkpoint_every": 1000}
    for name, word_count, steps in (("normal", 2003, 50), ("overfitted", 151, 150)):
        Path(f"{name}.txt").write_text(words(1, word_count))
        changes = settings | {"train.steps": steps}
        api.train(config, text=f"{name}.txt", settings=changes, run_dir=name)
        code, out, err = gpt("eval", name, "--memorisation", "--json", "--checkpoint", "last")
        assert code == 0, err
        copies = json.loads(out)["memorisation"]
        assert copies["in_text"] < 0.05
        assert copies["copied"] > 0.5 if name == "overfitted" else copies["copied"] < 0.05
    code, out, _ = gpt("eval", "overfitted", "--memorisation", "--checkpoint", "last")
    shown = f"{100 * copies['copied']:.1f} % of the 32-character substrings of the model's samples"
    assert (code, shown in " ".join(out.split())) == (0, True)


def test_it_needs_the_runs_text_and_a_text_that_is_long_enough(gpt):
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


def test_only_new_lines_are_shown_and_prompts_and_stops_as_asked(gpt):
    """Bug: of sampled names, one could not see which the text has; the prompt was always shown.

    Bug: a missing text was reported only after all samples had been generated.
    """
    text = "".join(f"{a}{b}{c}\n" for a in "abcd" for b in "efgh" for c in "ijkl") * 9
    Path("names.txt").write_text(text)
    run = api.train(small(train__learning_rate=0.01), text="names.txt", run_dir="run").run
    options = ("sample", run, "--seed", 1, "--length", 500)
    *whole, _, _ = gpt(*options)[1].split("\n")  # the last line is cut
    known = text.split("\n")
    expected = [line for line in dict.fromkeys(whole) if line and line not in known]
    assert expected
    assert gpt(*options, "--new")[1].splitlines() == expected
    code, out, err = gpt(*options[:-1], 1, "--new")
    assert (code, out, "no complete line is new" in err) == (0, "", True), "bug: nothing was said"
    short = ("--prompt", "ae", "--stop", r"\n")
    shown = gpt(*options, *short)[1]
    assert gpt(*options, *short, "--no-prompt", "--keep-stop")[1] == f"{shown[2:]}\n"
    Path("names.txt").unlink()
    code, out, err = gpt(*options[:-1], 10**8, "--new")
    assert (code, out, "put the text back, or leave out --new" in err) == (1, "", True)
