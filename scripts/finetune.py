"""Compare fine-tuning a run on another text with training new weights for as many steps.

    python scripts/finetune.py RUN TEXT [--characters N] [--steps N] [--rates X ...]

`--rates` are factors on the run's learning rates; each is tried. The default is the factor that
`gpt train --init-from` uses. All trainings have the run's shape and batches, so their steps take
the same time. Prints a table of val losses and seconds. One thread is used, so that it repeats.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import gpt
from gpt.config.schema import SETTINGS, values
from gpt.runs.fine_tuning import RATE_FACTOR

Curve = dict[int, tuple[float, float]]
"""Step to val loss and seconds of training."""


def main() -> None:
    """Train with new weights and with each factor, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("text", metavar="TEXT", type=Path)
    parser.add_argument("--characters", type=int, help="length of the text; default all")
    parser.add_argument("--steps", type=int, help="default: the steps of RUN")
    parser.add_argument("--rates", type=float, nargs="+", default=[RATE_FACTOR])
    parser.add_argument("--evaluations", type=int, default=7)
    chosen = parser.parse_args()
    old = gpt.load(chosen.run).config
    steps = chosen.steps or old.train.steps
    shared = {
        "device": "cpu",
        "threads": 1,
        "train.steps": steps,
        "train.eval_every": math.ceil(steps / chosen.evaluations),
        "train.eval_characters": None,
        "train.sample_length": 0,
        "train.stop_at_val_loss": None,
    }
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / chosen.text.name
        text.write_text(chosen.text.read_text("utf-8")[: chosen.characters], "utf-8")
        curves = {"new weights": curve(old, text=text, settings=shared)}
        for factor in chosen.rates:
            rates = {
                key: factor * value
                for key, value in values(old).items()
                if SETTINGS[key].fine_tuning == "scaled"
            }
            tuned = curve(None, text=text, settings=shared | rates, init_from=chosen.run)
            curves[f"rates x {factor:g}"] = tuned
    show(curves)


def curve(config: Any, *, text: Path, **options: Any) -> Curve:
    """Train, and return the val losses."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        gpt.train(config, text=str(text), run_dir=run, **options)
        records = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
        return {r["step"]: (r["val_loss"], r["elapsed_s"]) for r in records if "val_loss" in r}


def show(curves: dict[str, Curve]) -> None:
    """Print a row for each evaluation, and a column for each curve."""
    print("| step |", " | ".join(curves), "|")
    print("|---" * (1 + len(curves)) + "|")
    for step in next(iter(curves.values())):
        cells = (
            f"{loss:.3f} ({seconds:.0f} s)" for loss, seconds in (c[step] for c in curves.values())
        )
        print(f"| {step} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
