"""What each part of the network gains in equal time.

Each variant changes one part of the settings that `gpt train --minutes` chooses. Other programs
disturb clocks. Therefore, first measure the ratio of the CPU times of a variant's step and of a
base step, in turn. Then train the variant for the base's number of steps, divided by this ratio.
The losses in equal time are then exact on a busy machine, too.
"""

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.frame import in_turn
from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.distributed.ranks import SINGLE
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import make_model
from gpt.recipe.table import Choice, Size, settings
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.repetition import repeats_much
from gpt.text.sources import open_source
from gpt.training.build_step import build_step
from gpt.training.schedule import SHORT_PART

T = 512  # characters in the context
# runs of about one minute and of five minutes on two cores
LENGTHS = {"short": Choice(Size(2, 96), 1_300_000), "long": Choice(Size(3, 128), 3_700_000)}
SEEDS = (1337, 1338)
TRAIN_CHARACTERS, VAL_CHARACTERS = 4_000_000, 300_000  # longer splits are cut
ROUNDS = 16  # alternations of base and variant
GROUP_S = 0.15  # seconds of consecutive steps of one of them
VARIANTS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "base": lambda base: {},
    "no QK norm, scale 1": lambda base: {"model.qk_norm": False, "model.attention_scale": 1.0},
    "QK norm, scale 1": lambda base: {"model.attention_scale": 1.0},
    "GELU": lambda base: {"model.activation": "gelu"},
    "key_offset switched": lambda base: {"model.key_offset": not base.model.key_offset},
    "no short windows": lambda base: {"train.first_window": None},
}


class Results:
    """Numbers by name in a file of JSON lines, which survive an interrupted measurement."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.found: dict[str, float] = dict(map(json.loads, lines))

    def get(self, name: str, measure: Callable[[], float]) -> float:
        """Return the number of this name; if there is none, append the result of `measure`."""
        if name not in self.found:
            self.found[name] = round(measure(), 4)
            with self.path.open("a") as file:
                file.write(json.dumps([name, self.found[name]]) + "\n")
        return self.found[name]


def parts(text: Path, out: Path) -> dict[str, float]:
    """Return the relative time of a step, and the val loss in equal time, of each variant.

    Results are appended to the file `out`. What it already contains is not measured again.
    """
    results, corpus = Results(out), load_corpus(open_source(str(text)))
    repeats = repeats_much(corpus, T)
    for length, choice in LENGTHS.items():
        base = load_config(None, [*settings(choice, T, repeats=repeats).items()])
        for name, change in VARIANTS.items():
            variant = load_config(base, [*change(base).items()])
            row = f"{text.stem}, {length}, {name}"
            ratio = results.get(f"{row}: time", partial(step_ratio, base, variant, corpus))
            for seed in SEEDS:
                changes = [("train.steps", round(base.train.steps / ratio)), ("seed", seed)]
                config = load_config(variant, changes)
                results.get(f"{row}, seed {seed}: loss", partial(val_loss, config, corpus))
    return results.found


def trainer(config: Config, corpus: Corpus) -> tuple[Any, Any]:
    """Return a new model and the function that trains it for one step."""
    model = make_model(config.model, len(corpus.vocabulary), config.seed)
    ids = corpus.train[:TRAIN_CHARACTERS]
    return model, build_step(config, model, torch.device("cpu"), SINGLE, ids)


def val_loss(config: Config, corpus: Corpus) -> float:
    """Train by `config`; return the val loss."""
    model, step = trainer(config, corpus)
    for i in range(config.train.steps):
        step(i)
    return float(evaluate(model, corpus.val[:VAL_CHARACTERS]))


def step_ratio(base: Config, variant: Config, corpus: Corpus) -> float:
    """Return the CPU time of a run by `variant` divided by that of equal steps by `base`."""
    updates = {"base": trainer(base, corpus)[1], "variant": trainer(variant, corpus)[1]}
    totals = dict.fromkeys(updates, 0.0)
    # the first step of each part of a run, with short and with whole windows; share of the run
    for first, share in ((0, SHORT_PART), (base.train.steps - 1, 1 - SHORT_PART)):
        for update in updates.values():
            update.probe(first)
        began = time.perf_counter()
        updates["base"](first)
        count = max(1, round(GROUP_S / (time.perf_counter() - began)))

        def group(update: Any, first: int = first, count: int = count) -> None:
            for _ in range(count):
                update(first)

        works = {name: partial(group, update) for name, update in updates.items()}
        for name, taken in in_turn(works, ROUNDS, clock=time.process_time).items():
            totals[name] += float(share) * statistics.median(taken) / count
    return totals["variant"] / totals["base"]
