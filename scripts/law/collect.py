#!/usr/bin/env python3
"""Train the runs that the law of gpt/recipe is fitted on, each on one thread.

    python scripts/law/collect.py TEXTS [--jobs N]

TEXTS is a folder with the files of data/README.md. A line of runs.jsonl is one run; those that
are there are not run again, so it can be stopped and started again. Two hours of one core.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.recipe.settings import Choice, context_length, settings_for

if TYPE_CHECKING:
    from gpt.model.transformer import GPT
    from gpt.text.corpus import Corpus
    from gpt.text.vocabulary import Ids

RUNS = Path(__file__).with_name("runs.jsonl")
EVALUATIONS = 4
EVAL_CHARACTERS = 250_000  # of the val split, evenly spread: of most texts all
SHAPES = {"1x48": (1, 48), "1x64": (1, 64), "1x128": (1, 128), "2x64": (2, 64), "2x96": (2, 96),
          "2x128": (2, 128), "3x96": (3, 96), "3x128": (3, 128), "3x160": (3, 160),
          "4x128": (4, 128), "4x192": (4, 192), "6x256": (6, 256)}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """The first bytes of a file (all, if 0), or a named text.

    With `words`, so many of its commonest words are the characters, and there are no others: a
    large vocabulary, whose frequencies fall as those of a language's do.
    """

    source: str
    bytes: int = 0
    words: int = 0


TEXTS = {
    "tinyshakespeare-20kB": Text("tinyshakespeare.txt", 20_000),
    "tinyshakespeare-200kB": Text("tinyshakespeare.txt", 200_000),
    "tinyshakespeare": Text("tinyshakespeare.txt"),
    "names": Text("names.txt"),
    "wikitext2-valid": Text("wikitext2-valid.txt"),
    "python-docs": Text("python-docs"),
    "gutenberg12-2MB": Text("gutenberg12.txt", 2_000_000),
    "gutenberg12": Text("gutenberg12.txt"),
    "gutenberg12-words": Text("gutenberg12.txt", 4_000_000, words=3000),
    "neko": Text("neko.txt"),
    "udhr": Text("udhr-mixed.txt"),
    "wikitext2-test": Text("wikitext2-test.txt"),
    "python-source": Text("python-source"),
}
HELD_OUT = ("neko", "udhr", "wikitext2-test", "python-source")
# text: shape, millions of characters seen, token dropout; members of an ensemble, if not one
PLANNED = {
    "tinyshakespeare-20kB": "1x48 .1 0, 1x48 .4 .1, 2x64 .1 0, 2x64 .4 0, 2x64 .4 .1, 2x64 .4 .3, "
    "3x128 .2 0, 3x128 .2 .2, 2x64 1 .2, 2x64 .2 0 2, 2x64 .4 .2 2",
    "tinyshakespeare-200kB": "1x64 .4 0, 2x64 1 0, 2x64 1 .1, 2x64 4 .1, 3x128 .4 0, "
    "3x128 1.4 .05, 3x128 1.4 .2, 2x96 2.5 .2, 2x64 .6 0 2, 2x64 1 .1 2",
    "tinyshakespeare": "1x64 1 0, 2x64 3 0, 2x128 .15 0, 2x128 .6 0, 3x128 1.5 0, 4x192 .6 0, "
    "1x128 2 0, 3x96 5 .02, 2x64 1 0 2, 2x64 .3 0, 3x160 3 .02",
    "names": "1x48 .5 0, 2x64 .5 0, 2x64 2 .05, 3x128 .8 0, 3x128 .8 .1",
    "wikitext2-valid": "2x64 .4 0, 2x64 2.5 0, 3x128 .4 0, 3x128 2 0, 2x64 .6 0 2, 4x192 .6 0",
    "python-docs": "2x64 .4 0, 2x64 2.5 .02, 3x128 .4 0, 3x128 2 0, 3x128 2 .1, 4x192 1 0, "
    "2x64 1 .02 2",
    "gutenberg12-2MB": "2x64 1 0, 3x128 .4 0, 3x128 2.5 0, 4x192 .8 0",
    "gutenberg12": "2x64 1 0, 2x64 5 0, 3x128 .4 0, 3x128 2.5 0, 4x192 .8 0, 6x256 .4 0, "
    "2x64 .6 0 2",
    "gutenberg12-words": "2x64 .3 0, 2x64 1 0, 2x128 .5 0, 3x128 1 0, 2x64 2 .05",
    "neko": "2x64 .4 0, 2x128 .5 0, 3x128 1.2 .05",
    "udhr": "2x64 .3 0",
    "wikitext2-test": "2x64 1 0, 3x128 2 0",
    "python-source": "2x64 1 0, 3x128 2 0",
}
KEY = ("text", "n_layer", "C", "characters", "token_dropout", "members")
PILOT = "2x64 .1 0"
PLANNED = {text: f"{PILOT}, {runs}" for text, runs in PLANNED.items()}


def plan() -> list[tuple[str, Choice]]:
    """All runs, the shortest first."""
    runs = []
    for text, listed in PLANNED.items():
        for run in listed.split(", "):
            shape, millions, dropout, *members = run.split()
            characters = round(1e6 * float(millions))
            choice = Choice(*SHAPES[shape], characters, float(dropout), *map(int, members))
            runs.append((text, choice))
    return sorted(runs, key=lambda run: cost(run[1]))


def cost(choice: Choice) -> float:
    """What a run takes, about, to compare it with others."""
    return float(choice.characters * choice.members * choice.n_layer * choice.C**1.5)


def key(record: dict[str, object]) -> tuple[object, ...]:
    """What makes a run this run."""
    return tuple(record[name] for name in KEY)


def run(folder: Path, name: str, choice: Choice) -> dict[str, object]:
    """Train one, here, on one thread; what it reached, and where."""
    import torch

    from gpt.device import computing_with, generator, select_precision
    from gpt.model.transformer import GPT
    from gpt.training.step import TrainStep

    device = torch.device("cpu")
    with tempfile.TemporaryDirectory() as scratch, computing_with(1):
        corpus = corpus_of(folder, TEXTS[name], Path(scratch) / f"{name}.txt")
        T = context_length(min(len(corpus.train), len(corpus.val)))
        V, models, seconds = len(corpus.vocabulary), list[GPT](), 0.0
        curves: list[list[float]] = []
        last: list[float] = []
        for member in range(choice.members):
            config = settings_for(choice, T).model_copy(update={"seed": 1337 + member})
            steps = config.train.steps
            models.append(GPT(config.model, V, generator(config.seed, "init", 0)))
            update = TrainStep(models[-1], corpus.train, config, device)
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
        return {
            "text": name,
            **asdict(choice),
            "train_characters": len(corpus.train),
            "V": V,
            "T": T,
            "steps": steps,
            "val_loss": round(ensemble_loss(models, corpus.val, EVAL_CHARACTERS), 4),
            "train_loss": round(sum(last) / len(last), 4),
            "curves": curves,  # of the members: at each quarter
            "core_seconds": round(seconds, 1),
            "precision": str(select_precision("auto", device)).removeprefix("torch."),
        }


def corpus_of(folder: Path, text: Text, scratch: Path) -> "Corpus":
    """Prepare a text; what is no file of the folder by itself is written to `scratch`."""
    from gpt.text.corpus import load_corpus
    from gpt.text.sources import open_source

    if not text.source.endswith(".txt"):
        return load_corpus(open_source(text.source))
    if not text.bytes:
        return load_corpus(open_source(str(folder / text.source)))
    part = (folder / text.source).read_bytes()[: text.bytes].decode("utf-8", "ignore")
    if text.words:
        words = re.findall(r"\w+|[^\w\s]", part.lower())
        common = [word for word, _ in Counter(words).most_common(text.words)]
        ids = {word: chr(0x4E00 + i) for i, word in enumerate(common)}
        part = "".join(ids[word] for word in words if word in ids)
    scratch.write_text(part, "utf-8")
    return load_corpus(open_source(str(scratch)))


def ensemble_loss(models: list["GPT"], ids: "Ids", characters: int) -> float:
    """The val loss of the members' mean probabilities, on so many characters, evenly spread."""
    import torch

    from gpt.evaluation.loss import evaluate
    from gpt.model.transformer import cross_entropy
    from gpt.text.batches import consecutive_windows, spread_windows

    if len(models) == 1:
        return evaluate(models[0], ids, characters=characters)
    T, total, scored = models[0].config.T, 0.0, 0
    spread = characters < len(ids) - 1
    windows = spread_windows(ids, T, characters) if spread else consecutive_windows(ids, T)
    with torch.inference_mode():
        for x, y in windows:
            p = sum(model(x).softmax(-1) for model in models) / len(models)  # (B, T, V)
            total += cross_entropy(p.log(), y, reduction="sum").item()
            scored += y.numel()
    return total / scored


def main() -> None:
    """All runs that are not there yet, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, *choice = json.loads(arguments.one)
        print(json.dumps(run(arguments.texts, name, Choice(*choice))))
        return
    done = set()
    if RUNS.exists():
        done = {key(json.loads(line)) for line in RUNS.read_text("utf-8").splitlines()}
    left = [run for run in plan() if key({"text": run[0]} | asdict(run[1])) not in done]

    def start(planned: tuple[str, Choice]) -> None:
        name, choice = planned
        one = json.dumps([name, *asdict(choice).values()])
        command = [sys.executable, __file__, str(arguments.texts), "--one", one]
        threads = {"OMP_NUM_THREADS": "1"}
        got = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | threads
        ).stdout
        with RUNS.open("a", encoding="utf-8") as file:
            file.write(got.splitlines()[-1] + "\n")
        record = json.loads(got.splitlines()[-1])
        print(*key(record), record["val_loss"], record["core_seconds"], flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for _ in pool.map(start, left):
            pass


if __name__ == "__main__":
    main()
