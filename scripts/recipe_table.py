#!/usr/bin/env python3
"""Train `gpt train TEXT --minutes N` on many texts, beside nanoGPT's CPU recipe in the same time.

    python scripts/recipe_table.py TEXT... --minutes 2 --seed 1 --nanogpt CHECKOUT

TEXT is a file or a named source; nanoGPT needs files. Val losses are in nats per character, of the
whole val split. A row is printed when a text is done; with --json, one object per line. On a busy
machine, `--clock cpu` counts CPU seconds divided by the number of threads, so that other programs
do not shorten a run.
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from bench_peers import NanoGPT

import gpt


@dataclass(frozen=True)
class Row:
    """Results on one text."""

    text: str
    minutes: float
    seed: int
    seconds: float  # duration of training and of all work before it, by the run's clock
    choice: str
    val_loss: float
    last_val_loss: float
    nanogpt: float | None
    nanogpt_s: float | None

    def __str__(self) -> str:
        peer = "-" if self.nanogpt is None else f"{self.nanogpt:.3f} in {self.nanogpt_s:.0f} s"
        return (
            f"| {self.text} | {self.minutes:g} | {self.seed} | {self.seconds:.0f} s | "
            f"{self.choice} | {self.val_loss:.3f} ({self.last_val_loss:.3f}) | {peer} |"
        )


def compare(text: str, minutes: float, seed: int, clock: str, nanogpt: Path | None) -> Row:
    """Train on one text, first by `gpt`, then by nanoGPT if there is a checkout."""
    now = time.perf_counter if clock == "wall" else cpu_seconds
    began = now()
    with tempfile.TemporaryDirectory() as folder:
        outcome = gpt.train(
            text=text,
            minutes=minutes,
            settings={"seed": seed},
            run_dir=Path(folder) / "run",
            clock=lambda: now() - began,
        )
        seconds, config = now() - began, gpt.load(outcome.run).config
    model, dropout = config.model, config.model.character_dropout
    passes = config.train.steps * config.train.batch_size * model.T
    choice = f"{model.ensemble} of {model.n_layer} x {model.C}, {passes / 1e6:.2g} M characters"
    theirs = NanoGPT(nanogpt, Path(text)).cpu_recipe_in(60 * minutes) if nanogpt else {}
    return Row(
        text=Path(text).stem,
        minutes=minutes,
        seed=seed,
        seconds=round(seconds, 1),
        choice=f"{choice}, token dropout {dropout:g}" if dropout else choice,
        val_loss=round(outcome.best_val_loss_per_character, 4),
        last_val_loss=round(outcome.val_loss_per_character, 4),
        nanogpt=theirs.get("val_loss_by_our_rule"),
        nanogpt_s=theirs.get("wall_s"),
    )


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, divided by its threads."""
    return time.process_time() / torch.get_num_threads()


def main() -> None:
    """Print a row for each text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if not asked.json:
        print("| text | minutes | seed | took | choice | val loss (at its end) | nanoGPT |")
        print(f"|{'---|' * 7}", flush=True)
    for text in asked.texts:
        row = compare(text, asked.minutes, asked.seed, asked.clock, asked.nanogpt)
        print(json.dumps(asdict(row)) if asked.json else row, flush=True)


if __name__ == "__main__":
    main()
