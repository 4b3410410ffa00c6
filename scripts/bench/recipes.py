"""Automatic configs, and comparisons of equal runs."""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import gpt
from bench.frame import SMALL, text_or_tinyshakespeare
from bench.peers import NanoGPT
from gpt import api
from gpt.evaluation.comparison import RowDifference
from gpt.evaluation.intervals import Interval

COMPARISONS, SEEDS = 10, 3


def recipe(
    text: Path | None = None,
    minutes: float = 2.0,
    seed: int = 1337,
    clock: str = "wall",
    nanogpt: Path | None = None,
) -> dict[str, Any]:
    """Train `gpt train TEXT --minutes N`, beside nanoGPT's CPU recipe in the same time.

    On a busy machine, the clock `cpu` counts CPU seconds divided by the number of threads, so that
    other programs do not shorten the run.
    """
    path = text_or_tinyshakespeare(text)
    now = time.perf_counter if clock == "wall" else _cpu_seconds
    began = now()
    with tempfile.TemporaryDirectory() as folder:
        outcome = gpt.train(
            text=str(path),
            minutes=minutes,
            settings={"seed": seed},
            run_dir=Path(folder) / "run",
            clock=lambda: now() - began,
        )
        seconds, config = now() - began, gpt.load(outcome.run).config
    model = config.model
    found = {
        "text": path.stem,
        "seconds": round(seconds, 1),
        "choice": f"{model.ensemble} of {model.n_layer} x {model.C}",
        "characters": config.train.steps * config.train.batch_size * model.T,
        "token_dropout": model.character_dropout,
        "val_loss": round(outcome.best_val_loss_per_character, 4),
        "last_val_loss": round(outcome.val_loss_per_character, 4),
    }
    if nanogpt:
        found["nanogpt"] = NanoGPT(nanogpt, path).cpu_recipe_in(60 * minutes)
    return found


def _cpu_seconds() -> float:
    return time.process_time() / torch.get_num_threads()


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


def _excludes_zero(interval: Interval | None) -> bool:
    return interval is not None and not interval.low <= 0 <= interval.high
