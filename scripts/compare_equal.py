#!/usr/bin/env python3
"""Compare equal configurations with different seeds, and count intervals that exclude 0.

    python scripts/compare_equal.py TEXT [--comparisons 10] [--seeds 3]

Each comparison is a sweep of two rows whose settings differ only in the length of samples, which
changes no weight, and whose seeds are all different. Of the intervals by seeds, which are of 95 %,
1 of 20 excludes 0.
"""

import argparse
import tempfile
from pathlib import Path

from gpt import api
from gpt.evaluation.comparison import RowDifference
from gpt.evaluation.intervals import StudentInterval

SETTINGS = {
    "threads": 1,
    "model.T": 64,
    "model.C": 64,
    "model.n_layer": 2,
    "model.n_head": 2,
    "train.steps": 100,
    "train.batch_size": 8,
    "train.sample_length": 0,
}


def compare_rows(text: str, folder: Path, first_seed: int, seeds: int) -> RowDifference:
    """Train two rows of `seeds` runs each in `folder`, and return their difference.

    The seeds are `first_seed` and the following ones.
    """
    runs = []
    for row in range(2):
        for seed in range(first_seed + row * seeds, first_seed + (row + 1) * seeds):
            settings = SETTINGS | {"seed": seed, "sample.length": 100 + row}
            outcome = api.train(text=text, settings=settings, run_dir=folder / f"seed-{seed}")
            runs.append(outcome.run)
    (difference,) = api.compare(runs).differences
    return difference


def excludes_zero(interval: StudentInterval | None) -> bool:
    """Return whether `interval` does not contain zero."""
    return interval is not None and not interval.low <= 0 <= interval.high


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text")
    parser.add_argument("--comparisons", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    by_text = by_seeds = 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(arguments.comparisons):
            first_seed = 1 + 2 * arguments.seeds * i
            result = compare_rows(arguments.text, Path(folder), first_seed, arguments.seeds)
            by_text += excludes_zero(result.text)
            by_seeds += excludes_zero(result.seeds)
            print(result, flush=True)
    print(f"comparisons: {arguments.comparisons}; intervals that exclude 0:")
    print(f"by seeds {by_seeds}, by text {by_text}")
