#!/usr/bin/env python3
"""Draw val loss by seconds of training.

    python scripts/figures/loss_by_seconds.py OUT.png LABEL=FILE.jsonl ...

Some lines of each file have `elapsed_s` and `val_loss`: a run's metrics.jsonl, or the output of
scripts/bench_peers.py for nanoGPT. All must be measured on the same machine.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt


def draw(curves: dict[str, Path], out: Path) -> None:
    """Draw a curve for each file, with its label and lowest loss at the end.

    The evaluation of step 0 is left out.
    """
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for label, path in curves.items():
        records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        points = [
            (r["elapsed_s"], r["val_loss"]) for r in records if r.get("step", 1) and "val_loss" in r
        ]
        (line,) = axes.plot(*zip(*points, strict=True), marker="o", markersize=3)
        end = f"{label}, {min(loss for _, loss in points):.2f}"
        axes.annotate(
            end, points[-1], (5, -3), textcoords="offset points", fontsize=9, color=line.get_color()
        )
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("val loss, nats per character")
    axes.set_xlim(0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("curves", nargs="+", metavar="LABEL=FILE.jsonl")
    arguments = parser.parse_args()
    named = (curve.rpartition("=") for curve in arguments.curves)
    draw({label: Path(path) for label, _, path in named}, arguments.out)
