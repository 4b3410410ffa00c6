"""The learning-rate range test: what it trains, what it reads off the losses, what it prints."""

import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.config.yaml import to_yaml
from gpt.errors import Interrupted, TrainingError
from gpt.inspection.range_test import MARKS, chart
from gpt.recipe.range_test import HIGHEST, LOWEST, STEPS, find_learning_rate, smooth, suggest
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.sources import open_source
from gpt.training.trainer import train
from tests.conftest import metrics_of, small

pytestmark = pytest.mark.precision

Gpt = Callable[..., tuple[int, str, str]]
FACTORS = np.geomspace(LOWEST, HIGHEST, STEPS)
ONE_STEP = (HIGHEST / LOWEST) ** (1 / (STEPS - 1))


@pytest.fixture
def corpus(text_file: Path) -> Corpus:
    return load_corpus(open_source(str(text_file)))


@given(steepest=st.floats(0.05, 0.5), lowest=st.floats(1, 10), noise=st.integers(0, 10**6))
def test_the_steepest_and_the_lowest_place_of_a_noisy_curve_are_found(
    steepest: float, lowest: float, noise: int
) -> None:
    """A fall around one factor, a rise from another on, and the noise of batches."""
    x = np.log(FACTORS)
    falls = -1.5 * np.tanh(2 * (x - math.log(steepest)))
    rises = np.maximum(0, x - math.log(lowest)) ** 2 - 0.1 * x
    draws = np.random.default_rng(noise).normal(0, 0.01, STEPS)
    test = suggest([*(4 + falls + rises + draws)], 8e-3, 0.02)
    assert math.log(test.steepest / steepest) == pytest.approx(0, abs=3 * math.log(ONE_STEP))
    assert math.log(test.highest / lowest) == pytest.approx(0, abs=5 * math.log(ONE_STEP))
    assert test.steepest <= test.suggested <= test.highest
    assert test.settings["train.learning_rate"] == pytest.approx(8e-3 * test.suggested, rel=0.05)
    assert test.settings["train.muon_learning_rate"] == pytest.approx(
        0.02 * test.suggested, rel=0.05
    )


def test_smoothing_moves_nothing_to_later_steps() -> None:
    """fastai's running mean lags: by it, a fall is at rates that are too high."""
    losses = [4.0] * 50 + [2.0] * 50
    smoothed = smooth(losses)
    assert smoothed[49:51] == pytest.approx([3.0 + 1e-9, 3.0], abs=0.12)
    assert smoothed[:49].min() > 3 > smoothed[51:].max()
    assert smooth([3.0] * 17) == pytest.approx(3.0)
    assert smoothed[::-1] == pytest.approx(smooth(losses[::-1]))


def test_it_trains_as_a_run_does_and_repeats(corpus: Corpus) -> None:
    config = small(train__optimizer="adamw", threads=1)
    before = torch.random.get_rng_state()
    test = find_learning_rate(config, corpus)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert find_learning_rate(config, corpus) == test
    assert find_learning_rate(small(seed=7, train__optimizer="adamw"), corpus) != test
    assert set(test.settings) == {"train.learning_rate"}, "there is no Muon"
    train(config, corpus, Path("r"))
    assert test.losses[0] == metrics_of(Path("r"))[1]["train_loss"]
    n = len(test.losses)
    assert test.factors == pytest.approx(FACTORS[:n])
    assert n < STEPS, "it ends when the loss has risen"
    assert test.rises
    assert min(test.losses) < 0.9 * test.losses[0]
    assert not list(Path("runs").glob("*"))


def test_it_can_be_stopped_and_refuses_what_diverges_at_once(corpus: Corpus) -> None:
    with pytest.raises(Interrupted):
        find_learning_rate(small(), corpus, should_stop=lambda: True)
    with pytest.raises(TrainingError, match=r"one that rises from learning rates x 0\.01"):
        find_learning_rate(small(train__learning_rate=1e3, train__weight_decay=1e3), corpus)


def test_what_it_suggests_is_a_config_whose_schedule_falls() -> None:
    """A peak below train.min_learning_rate was suggested, which no config may have."""
    fall = [*np.linspace(4, 2, 30), *np.linspace(2, 9, 40)]
    rates = {"learning_rate": 4e-3, "min_learning_rate": 1e-3}
    test = suggest(fall, 4e-3, None, 1e-3)
    assert test.suggested < 0.2
    settled = Config.model_validate({"train": rates})
    changes = [f"{key}={rate:g}" for key, rate in test.settings.items()]
    train = load_config(settled, changes).train
    assert train.min_learning_rate / train.learning_rate == pytest.approx(1 / 4, rel=0.1)
    assert set(suggest(fall, 4e-3, None, 1e-6).settings) == {"train.learning_rate"}


def test_a_text_of_one_character_has_no_learning_rate() -> None:
    """Of its loss, 0, it was said that it rises, and lower learning rates were advised."""
    Path("a.txt").write_text("a" * 997)
    with pytest.raises(TrainingError, match=r"a\.txt: expected a text that can be learnt"):
        find_learning_rate(small(), load_corpus(open_source("a.txt")))


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("steps", [10, 61, 100])
def test_the_chart_fits_the_terminal_and_marks_what_was_found(width: int, steps: int) -> None:
    losses = [*(4 - np.sin(np.linspace(0, 5, steps)))]
    marks = {"first": FACTORS[2], "second": FACTORS[steps // 2], "third": FACTORS[steps - 1]}
    drawn = chart([*FACTORS[:steps]], losses, marks, width)
    assert max(map(len, drawn.splitlines())) <= width
    body = drawn.partition("---")[0]
    columns = [min(line.find(c) for line in body.splitlines() if c in line) for c in MARKS]
    assert columns == sorted(columns)
    assert len(set(columns)) == 3


def test_the_command_prints_settings_to_paste_and_draws_a_picture(
    gpt: Gpt, text_file: Path
) -> None:
    Path("small.yaml").write_text(to_yaml(small(data__source=str(text_file))))
    command = ("train", "--config", "small.yaml", "--find-lr")
    code, out, err = gpt(*command)
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 80
    options = shlex.split(out.partition("use:     ")[2].splitlines()[0])
    assert options[::2] == ["--set", "--set"]
    changed = load_config("small.yaml", options[1::2]).train
    _, told, _ = gpt(*command, "--json")
    test = json.loads(told)
    assert test["settings"] == {
        "train.learning_rate": changed.learning_rate,
        "train.muon_learning_rate": changed.muon_learning_rate,
    }
    picture = Path(out.partition("picture: ")[2].strip())
    assert (picture, test["picture"]) == (Path("runs/small-find-lr.png"), str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [*Path("runs").iterdir()] == [picture], "no run was begun"
    for more in (("--seeds", 2), ("--dry-run",), ("--run-dir", "x"), ("--set", "seed=1,2")):
        code, _, err = gpt(*command, *more)
        assert (code, "--find-lr trains no run" in err) == (2, True)
    picture.unlink()
    picture.symlink_to("elsewhere.png")
    code, _, err = gpt(*command)
    assert (code, "got a link" in err) == (2, True)


def test_the_folder_of_the_picture_is_made_last_and_looked_at_first(
    gpt: Gpt, text_file: Path
) -> None:
    """A mistyped key left an empty one, and what to do was said to be an option that is refused."""
    command = ("train", text_file, "--find-lr")
    assert gpt(*command, "--set", "train.stepz=3")[0] == 2
    assert not Path("runs").exists()
    Path("runs").touch()
    code, _, err = gpt(*command)
    assert (code, "remove it, or work in another folder" in err) == (1, True)
