"""`gpt compare`: rows of runs, intervals of their differences, and which runs do not compare."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from gpt import api
from gpt.api.run_text import run_text
from gpt.evaluation.comparison import read_curve, read_nanogpt_log
from gpt.evaluation.intervals import Interval, mean_interval, welch_interval
from gpt.evaluation.scored_text import score_text, val_text
from gpt.inspection.pictures import draw_curves
from gpt.recipe.sweep_spec import SweepSpec, Trial, write_spec
from gpt.runs.read import read_summary
from tests.conftest import PANGRAM, metrics_of, small
from tests.test_training import RISING

TEXT = (PANGRAM + "né à 日本\n") * 31
RATES = [1e-3, 4e-3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two learning rates and three seeds, and runs of other texts and vocabularies."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "text.txt").write_text(TEXT, "utf-8")
    (folder / "other.txt").write_text(TEXT.replace("quick", "slow"), "utf-8")
    text, config = str(folder / "text.txt"), small(threads=1)
    settings = {"train.learning_rate": RATES}
    api.sweep(config, text=text, settings=settings, seeds=3, run_dir=folder / "sweep")
    for name, changes in (
        ("bytes", {"data.vocabulary": "bytes"}),
        ("rare", {"data.errors": "replace"}),
        ("other", {"data.source": str(folder / "other.txt")}),
    ):
        settings = {"data.source": text} | changes
        api.train(config, settings=settings, run_dir=folder / name)
    return folder


def assert_equal(interval: Interval, expected: tuple[float, float]) -> None:
    assert (interval.low, interval.high) == pytest.approx((*expected,), rel=1e-9)


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 2), (5, 7), (3, 113)])
def test_welch_intervals_equal_scipys(n, m):
    source = np.random.default_rng(n)
    a, b = source.normal(2.0, 0.03, n).tolist(), source.normal(1.9, 0.11, m).tolist()
    expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval()
    assert_equal(welch_interval(a, b), expected)


@pytest.mark.parametrize("n", [2, 7, 113, 1009])
def test_intervals_of_a_mean_equal_scipys(n):
    values = np.random.default_rng(n).normal(2.0, 0.3, n)
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert_equal(mean_interval(values.tolist()), expected)


def test_equal_losses_differ_by_nothing():
    interval = welch_interval([1.5, 1.5], [1.5, 1.5, 1.5])
    assert (interval.low, interval.high) == (0, 0)


def test_runs_that_differ_only_by_seed_are_a_row_with_the_sweeps_mean_and_error(folder):
    comparison = api.compare(str(folder / "sweep"))  # bug: each letter was a run
    expected = {
        result.values["train.learning_rate"]: result
        for result in api.resume_sweep(folder / "sweep").combinations
    }
    assert [len(row.runs) for row in comparison.rows] == [3, 3]
    for row, rate in zip(comparison.rows, RATES, strict=True):
        assert row.settings["train.learning_rate"] == rate
        combination = expected[f"{rate:g}" if f"{rate:g}" in expected else str(rate)]
        assert row.loss.mean == pytest.approx(combination.mean, abs=1e-6)
        assert row.loss.standard_error == pytest.approx(combination.standard_error, abs=1e-6)
        for run in row.runs:
            recorded = [r for r in metrics_of(Path(run.name)) if "val_loss" in r]
            assert run.curve.losses == [r["val_loss"] for r in recorded]
            assert run.curve.characters[-1] == 11 * 6 * 13


def oracle_blocks(run: Path, count: int) -> list[float]:
    """The mean loss of each of `count` blocks, one character at a time."""
    model = api.load(run)
    text = val_text(run_text(model))
    losses = np.concatenate([s.losses for s in score_text(model.module, text.ids)])
    if text.vocabulary.is_bytes:
        characters: list[float] = []
        for loss, id_ in zip(losses.tolist(), text.ids[1:].tolist(), strict=True):
            if id_ & 0xC0 != 0x80:
                characters.append(0.0)
            characters[-1] += loss
        losses = np.array(characters)
    edges = [block * len(losses) // count for block in range(1, count)]
    return [float(part.mean()) for part in np.split(losses, edges)]


def test_the_difference_has_scipys_intervals_over_blocks_and_over_seeds(folder):
    comparison = api.compare([folder / "sweep"])
    (difference,) = comparison.differences
    blocks = [
        np.mean([oracle_blocks(Path(run.name), len(run.blocks)) for run in row.runs], 0)
        for row in comparison.rows
    ]
    assert difference.text is not None and difference.seeds is not None
    expected = stats.ttest_rel(blocks[1], blocks[0]).confidence_interval()
    assert (difference.text.low, difference.text.high) == pytest.approx(tuple(expected), abs=1e-6)
    losses = [[run.loss for run in row.runs] for row in comparison.rows]
    expected = stats.ttest_ind(losses[1], losses[0], equal_var=False).confidence_interval()
    assert_equal(difference.seeds, expected)


def test_models_of_bytes_and_of_characters_are_compared_on_the_same_characters(folder):
    runs = [folder / "sweep" / "lr-0.001,seed-1337", folder / "bytes", folder / "rare"]
    comparison = api.compare(runs)
    for row in comparison.rows:
        (run,) = row.runs
        expected = oracle_blocks(Path(run.name), len(run.blocks))
        assert run.blocks == pytest.approx(expected, abs=1e-6)
    assert len({len(row.runs[0].blocks) for row in comparison.rows}) == 1
    last = metrics_of(folder / "bytes")[-1]["val_loss_per_character"]
    assert comparison.rows[1].runs[0].curve.losses[-1] == pytest.approx(last)


def test_a_repeated_run_is_a_row_of_its_own_and_one_seed_has_no_interval(folder):
    other, run = (folder / "sweep" / f"lr-0.001,seed-{seed}" for seed in (1338, 1337))
    shutil.copytree(run, "again")
    comparison = api.compare([other, run, "again", run])
    assert [len(row.runs) for row in comparison.rows] == [2, 1]
    (difference,) = comparison.differences
    assert difference.text is not None and difference.seeds is None


def test_runs_of_minutes_are_a_row_though_their_steps_differ(folder):
    """Their numbers of steps follow from the clock, so no two seeds have the same settings."""
    trials = []
    for seed, steps in ((1, 5), (2, 7)):
        config = small(seed=seed, train__steps=steps, train__plans=[[0, steps]])
        api.train(config, text=str(folder / "text.txt"), run_dir=f"m-sweep/seed-{seed}")
        asked = small(seed=seed, train__minutes=1.0)
        trials.append(Trial(name=f"seed-{seed}", values={}, asked=asked, config=asked))
    write_spec(Path("m-sweep"), SweepSpec(runs=trials))
    (row,) = api.compare(["m-sweep"]).rows
    assert (len(row.runs), row.steps) == (2, 6)


def test_a_run_has_the_settings_of_its_last_resume(folder):
    """Bug: it had those of its best checkpoint, and was averaged with a run of fewer steps."""
    text = str(folder / "text.txt")
    for seed in (1, 2):
        api.train(small(seed=seed, **RISING), text=text, run_dir=f"rising-{seed}")
    api.resume("rising-2", settings={"train.steps": 17})
    assert api.load("rising-2").step < 11
    short, long = api.compare(["rising-1", "rising-2"]).rows
    assert (short.settings["train.steps"], long.settings["train.steps"]) == (11, 17)


def test_without_its_text_a_run_has_the_val_loss_of_training(folder, gpt):
    moved = Path("moved.txt")
    moved.write_text(TEXT, "utf-8")
    for seed in (1, 2):
        api.train(small(seed=seed, train__steps=7), text=str(moved), run_dir=f"run-{seed}")
    moved.unlink()
    code, out, err = gpt("compare", "run-1", "run-2", folder / "sweep", "--json")
    assert code == 0
    assert "run-1: its text cannot be read" in err
    row = json.loads(out)["rows"][0]
    best = [read_summary(Path(f"run-{seed}"), "best").val_loss for seed in (1, 2)]
    assert row["loss"]["mean"] == pytest.approx(np.mean(best))


def test_runs_of_different_texts_do_not_compare_though_a_text_is_missing(gpt):
    """Bug: a run whose text had moved was compared with runs on any other text."""
    for name, word in (("a", "quick"), ("b", "slow")):
        Path(f"{name}.txt").write_text(TEXT.replace("quick", word), "utf-8")
        api.train(small(train__steps=2), text=f"{name}.txt", run_dir=f"run-{name}")
    for name in "ab":  # one text is missing, then both
        Path(f"{name}.txt").unlink()
        code, out, err = gpt("compare", "run-a", "run-b")
        assert (code, out) == (2, "")
        assert "have different val texts, so their losses cannot be compared" in err


LOG = """tokens per iteration will be: 16,384
number of parameters: 0.80M
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2654, time 4000.00ms, mfu -100.00%
iter 10: loss 3.1462, time 50.00ms, mfu -100.00%
step 15: train loss 2.7, val loss 2.60
iter 20: loss 2.6, time 60.00ms, mfu 7.0%
step 30: train loss 1.97, val loss 2.05
iter 30: loss 2.0, time 3000.00ms, mfu 7.0%
"""


def test_nanogpts_log_is_a_run(folder, gpt):
    Path("log.txt").write_text(LOG)
    curve, parameters = read_nanogpt_log(Path("log.txt"))
    assert (curve.steps, parameters) == ([0, 15, 30], 800_000)
    assert curve.losses == [4.2823, 2.6, 2.05]
    assert curve.characters == [0, 15 * 16_384, 30 * 16_384]
    # iteration 0, and 14 of 50 ms; then 6 to iteration 20 and 9 to iteration 29 of 60 ms
    assert curve.seconds == pytest.approx([0, 4.7, 5.6])
    code, out, err = gpt("compare", folder / "sweep", "log.txt", "--json")
    assert code == 0
    assert "trained on an unknown text" in err
    comparison = json.loads(out)
    first, *_, log = comparison["rows"]
    assert (log["runs"][0]["name"], log["loss"]["mean"]) == ("log.txt", 2.05)
    best = [min(run["curve"]["losses"]) for row in comparison["rows"] for run in row["runs"]]
    assert max(best) <= comparison["reached"] < max(best) + 0.01
    assert log["seconds_to"] == pytest.approx(4.7)
    assert first["seconds_to"] > 0
    assert comparison["differences"][-1]["text"] is None


def test_nan_in_nanogpts_log_is_the_final_loss_but_not_the_best(folder, gpt):
    """Bug: a line with `val loss nan` was skipped, so the loss before it was the final one."""
    Path("log.txt").write_text(LOG + "step 45: train loss nan, val loss nan\n")
    code, out, _ = gpt("compare", "log.txt", folder / "bytes", "--json")
    assert code == 0
    assert "NaN" not in out  # which is not JSON
    row = json.loads(out)["rows"][0]
    assert (row["loss"]["mean"], row["final_loss"]["mean"], row["steps"]) == (2.05, None, 45.0)
    assert row["runs"][0]["curve"]["losses"] == [4.2823, 2.6, 2.05, None]


@pytest.mark.parametrize("loss", ["nan", "inf"])
def test_a_log_of_nanogpt_without_a_finite_val_loss_is_refused(folder, gpt, loss):
    """Bug: one of infinite losses ended in AssertionError."""
    lines = [f"step {n}: train loss 4.2, val loss {loss if n else 4.2}" for n in (0, 250)]
    Path("log.txt").write_text("number of parameters: 0.80M\n" + "\n".join(lines))
    code, out, err = gpt("compare", "log.txt", folder / "sweep")
    assert (code, out) == (2, "")
    assert "found no finite val loss after step 0" in err


def test_numbers_in_nanogpts_log_are_parsed_whole():
    """Bug: 1e-05 was parsed as 1, and 2.0660. ended in a ValueError."""
    for written, number in (("1e-05", 1e-05), ("2.0660.", 2.066)):
        Path("log.txt").write_text(f"{LOG}step 45: train loss 2.0, val loss {written}\n")
        assert read_nanogpt_log(Path("log.txt"))[0].losses[-1] == number


def test_a_run_that_begins_below_a_loss_reached_it_at_step_0():
    """Bug: step 0 was left out, so a fine-tuned run needed time for a loss that it began with."""
    losses = {0: 1.5, 11: 1.7, 23: 1.3}
    lines = [{"step": s, "elapsed_s": 2.0 * s, "val_loss": x} for s, x in losses.items()]
    Path("metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    curve = read_curve(Path(), 7)
    assert [curve.seconds_to(loss) for loss in (1.6, 1.4, 1.2)] == [0.0, 46.0, None]


def test_tables_fit_the_terminal_and_have_the_numbers(folder, gpt, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    code, out, err = gpt("compare", folder / "sweep", folder / "bytes")
    assert code == 0, err
    assert "left out, as the terminal is narrow: final, steps" in " ".join(out.split())
    tables = out[out.index("\n\n") :]  # without the names of runs
    assert max(map(len, tables.splitlines())) <= 60
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = gpt("compare", folder / "sweep")
    comparison = api.compare(folder / "sweep")
    (difference,) = comparison.differences
    assert difference.text is not None and difference.seeds is not None
    numbers = [row.loss.mean for row in comparison.rows]
    shown = [f"{number:.4f}" for number in numbers]
    for interval in (difference.text, difference.seeds):
        shown.append(f"{interval.low:+.4f} to {interval.high:+.4f}")
    assert [number for number in shown if number not in out] == []
    assert ["train.learning_rate", "0.001", "0.004"] in [line.split() for line in out.splitlines()]


def test_the_picture_shows_the_mean_over_seeds_and_the_lowest_and_highest(folder):
    comparison = api.compare([folder / "sweep"])
    axes = draw_curves(comparison).axes[0]
    for row, line, band in zip(comparison.rows, axes.lines, axes.collections, strict=True):
        losses = np.array([run.curve.losses for run in row.runs])
        steps, means = line.get_data()
        assert [*steps] == row.runs[0].curve.steps
        assert means == pytest.approx(losses.mean(0))
        (corners,) = (path.vertices for path in band.get_paths())
        assert corners[:, 1].min() == pytest.approx(losses.min())
        assert corners[:, 1].max() == pytest.approx(losses.max())


def test_pictures_and_pages_are_replaced_only_with_overwrite(folder, gpt):
    """Bug: `gpt eval --html` and `gpt compare --out` replaced a file without asking."""
    commands = (
        ("compare", folder / "sweep", "--out", "old.png"),
        ("eval", folder / "bytes", "--html", "old.html"),
        ("attend", folder / "bytes", "--text", "a", "--out", "old.html"),
        ("data", folder / "text.txt", "--html", "old.html"),
        ("export", folder / "bytes", "--to", "html", "--out", "old.html"),
    )
    for command in commands:
        old = Path(command[-1])
        old.write_text("mine")
        code, _, err = gpt(*command)
        assert (code, old.read_text()) == (2, "mine")
        assert f"{old}: it exists already" in err
        assert gpt(*command, "--overwrite")[0] == 0
        assert old.read_bytes().lower().startswith((b"\x89png", b"<!doctype html"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep", "other"], "have different val texts"),
        (["rare", "rare"], "two or more different runs"),  # bug: it said "two or more runs"
        (["sweep", "text.txt"], "expected a run, a sweep or the log of nanoGPT"),
    ],
)
def test_what_does_not_compare_is_refused(folder, gpt, arguments, message):
    code, out, err = gpt("compare", *(folder / name for name in arguments))
    assert (code, out) == (2, "")
    assert message in err


def test_damaged_or_infinite_losses_and_step_0_are_no_final_loss(tmp_path):
    """Bugs: an infinite loss ended in OverflowError, other bytes in UnicodeDecodeError."""
    lines = [b'{"step": 0, "elapsed_s": 0, "val_loss": 3.5}', b"\xff\xfe", b"null", b"[1]", b'{"st']
    lines.append(b'{"step": 1e999, "elapsed_s": 0, "val_loss": 3.5}')
    lines.append(b'{"step": 5, "elapsed_s": 1, "val_loss_network": "low"}')
    lines.append(b'{"step": 7, "elapsed_s": 1, "val_loss_part": Infinity}')
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    curve = read_curve(tmp_path, 1)
    assert (curve.steps, curve.best_loss, curve.final_loss) == ([0, 7], 3.5, None)
