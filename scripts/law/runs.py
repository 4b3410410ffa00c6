"""Train the runs that the law is fitted on, each in its own process with one thread."""

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from gpt.config.schema import Config
from gpt.device import computing_with, generator, select_precision
from gpt.distributed.ranks import SINGLE
from gpt.evaluation.loss import evaluate
from gpt.model.transformer import GPT, cross_entropy
from gpt.recipe.difficulty import Difficulty, measure_difficulty
from gpt.recipe.repetition import repeats_much
from gpt.recipe.settings import Choice, context_length, settings_for
from gpt.text.batches import scored_windows
from gpt.text.vocabulary import Ids
from gpt.training.build_step import build_step
from law.texts import corpus_of, source_of

RUNS = Path(__file__).with_name("runs.jsonl")
PILOTS = Path(__file__).with_name("pilots.jsonl")
PILOTED_MINUTES = (0.5, 2.0)  # values of --minutes whose pilots are trained
EVALUATIONS = 4
EVAL_CHARACTERS = 250_000  # characters of val that are scored, evenly spread; most texts have fewer
CHOICE = tuple(field.name for field in fields(Choice))
# runs: layers x C, millions of characters, token dropout, and members if not one
OF_EACH = "2x64 .1 0, 2x64 .2 0, 2x64 .4 0"
PLANNED = {
    "tinyshakespeare-20kB": "1x48 .1 0, 1x48 .4 .1, 2x64 .4 .1, 2x64 .4 .3, "
    "3x128 .2 0, 3x128 .2 .2, 2x64 1 .2, 2x64 .2 0 2, 2x64 .4 .2 2, 2x64 .4 .5, 3x128 .4 .4, "
    "2x64 1 .4, 2x64 .15 .02 8, 2x64 .15 .05 8, 2x96 .13 .05 8, 2x96 .18 .1 8, 2x48 .22 .1 8, "
    "2x64 .18 .1 8, 2x64 .27 .1 8, 2x64 .22 .2 8, 2x96 .22 .2 8",
    "tinyshakespeare-200kB": "1x64 .4 0, 2x64 1 0, 2x64 1 .1, 2x64 4 .1, 3x128 .4 0, "
    "3x128 1.4 .05, 3x128 1.4 .2, 2x96 2.5 .2, 2x64 .6 0 2, 2x64 1 .1 2, 3x128 1.4 .1 2, "
    "4x160 .9 .02, 4x160 .9 .1, 3x128 1 0 4, 3x128 1 .05 4, 2x128 1.1 .02 5, 2x96 1.5 .02 6",
    "tinyshakespeare": "1x64 1 0, 2x64 3 0, 2x128 .15 0, 2x128 .6 0, 3x128 1.5 0, 4x192 .6 0, "
    "1x128 2 0, 3x96 5 .02, 2x64 1 0 2, 2x64 .3 0, 3x160 3 .02, 8x256 2 .05, "
    "2x64 3 .1, 3x160 3 .1, 6x192 2 .01, 6x192 2 .1, "
    "2x128 2.5 0, 2x128 4 0, 3x128 2.5 0, 3x128 4 .01, 2x128 6 0, 2x128 6 .02, 2x96 4.4 0 2",
    "names": "1x48 .5 0, 2x64 .5 0, 2x64 2 .05, 3x128 .8 0, 3x128 .8 .1, 3x128 2 .1 2, 3x128 4 .1, "
    "4x192 4 .1, 6x192 2 .2, 2x64 .9 .02, 2x64 .9 .1, 4x160 .9 .02, 4x160 .9 .1, "
    "3x128 1 0 4, 3x128 1 .05 4, 2x128 1.1 .01 5",
    "wikitext2-valid": "2x64 2.5 0, 3x128 .4 0, 3x128 2 0, 2x64 .6 0 2, 4x192 .6 0, "
    "3x128 4 .01, 3x128 4 .05, 4x128 4 .01, 4x128 4 .1, 3x128 4 .01 2, 4x192 6 .05, "
    "2x64 2.5 .1, 4x192 2.5 .01, 4x192 2.5 .1, "
    "2x128 2.5 0, 2x128 4 0, 3x128 2.5 0, 2x128 6 .02, 2x96 4.4 0 2, 2x128 2.8 0 2",
    "python-docs": "2x64 2.5 .02, 3x128 .4 0, 3x128 2 0, 3x128 2 .1, 4x192 1 0, "
    "2x64 1 .02 2, 3x128 4 .02 2, 2x96 2.9 .02 3, 2x128 1.9 .01 3",
    "torch-python": "2x64 1 0, 3x128 2 0, 3x128 2 0 2, 4x128 4 .02, 2x64 4 0",
    "torch-headers": "2x64 1 0, 3x128 2 0, 4x128 4 .02, 2x64 4 0",
    "torch-all-python": "2x64 1 0, 3x128 2 0, 6x192 2 0, 2x128 5 0, 2x96 10 0, 2x64 4 0",
    "torch-all-headers": "2x64 1 0, 3x128 2 0, 3x128 4 0, 2x96 8 0",
    "gutenberg12-2MB": "2x64 1 0, 3x128 .4 0, 3x128 2.5 0, 4x192 .8 0, 3x128 2.5 0 2, 4x128 5 .02",
    "gutenberg12": "2x64 1 0, 2x64 5 0, 3x128 .4 0, 3x128 2.5 0, 4x192 .8 0, 6x256 .4 0, "
    "2x64 .6 0 2, 4x160 6 0",
    "gutenberg12-words": "2x64 .3 0, 2x64 1 0, 2x128 .5 0, 3x128 1 0, 2x64 2 .05",
    "gutenberg12-rare-words": "2x64 .3 0, 2x128 .3 0",
    "neko": "2x128 .5 0, 3x128 1.2 .05, 2x64 1 0, 3x128 2 .1, 3x128 1.2 .05 2",
    "udhr": "2x64 .3 0, 2x64 .8 0, 2x64 1 .1, 2x128 .8 .1",
    "wikitext2-test": "2x64 1 0, 3x128 2 0, 4x128 4 .05",
    "python-source": "2x64 1 0, 3x128 2 0, 2x128 5 0, 3x128 4 0",
}

Record = dict[str, Any]


def planned_runs() -> list[tuple[str, Choice]]:
    """Return the runs OF_EACH text and those PLANNED for it, the shortest first."""
    runs = []
    for text, listed in PLANNED.items():
        for run in f"{OF_EACH}, {listed}".split(", "):
            shape, millions, dropout, *members = run.split()
            n_layer, C = map(int, shape.split("x"))
            characters = round(1e6 * float(millions))
            runs.append((text, Choice(n_layer, C, characters, float(dropout), *map(int, members))))
    return sorted(runs, key=lambda run: _cost(run[1]))


def choice_of(record: Record) -> Choice:
    """Return the choice of a run in runs.jsonl."""
    return Choice(*(record[name] for name in CHOICE))


def read_records(file: Path = RUNS) -> list[Record]:
    """Read the records of a file, by default of runs.jsonl."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def difficulty_of(pilot: Record) -> Difficulty:
    """Return the difficulty of a text by a pilot in pilots.jsonl."""
    return Difficulty(**{key: pilot[key] for key in pilot if key not in ("text", "minutes")})


def collect(folder: Path, jobs: int) -> None:
    """Train all planned runs that are missing, `jobs` at once; print each."""
    collect_pilots(folder)
    there = {(record["text"], choice_of(record)) for record in read_records()}

    def start(planned: tuple[str, Choice]) -> None:
        one = json.dumps([planned[0], *asdict(planned[1]).values()])
        command = [sys.executable, sys.argv[0], "one", str(folder), one]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment
        )
        record = json.loads(done.stdout.splitlines()[-1])
        with RUNS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(planned[0], *asdict(planned[1]).values(), record["val_loss"], flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(start, [run for run in planned_runs() if run not in there]):
            pass


def collect_pilots(folder: Path) -> None:
    """Train the missing pilots in this process; each takes seconds."""
    there = {(record["text"], record["minutes"]) for record in read_records(PILOTS)}
    base = Config(device="cpu", threads=1)
    for text, minutes in product(PLANNED, PILOTED_MINUTES):
        if (text, minutes) in there:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            corpus = corpus_of(source_of(text, folder, Path(scratch)))
            T = context_length(min(len(corpus.train), len(corpus.val)))
            repeats = repeats_much(corpus, T)
            measured = asdict(measure_difficulty(corpus, T, base, minutes, repeats=repeats))
        with PILOTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"text": text, "minutes": minutes, **measured}) + "\n")
        print(text, minutes, measured, flush=True)


def train_one(folder: Path, text: str, choice: Choice) -> Record:
    """Train one run in this process, and return its record."""
    with tempfile.TemporaryDirectory() as scratch, computing_with(1):
        corpus = corpus_of(source_of(text, folder, Path(scratch)))
        T, V = context_length(min(len(corpus.train), len(corpus.val))), len(corpus.vocabulary)
        repeats = repeats_much(corpus, T)
        models: list[GPT] = []
        curves: list[list[float]] = []
        last: list[float] = []
        seconds = 0.0
        for member in range(choice.members):
            config = settings_for(replace(choice, members=1), T, repeats=repeats)
            config = config.model_copy(update={"seed": 1337 + member})
            steps = config.train.steps
            models.append(GPT(config.model, V, generator(config.seed, "init", 0)))
            update = build_step(config, models[-1], torch.device("cpu"), SINGLE, corpus.train)
            due = {steps * (i + 1) // EVALUATIONS: i for i in range(EVALUATIONS)}
            curves.append([])
            for step in range(steps):
                began = time.process_time()
                train_loss = float(update(step)[0])
                seconds += time.process_time() - began
                if step >= steps - max(1, steps // 20):
                    last.append(train_loss)
                if step + 1 in due:
                    characters = EVAL_CHARACTERS // (1 if step + 1 == steps else 4)
                    loss = ensemble_loss(models[-1:], corpus.val, characters)
                    curves[-1].append(round(loss, 4))
        precision = select_precision("auto", torch.device("cpu"))
        return {
            "text": text,
            **asdict(choice),
            "train_characters": len(corpus.train),
            "V": V,
            "T": T,
            "steps": steps,
            "val_loss": round(ensemble_loss(models, corpus.val, EVAL_CHARACTERS), 4),
            "train_loss": round(sum(last) / len(last), 4),
            "curves": curves,  # val losses of each member at each quarter
            "core_seconds": round(seconds, 1),
            "precision": str(precision).removeprefix("torch."),
        }


def ensemble_loss(models: list[GPT], ids: Ids, characters: int) -> float:
    """Return the val loss of the members' mean probabilities on `characters`, evenly spread."""
    if len(models) == 1:
        return evaluate(models[0], ids, characters=characters)
    T, total, scored = models[0].config.T, 0.0, 0
    with torch.inference_mode():
        for x, y in scored_windows(ids, T, characters):
            p = torch.stack([model(x).softmax(-1) for model in models]).mean(0)  # (B, T, V)
            total += cross_entropy(p.log(), y, reduction="sum").item()
            scored += y.numel()
    return total / scored


def _cost(choice: Choice) -> float:
    """Return the computing time of a run, relative to others."""
    return float(choice.characters * choice.members * choice.n_layer * choice.C**1.5)
