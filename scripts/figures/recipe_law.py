#!/usr/bin/env python3
"""Draw the law of gpt/recipe and the runs that it was fitted on.

python scripts/figures/recipe_law.py OUT.png
"""

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from law.fit import Point, read_points
from law.texts import HELD_OUT

from gpt.recipe.difficulty import PILOT_C, PILOT_LAYERS
from gpt.recipe.law import predict
from gpt.recipe.settings import Choice


def draw(points: dict[str, list[Point]], out: Path) -> None:
    """Draw the law and the runs of the pilot's shape (left), and all errors by passes (right)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
    for i, (text, runs) in enumerate(points.items()):
        color, marker = plt.get_cmap("tab20")(i), "s" if text in HELD_OUT else "o"
        difficulty = runs[0][1]
        if difficulty.pilot_loss < 3:  # the others need another scale
            seen = np.geomspace(difficulty.pilot_characters, 1e7, 50)
            shape = [Choice(PILOT_LAYERS, PILOT_C, round(D)) for D in seen]
            left.plot(seen, [predict(choice, difficulty) for choice in shape], color=color, lw=1)
            same = [
                (choice.characters, loss)
                for choice, _, loss in runs
                if choice == Choice(PILOT_LAYERS, PILOT_C, choice.characters)
            ]
            left.plot([D for D, _ in same], [loss for _, loss in same],
                      marker, color=color, label=text, ms=4)  # fmt: skip
        passes = [choice.characters / difficulty.train_ids for choice, _, _ in runs]
        errors = [100 * (predict(choice, difficulty) / loss - 1) for choice, _, loss in runs]
        right.plot(passes, errors, marker, color=color, ms=4)
    left.set(xscale="log", ylim=(0.9, 2.3), xlabel="characters seen",
             ylabel="val loss, nats per character")  # fmt: skip
    left.set_title("2 layers, C 64, no token dropout: the law, and runs", fontsize=10)
    figure.legend(fontsize=7, ncols=7, loc="outside lower center")
    right.axhspan(-3, 3, color="0.93", zorder=0)
    right.set(xscale="log", ylim=(-17, 9), xlabel="passes over the text",
              ylabel="predicted val loss above what was reached, %")  # fmt: skip
    right.set_title("all runs (squares: texts held out)", fontsize=10)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    draw(read_points(2.0), parser.parse_args().out)
