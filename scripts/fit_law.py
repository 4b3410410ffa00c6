#!/usr/bin/env python3
"""Fit the law by which `gpt train my.txt` chooses a model, and report its errors.

    python scripts/fit_law.py collect TEXTS [--jobs N]    train pilots and runs on a folder of texts
    python scripts/fit_law.py fit                         print coefficients for gpt/recipe/law.py
    python scripts/fit_law.py check                       print the residuals of the current ones

Each run is a line of law/runs.jsonl, each pilot a line of law/pilots.jsonl. A line that exists is
not trained again, so `collect` can be stopped and started again. All of them take about 3 hours of
one core.
"""

import argparse
import json
from dataclasses import astuple, fields
from pathlib import Path

from law.fit import fit, read_points, report
from law.runs import PILOTED_MINUTES, collect, train_one
from law.texts import HELD_OUT

from gpt.recipe.law import COEFFICIENTS
from gpt.recipe.settings import Choice


def main() -> None:
    """Run the command that the first argument names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("collect", "fit", "check", "one"))
    parser.add_argument("texts", type=Path, nargs="?")
    parser.add_argument("run", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.what == "one":
        text, *choice = json.loads(arguments.run)
        print(json.dumps(train_one(arguments.texts, text, Choice(*choice))))
    elif arguments.what == "collect":
        collect(arguments.texts, arguments.jobs)
    else:
        fitted = COEFFICIENTS
        if arguments.what == "fit":
            fitted = fit(
                [
                    points
                    for minutes in PILOTED_MINUTES
                    for text, points in read_points(minutes).items()
                    if text not in HELD_OUT
                ]
            )
            for field, value in zip(fields(fitted), astuple(fitted), strict=True):
                print(f"    {field.name}: float = {value:.4g}")
        report(fitted)


if __name__ == "__main__":
    main()
