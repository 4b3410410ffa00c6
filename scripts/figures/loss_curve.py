#!/usr/bin/env python3
"""Draw the loss curves of a run: scripts/figures/loss_curve.py RUN OUT.png

The README's picture is that of configs/shakespeare_cpu.yaml.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt


def draw(run: Path, out: Path) -> None:
    """Train loss (thin) and val loss (dots) of `run` over its steps, as a PNG or SVG."""
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    train = [(r["step"], r["train_loss"]) for r in records if "train_loss" in r]
    val = [(r["step"], r["val_loss"]) for r in records if "val_loss" in r]
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    axes.plot(*zip(*train, strict=True), color="#9db4c8", linewidth=1, label="train, each batch")
    axes.plot(*zip(*val, strict=True), color="#c2410c", marker="o", label="val, the whole split")
    for step, loss in val:
        axes.annotate(f"{loss:.2f}", (step, loss), (4, 7), textcoords="offset points", fontsize=9)
    axes.set_xlabel("step")
    axes.set_ylabel("nats per character")
    axes.set_title(run.name, loc="left", fontsize=11, pad=14)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
