"""Fit the law's coefficients to runs by robust least squares."""

import math
from collections.abc import Callable
from dataclasses import astuple, fields

import numpy as np
from numpy.typing import NDArray

from gpt.recipe.difficulty import Difficulty
from gpt.recipe.law import Coefficients, predict
from gpt.recipe.settings import Choice
from law.runs import (
    PILOTED_MINUTES,
    PILOTS,
    choice_of,
    difficulty_of,
    read_records,
)
from law.texts import HELD_OUT

OUTLIER = 0.02  # relative residual above which Huber's loss grows linearly
SHARED = 0.2  # part of a text's mean residual that is not counted: runs of one text are compared
PRIOR = 0.003  # residual of a coefficient e times its START, which keeps undetermined ones there
ITERATIONS = 200  # iterations of the fit
STEP = 1e-5  # difference by which derivatives are estimated
START = Coefficients(
    *(0.05, 0.09, 0.5, 0.5, 0.7, 0.3),  # size, characters
    *(1e-3, 2.0, 0.8, 0.6, 12.0, 1.0, 0.3),  # overfit, token dropout
    *(0.5, 0.4, 0.3, 0.08, 0.3),  # slope, passes, ensembles
    *(0.4, 0.1, 1.0),  # repeated ids
)
WHOLE = {  # further runs, of `gpt train`
    "tinyshakespeare": (  # shakespeare_cpu, shakespeare_best, and ensembles of them
        (Choice(3, 128, 900 * 4096, 0.01), 1.4678),
        (Choice(3, 128, 900 * 4096, 0.01, members=2), 1.4284),
        (Choice(3, 128, 900 * 4096, 0.01, members=4), 1.4081),
        (Choice(4, 128, 2000 * 4096, 0.05), 1.4211),
        (Choice(4, 128, 2000 * 4096, 0.05, members=2), 1.3817),
        (Choice(4, 128, 2000 * 4096, 0.05, members=5), 1.3574),
        # the same recipe, in scripts/experiments.md
        (Choice(4, 192, 300 * 4096, 0.02), 1.543),
        (Choice(4, 128, 740 * 4096, 0.02), 1.463),
        (Choice(4, 96, 1070 * 4096, 0.01), 1.482),
        (Choice(3, 128, 900 * 4096, 0.03), 1.467),
        (Choice(4, 128, 2000 * 4096, 0.1), 1.433),
        # choices of this law and of earlier ones for 2 to 11 minutes
        (Choice(3, 128, 949 * 4096, 0.02, members=2), 1.4268),
        (Choice(4, 128, 940 * 4096, 0.01, members=2), 1.4116),
        (Choice(3, 160, 1303 * 4096, 0.02, members=2), 1.3940),
        (Choice(6, 192, 1417 * 4096, 0.01, members=2), 1.3715),
        (Choice(4, 192, 1265 * 4096, 0.05, members=3), 1.3715),
        (Choice(4, 192, 1008 * 4096, 0.05, members=4), 1.3786),
        (Choice(3, 160, 723 * 4096, 0.05, members=2), 1.4408),
        (Choice(6, 192, 1110 * 4096, 0.1, members=3), 1.3850),
        (Choice(2, 128, 644 * 4096, members=2), 1.4692),
        (Choice(3, 128, 1065 * 4096, 0.01), 1.4680),
        (Choice(2, 128, 589 * 4096, members=2), 1.4718),
        (Choice(3, 128, 861 * 4096, 0.01), 1.4777),
    ),
    "tinyshakespeare-20kB": (
        (Choice(2, 64, 125 * 1024, 0.1, members=8), 1.7010),
        (Choice(2, 64, 150 * 1024, 0.1, members=8), 1.6927),
    ),
    "tinyshakespeare-200kB": (
        (Choice(3, 160, 447 * 2048, 0.1, members=4), 1.4999),
        (Choice(4, 160, 458 * 2048, 0.1, members=4), 1.4887),
        (Choice(3, 128, 454 * 2048, members=4), 1.4734),
    ),
    "wikitext2-valid": (
        (Choice(4, 128, 1095 * 4096, 0.02), 1.3377),
        (Choice(4, 128, 851 * 4096), 1.3441),
        (Choice(3, 128, 675 * 4096, members=2), 1.3246),
        (Choice(3, 128, 607 * 4096, 0.01, members=2), 1.3356),
        (Choice(3, 128, 833 * 4096, 0.01, members=2), 1.3124),
        (Choice(6, 192, 981 * 4096, 0.02, members=2), 1.2720),
        (Choice(4, 192, 916 * 4096, 0.05, members=4), 1.2739),
        (Choice(3, 128, 1001 * 4096, 0.05, members=2), 1.3127),
        (Choice(6, 192, 1147 * 4096, 0.1, members=3), 1.2707),
    ),
    "names": (
        (Choice(3, 160, 617 * 2048, 0.1, members=4), 1.2464),
        (Choice(6, 192, 800 * 2048, 0.1, members=4), 1.2361),
        (Choice(4, 256, 465 * 2048, 0.1, members=8), 1.2368),
        (Choice(4, 160, 442 * 2048, 0.1, members=4), 1.2713),
        (Choice(3, 128, 457 * 2048, members=4), 1.2527),
    ),
    "python-docs": (
        (Choice(3, 128, 1244 * 2048, 0.05, members=2), 1.0256),
        (Choice(3, 160, 571 * 4096, 0.1, members=2), 1.0298),
    ),
    "gutenberg12": (
        (Choice(2, 96, 2048 * 4096), 1.3183),
        (Choice(2, 128, 1468 * 4096), 1.3346),
        (Choice(2, 128, 1850 * 4096), 1.2958),
    ),
}
SIGNED = ("learning", "gap", "hidden")  # the other coefficients are positive

Numbers = NDArray[np.float64]
Point = tuple[Choice, Difficulty, float]
"""A run: its choice, the difficulty of its text, and its val loss."""


def read_points(minutes: float) -> dict[str, list[Point]]:
    """Return the runs of each text that are no shorter than its pilot of `minutes`."""
    runs: dict[str, list[tuple[Choice, float]]] = {}
    for record in read_records():
        runs.setdefault(record["text"], []).append((choice_of(record), record["val_loss"]))
    for text, further in WHOLE.items():
        runs[text] += further
    points: dict[str, list[Point]] = {text: [] for text in runs}
    for pilot in read_records(PILOTS):
        if pilot["minutes"] == minutes:
            difficulty = difficulty_of(pilot)
            text = pilot["text"]
            points[text] += [
                (choice, difficulty, loss)
                for choice, loss in runs[text]
                if choice.characters >= difficulty.pilot_characters
            ]
    return points


def fit(texts: list[list[Point]], start: Coefficients = START) -> Coefficients:
    """Minimise the squares of the relative errors, with Huber's loss.

    A part of each text's mean error (SHARED) is not counted, as in a model with random effects.
    """
    names = [field.name for field in fields(Coefficients)]
    is_log = np.array([name not in SIGNED for name in names])

    def unpacked(x: Numbers) -> Coefficients:
        return Coefficients(*np.where(is_log, np.exp(x), x).tolist())

    def errors(x: Numbers) -> Numbers:
        fitted = unpacked(x)
        of_texts = [
            np.array([predict(choice, text, fitted) / loss - 1 for choice, text, loss in points])
            for points in texts
        ]
        return np.concatenate([of_text - SHARED * of_text.mean() for of_text in of_texts])

    values = np.array(astuple(start))
    return unpacked(minimised(errors, np.where(is_log, np.log(np.abs(values)), values)))


def minimised(errors: Callable[[Numbers], Numbers], start: Numbers) -> Numbers:
    """Minimise Huber's loss of `errors` by Levenberg-Marquardt, near `start`."""
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


def report(fitted: Coefficients) -> None:
    """Print the relative errors of the predictions, by text and pilot."""
    for minutes in PILOTED_MINUTES:
        of_kind: dict[bool, list[float]] = {False: [], True: []}
        print(f"by the pilot of {minutes:g} minutes:\n| text | runs | rms | from, to |")
        for text, points in read_points(minutes).items():
            errors = [predict(choice, of, fitted) / loss - 1 for choice, of, loss in points]
            of_kind[text in HELD_OUT] += errors
            held_out = ", held out" if text in HELD_OUT else ""
            extremes = f"{100 * min(errors):+.1f} to {100 * max(errors):+.1f} %"
            print(f"| {text}{held_out} | {len(errors)} | {_rms(errors):.1f} | {extremes} |")
        for held_out, errors in zip(("fitted", "held out"), of_kind.values(), strict=True):
            print(f"{held_out}: {len(errors)} runs, rms {_rms(errors):.1f} %")


def _rms(errors: list[float]) -> float:
    """Return the root mean square, in percent."""
    return 100 * math.sqrt(sum(error**2 for error in errors) / len(errors))
