"""Measure what each part of the network gains in equal time.

Example: python scripts/parts.py RESULTS.jsonl --text tinyshakespeare.txt --code python-source

Each variant changes one part of the settings that `gpt train --minutes` chooses. Other programs
disturb clocks. Therefore, first measure the ratio of the times of a variant's step and of a base
step, in alternation. Then train the variant for the base's number of steps, divided by this ratio.
The losses in equal time are then exact on a busy machine, too.

Results are appended to RESULTS.jsonl. What it already contains is not measured again.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as gpt.__main__ does

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.distributed.ranks import SINGLE
from gpt.evaluation.loss import evaluate
from gpt.model import transformer
from gpt.model.ensemble import make_model
from gpt.recipe.table import Choice, Size, settings
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.sources import open_source
from gpt.training.build_step import build_step
from gpt.training.schedule import SHORT_PART

T = 512  # characters in the context
# runs of about one minute and of five minutes on two cores
LENGTHS = {"short": Choice(Size(2, 96), 1_300_000), "long": Choice(Size(3, 128), 3_700_000)}
TRAIN_CHARACTERS, VAL_CHARACTERS = 4_000_000, 300_000  # longer splits are cut
ROUNDS = 16  # alternations of base and variant
GROUP_S = 0.15  # seconds of consecutive steps of one of them

Settings = dict[str, Any]
VARIANTS: dict[str, Callable[[Config], Settings]] = {
    "base": lambda base: {},
    "no QK norm, scale 1": lambda base: {"model.qk_norm": False, "model.attention_scale": 1.0},
    "QK norm, scale 1": lambda base: {"model.attention_scale": 1.0},
    "GELU": lambda base: {"model.activation": "gelu"},
    "key_offset switched": lambda base: {"model.key_offset": not base.model.key_offset},
    "no short windows": lambda base: {"train.first_window": None},
}
SPEED_ONLY = "squared ReLU, autograd"  # equal losses up to rounding

Row = dict[str, Any]


class Results:
    """Rows of the results file, found by their key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows = {tuple(row["key"]): row for row in map(json.loads, lines)}

    def get(self, key: tuple[Any, ...], measure: Callable[..., Row], *arguments: Any) -> Row:
        """Return the row of `key`; if there is none, append the result of `measure`."""
        if key not in self.rows:
            self.rows[key] = {"key": key} | measure(*arguments)
            with self.path.open("a") as file:
                file.write(json.dumps(self.rows[key]) + "\n")
        row: Row = self.rows[key]
        return row


def trainer(config: Config, corpus: Corpus) -> tuple[Any, Any]:
    """Return a new model and the function that trains it for one step."""
    model = make_model(config.model, len(corpus.vocabulary), config.seed)
    ids = corpus.train[:TRAIN_CHARACTERS]
    step = build_step(config, model, torch.device("cpu"), SINGLE, ids)
    return model, step


def train(config: Config, corpus: Corpus) -> Row:
    """Train by `config`; return the val loss."""
    began = time.perf_counter()
    model, step = trainer(config, corpus)
    for i in range(config.train.steps):
        step(i)
    loss = evaluate(model, corpus.val[:VAL_CHARACTERS])
    seconds = round(time.perf_counter() - began, 1)
    return {"loss": loss, "steps": config.train.steps, "wall_s": seconds}


def expand_by_autograd(x: Tensor, weight: Tensor, bias: Tensor, _: torch.dtype) -> Tensor:
    """Compute `transformer.expand_relu2` by separate operations, differentiated by autograd."""
    return F.linear(x, weight, bias).relu().square()


def ratio(base: Config, variant: Config, corpus: Corpus, expand: Any) -> Row:
    """Return the time of a run by `variant` divided by that of one with equal steps by `base`.

    `expand` replaces `transformer.expand_relu2` in steps of `variant`.
    """
    own = transformer.expand_relu2
    updates = [(trainer(base, corpus)[1], own), (trainer(variant, corpus)[1], expand)]
    parts = {0: SHORT_PART, base.train.steps - 1: 1 - SHORT_PART}  # first step: share of the run
    count = {}  # steps in a group
    for first in parts:
        for update, _ in updates:
            update.probe(first)
        began = time.perf_counter()
        updates[0][0](first)
        count[first] = max(1, round(GROUP_S / (time.perf_counter() - began)))
    ratios: dict[str, list[float]] = {"cpu": [], "wall": []}
    for _ in range(ROUNDS):
        cpu, wall = [0.0, 0.0], [0.0, 0.0]
        for first, part in parts.items():
            for i, (update, transformer.expand_relu2) in enumerate(updates):
                cpu_began, wall_began = time.process_time(), time.perf_counter()
                for _ in range(count[first]):
                    update(first)
                cpu[i] += float(part) * (time.process_time() - cpu_began) / count[first]
                wall[i] += float(part) * (time.perf_counter() - wall_began) / count[first]
        ratios["cpu"].append(cpu[1] / cpu[0])
        ratios["wall"].append(wall[1] / wall[0])
    transformer.expand_relu2 = own
    return {name: round(statistics.median(each), 4) for name, each in ratios.items()}


def measure(
    results: Results, corpora: dict[str, tuple[Corpus, bool]], length: str, seed: int
) -> None:
    """Measure all variants on all texts for runs of one length and seed."""
    for name in [*VARIANTS, SPEED_ONLY]:
        for text, (corpus, is_code) in corpora.items():
            chosen = settings(LENGTHS[length], T, repeats=is_code)
            base = load_config(None, [*chosen.items()])
            changes = VARIANTS.get(name, VARIANTS["base"])(base)
            variant = load_config(base, [*changes.items()])
            speed = {"cpu": 1.0}
            if name != "base":
                own = transformer.expand_relu2
                expand = expand_by_autograd if name == SPEED_ONLY else own
                key = ("speed", length, text, name)
                speed = results.get(key, ratio, base, variant, corpus, expand)
            if name == SPEED_ONLY:
                continue
            steps = round(base.train.steps / speed["cpu"])
            config = load_config(variant, [("train.steps", steps), ("seed", seed)])
            results.get(("loss", length, text, name, seed), train, config, corpus)
        print(table(results), flush=True)


def table(results: Results) -> str:
    """Return a Markdown table: val loss minus that of the base in equal time, for each seed."""
    keys = [key for key in results.rows if key[0] == "speed"]
    columns = [*dict.fromkeys((length, text) for _, length, text, _ in keys)]
    names = [*VARIANTS, SPEED_ONLY]
    head = ["variant", *(f"{text}, {length}" for length, text in columns)]
    lines = [head, ["---"] * len(head)]
    losses = {key[1:]: row["loss"] for key, row in results.rows.items() if key[0] == "loss"}
    for name in names:
        line = [name]
        for length, text in columns:
            speed = results.rows.get(("speed", length, text, name), {"cpu": 1.0, "wall": 1.0})
            cell = f"x{speed['cpu']:.3f}:"
            for *key, seed in losses:
                if key == [length, text, name]:
                    loss = losses[*key, seed]
                    base = losses[length, text, "base", seed]
                    cell += f" {loss:.4f}" if name == "base" else f" {loss - base:+.4f}"
            line.append(cell)
        lines.append(line)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Measure what the arguments ask for, and print the table after each variant."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--text", nargs="*", default=[], help="texts that do not repeat themselves")
    parser.add_argument("--code", nargs="*", default=[], help="texts that repeat themselves")
    parser.add_argument("--length", nargs="*", choices=[*LENGTHS], default=[*LENGTHS])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1337, 1338])
    options = parser.parse_args()
    results = Results(options.results)
    texts = [(text, False) for text in options.text] + [(code, True) for code in options.code]
    corpora = {Path(text).stem: (load_corpus(open_source(text)), code) for text, code in texts}
    for length in options.length:
        for seed in options.seeds:
            measure(results, corpora, length, seed)


if __name__ == "__main__":
    main()
