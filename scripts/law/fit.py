"""Fit the law's coefficients to runs, by least squares in which outliers count less."""

import math
from collections.abc import Callable
from dataclasses import astuple, fields

import numpy as np
from numpy.typing import NDArray

from gpt.recipe.difficulty import Difficulty
from gpt.recipe.law import Coefficients, predict
from gpt.recipe.settings import Choice
from law.runs import PILOTED_MINUTES, PILOTS, choice_of, read_records
from law.texts import HELD_OUT

OUTLIER = 0.02  # of the loss: residuals beyond count less and less
PRIOR = 0.003  # residual of a coefficient e times its START: what runs say nothing of stays
ITERATIONS, STEP = 200, 1e-5  # of the fit; in which its derivatives are taken
START = Coefficients(
    *(0.05, 0.09, 0.5, 0.7, 0.3),  # size, characters
    *(1e-4, 2.0, 0.8, 1.8, 12.0, 0.5, 1.2),  # overfit, token dropout
    *(0.16, 1.0, 0.5, 8.0, 0.08, 0.5),  # slope, ensembles
)
SHIPPED = (  # whole runs of shakespeare_cpu and shakespeare_best; ensembles of so many members
    (Choice(3, 128, 900 * 4096, 0.01), 1.4678),
    (Choice(3, 128, 900 * 4096, 0.01, members=2), 1.4284),
    (Choice(3, 128, 900 * 4096, 0.01, members=4), 1.4081),
    (Choice(4, 128, 2000 * 4096, 0.05), 1.4211),
    (Choice(4, 128, 2000 * 4096, 0.05, members=2), 1.3817),
    (Choice(4, 128, 2000 * 4096, 0.05, members=5), 1.3574),
)
EARLIER = (  # the same recipe on tinyshakespeare, in scripts/experiments.md
    (Choice(4, 192, 300 * 4096, 0.02), 1.543),
    (Choice(4, 128, 740 * 4096, 0.02), 1.463),
    (Choice(4, 96, 1070 * 4096, 0.01), 1.482),
    (Choice(3, 128, 900 * 4096, 0.03), 1.467),
    (Choice(4, 128, 2000 * 4096, 0.1), 1.433),
)
SIGNED = ("learning", "vocabulary", "gap", "hidden")  # the other coefficients are positive

Numbers = NDArray[np.float64]
Point = tuple[Choice, Difficulty, float]
"""A run: what was chosen, of which text, and the val loss that it ended at."""


def read_points(minutes: tuple[float, ...] = PILOTED_MINUTES) -> dict[str, list[Point]]:
    """The runs of each text, as the pilots of so many minutes see it."""
    runs: dict[str, list[tuple[Choice, float]]] = {}
    for record in read_records():
        runs.setdefault(record["text"], []).append((choice_of(record), record["val_loss"]))
    runs["tinyshakespeare"] += SHIPPED + EARLIER
    points: dict[str, list[Point]] = {text: [] for text in runs}
    for pilot in read_records(PILOTS):
        if pilot["minutes"] in minutes:
            difficulty = Difficulty(
                **{field.name: pilot[field.name] for field in fields(Difficulty)}
            )
            of_it = [(choice, difficulty, loss) for choice, loss in runs[pilot["text"]]]
            points[pilot["text"]] += of_it
    return points


def fit(points: list[Point], start: Coefficients = START) -> Coefficients:
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
