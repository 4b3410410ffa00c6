#!/usr/bin/env python3
"""Fit the law of gpt/recipe to the runs of runs.jsonl: its coefficients, and how well they fit.

python scripts/law/fit.py              the coefficients of gpt/recipe/law.py, and residuals
python scripts/law/fit.py --check      residuals of the coefficients that are there
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.recipe.difficulty import PILOT, Difficulty
from gpt.recipe.law import COEFFICIENTS, Coefficients, predict
from gpt.recipe.settings import Choice

HERE = Path(__file__).parent
HELD_OUT = ("neko", "udhr", "wikitext2-test", "python-source")
OUTLIER = 0.02  # of the loss: residuals beyond count less and less
PRIOR = 0.003  # residual of a coefficient e times its start: what runs say nothing of stays
SHIPPED = (  # whole runs of shakespeare_cpu and shakespeare_best; ensembles of so many members
    (Choice(3, 128, 900 * 4096, 0.01), 1.4678),
    (Choice(3, 128, 900 * 4096, 0.01, members=2), 1.4284),
    (Choice(3, 128, 900 * 4096, 0.01, members=4), 1.4081),
    (Choice(4, 128, 2000 * 4096, 0.05), 1.4211),
    (Choice(4, 128, 2000 * 4096, 0.05, members=2), 1.3817),
    (Choice(4, 128, 2000 * 4096, 0.05, members=5), 1.3574),
)
ITERATIONS, STEP = 200, 1e-5  # of the fit; in which its derivatives are taken
EARLIER = (  # of other shapes on tinyshakespeare, in scripts/experiments.md
    (Choice(4, 192, 300 * 4096, 0.02), 1.543),
    (Choice(4, 160, 380 * 4096, 0.02), 1.533),
    (Choice(4, 128, 560 * 4096, 0.02), 1.492),
    (Choice(6, 128, 420 * 4096, 0.02), 1.526),
    (Choice(4, 128, 740 * 4096, 0.02), 1.463),
    (Choice(4, 96, 1070 * 4096, 0.01), 1.482),
)
CHOICE = tuple(field.name for field in fields(Choice))
SIGNED = ("vocabulary", "hidden")  # the other coefficients are positive

Numbers = NDArray[np.float64]
Point = tuple[Choice, Difficulty, float]
"""A run: what was chosen, of which text, and the val loss that it ended at."""


def read_runs(path: Path = HERE / "runs.jsonl") -> dict[str, list[Point]]:
    """The runs of each text, but for its pilot, which its difficulty holds."""
    texts = json.loads((HERE / "texts.json").read_text("utf-8"))
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    pilots = {r["text"]: r["val_loss"] for r in records if _choice(r) == PILOT}
    runs: dict[str, list[Point]] = {}
    for record in records:
        text = record["text"]
        if _choice(record) != PILOT and text in pilots:
            difficulty = Difficulty(**texts[text], pilot_loss=pilots[text])
            runs.setdefault(text, []).append((_choice(record), difficulty, record["val_loss"]))
    shakespeare = runs["tinyshakespeare"]
    shakespeare += [(choice, shakespeare[0][1], loss) for choice, loss in SHIPPED + EARLIER]
    return runs


def fit(points: list[Point], start: Coefficients = COEFFICIENTS) -> Coefficients:
    """Least squares of the relative errors, in which outliers count less."""
    names = [field.name for field in fields(Coefficients)]
    is_log = np.array([name not in SIGNED for name in names])

    def unpacked(x: Numbers) -> Coefficients:
        return Coefficients(*np.where(is_log, np.exp(x), x).tolist())

    def errors(x: Numbers) -> Numbers:
        fitted = unpacked(x)
        return np.array([predict(choice, text, fitted) / loss - 1 for choice, text, loss in points])

    values = np.array(astuple(start))
    return unpacked(minimised(errors, np.where(is_log, np.log(np.abs(values)), values)))


def minimised(errors: Callable[[Numbers], Numbers], start: Numbers) -> Numbers:
    """Levenberg-Marquardt on errors whose weight falls beyond OUTLIER (Huber's), near `start`."""
    x, damping = start.copy(), 1e-3

    def residuals(x: Numbers) -> Numbers:
        e = errors(x)
        size = np.abs(e) / OUTLIER
        huber = np.where(size <= 1, e, np.sign(e) * OUTLIER * np.sqrt(2 * np.maximum(size, 1) - 1))
        return np.append(huber, PRIOR * (x - start))

    for _ in range(ITERATIONS):
        now = residuals(x)
        J = np.array([(residuals(x + STEP * unit) - now) / STEP for unit in np.eye(len(x))]).T
        squares = J.T @ J
        x_next = x - np.linalg.solve(squares + damping * np.diag(np.diag(squares)), J.T @ now)
        better = np.sum(residuals(x_next) ** 2) < np.sum(now**2)
        x, damping = (x_next, damping / 3) if better else (x, damping * 4)
    return x


def report(runs: dict[str, list[Point]], fitted: Coefficients) -> None:
    """Each run, what was predicted and by how much that is off; and their root mean squares."""
    of_kind: dict[bool, list[float]] = {False: [], True: []}
    for text, points in runs.items():
        for choice, difficulty, loss in points:
            predicted = predict(choice, difficulty, fitted)
            error = predicted / loss - 1
            of_kind[text in HELD_OUT].append(error)
            shape = f"{choice.n_layer} x {choice.C}"
            passes = choice.characters / difficulty.train_ids
            members = f"; {choice.members} members" if choice.members > 1 else ""
            print(
                f"| {text} | {shape} | {choice.characters / 1e6:.2f} M | {passes:.2g} | "
                f"{choice.token_dropout:g}{members} | {loss:.3f} | {predicted:.3f} | "
                f"{100 * error:+.1f} % |"
            )
    for held_out, errors in of_kind.items():
        if errors:
            rms = math.sqrt(sum(error**2 for error in errors) / len(errors))
            kind = "held out" if held_out else "fitted"
            worst = max(map(abs, errors))
            print(f"{kind}: {len(errors)} runs, rms {100 * rms:.1f} %, worst {100 * worst:.1f} %")


def main() -> None:
    """Print the coefficients and the residuals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    runs, fitted = read_runs(), COEFFICIENTS
    if not parser.parse_args().check:
        fitted = fit([p for text, points in runs.items() if text not in HELD_OUT for p in points])
        for field, value in zip(fields(fitted), astuple(fitted), strict=True):
            print(f"    {field.name}: float = {value:.4g}")
    report(runs, fitted)


def _choice(record: dict[str, Any]) -> Choice:
    return Choice(*(record[name] for name in CHOICE))


if __name__ == "__main__":
    main()
