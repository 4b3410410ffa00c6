"""Automatic configs, fine-tuning, and comparisons of equal runs."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import gpt
from bench.frame import SMALL, text_or_tinyshakespeare
from bench.peers import NanoGPT
from gpt import api
from gpt.config.schema import SETTINGS, values
from gpt.evaluation.comparison import RowDifference
from gpt.evaluation.intervals import StudentInterval

TUNED_CHARACTERS = 200_000  # of the text of `finetune`
RATES = (1.0, 0.7, 0.5, 0.3, 0.15)  # factors on the run's learning rates
EVALUATIONS = 7
COMPARISONS, SEEDS = 10, 3


def recipe(
    text: Path | None = None, minutes: float = 2.0, nanogpt: Path | None = None
) -> dict[str, Any]:
    """Train `gpt train TEXT --minutes N`, beside nanoGPT's CPU recipe in the same time."""
    path = text_or_tinyshakespeare(text)
    with tempfile.TemporaryDirectory() as folder:
        outcome = gpt.train(text=str(path), minutes=minutes, run_dir=Path(folder) / "run")
        config = gpt.load(outcome.run).config
    model = config.model
    found = {
        "elapsed_s": round(outcome.elapsed_s, 1),
        "choice": f"{model.ensemble} of {model.n_layer} x {model.C}",
        "characters": config.train.steps * config.train.batch_size * model.T,
        "token_dropout": model.character_dropout,
        "val_loss": outcome.best_val_loss_per_character,
        "val_loss_at_the_end": outcome.val_loss_per_character,
    }
    if nanogpt:
        found["nanogpt"] = NanoGPT(nanogpt, path).cpu_recipe_in(60 * minutes)
    return found


def finetune(run: Path, text: Path) -> dict[str, dict[int, float]]:
    """Compare fine-tuning `run` on another text with training new weights for as many steps.

    Each factor of RATES is tried on the run's learning rates. All trainings have the run's shape
    and batches, so their steps take the same time. Values are val losses by step.
    """
    old = gpt.load(run).config
    shared = {
        "device": "cpu",
        "threads": 1,
        "train.eval_every": math.ceil(old.train.steps / EVALUATIONS),
        "train.eval_characters": None,
        "train.sample_length": 0,
        "train.stop_at_val_loss": None,
    }
    scaled = {key: v for key, v in values(old).items() if SETTINGS[key].fine_tuning == "scaled"}
    with tempfile.TemporaryDirectory() as folder:
        short = Path(folder, "text.txt")
        short.write_text(text.read_text("utf-8")[:TUNED_CHARACTERS], "utf-8")
        curves = {"new weights": _curve(old, text=str(short), settings=shared)}
        for factor in RATES:
            rates = {key: factor * value for key, value in scaled.items()}
            curves[f"rates x {factor:g}"] = _curve(
                None, text=str(short), settings=shared | rates, init_from=str(run)
            )
    return curves


def _curve(config: Any, **options: Any) -> dict[int, float]:
    """Train, and return the val losses by step."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        gpt.train(config, run_dir=run, **options)
        records = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
        return {r["step"]: round(r["val_loss"], 3) for r in records if "val_loss" in r}


def compare_equal(text: Path) -> dict[str, int]:
    """Count the intervals of `gpt compare` that exclude 0 though all settings are equal.

    Each comparison is a sweep of two rows whose settings differ only in the length of samples,
    which changes no weight, and whose seeds are all different. Of the intervals by seeds, which are
    of 95 %, 1 of 20 excludes 0.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = [_compared(str(text), Path(folder), 1 + 2 * SEEDS * i) for i in range(COMPARISONS)]
    return {
        "comparisons": COMPARISONS,
        "intervals_by_seeds_without_0": sum(_excludes_zero(each.seeds) for each in found),
        "intervals_by_text_without_0": sum(_excludes_zero(each.text) for each in found),
    }


def _compared(text: str, folder: Path, first_seed: int) -> RowDifference:
    """Train two rows of SEEDS runs in `folder`, and return their difference."""
    runs = []
    for i in range(2 * SEEDS):
        seed = first_seed + i
        settings = SMALL | {"seed": seed, "sample.length": 100 + i // SEEDS}
        outcome = api.train(text=text, settings=settings, run_dir=folder / f"seed-{seed}")
        runs.append(outcome.run)
    (difference,) = api.compare(runs).differences
    return difference


def _excludes_zero(interval: StudentInterval | None) -> bool:
    return interval is not None and not interval.low <= 0 <= interval.high
