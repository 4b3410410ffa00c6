#!/usr/bin/env python3
"""Compare `gpt train TEXT --minutes N` on many texts with other ways to use the time.

    python scripts/recipe_table.py TEXTS                     two minutes per text
    python scripts/recipe_table.py TEXTS --minutes 10 names tinyshakespeare neko
    python scripts/recipe_table.py TEXTS --nanogpt PATH      with nanoGPT's CPU recipe, from a clone

TEXTS is a folder with the files of data/README.md. The other ways are `shakespeare_cpu` and
nanoGPT's CPU recipe, with as many steps as fit into the same time, Kneser-Ney of order 8, which
takes a second, and the compressors zpaq (apt-get install zpaq) and PPMd (pip install pyppmd). They
compress val after the train split: in windows of T characters, as many as `gpt train` has chosen,
in twentieths and in one piece. zpaq takes minutes. Programs that are missing give "-". Val losses
are those of the whole val split. A row is printed when a text is done; with --json, one object per
line. No other program should run at the same time.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_peers import NanoGPT
from compressors import CompressorLosses, compressor_losses, installed
from law.texts import TEXTS, corpus_of, source_of

from gpt.config.load import load_config
from gpt.evaluation.baselines import ngram_loss
from gpt.text.corpus import Corpus

NAMES = (
    *("tinyshakespeare-20kB", "tinyshakespeare-200kB", "tinyshakespeare", "names", "neko"),
    *("wikitext2-valid", "python-docs", "python-source", "gutenberg12"),
)
HEADER = (
    "| text | minutes | took | recipe | predicted | val loss (at its end) | shakespeare_cpu | "
    "nanoGPT | Kneser-Ney 8 | zpaq: windows of T / twentieths / one piece | PPMd |\n"
    f"|{'---|' * 11}"
)


@dataclass(frozen=True)
class Row:
    """Val losses of all runs on a text, in nats per character, and their seconds."""

    text: str
    minutes: float
    seconds: float
    recipe: str
    predicted: float
    val_loss: float
    last_val_loss: float
    shakespeare_cpu: float
    shakespeare_cpu_s: float
    kneser_ney: float
    nanogpt: float | None
    nanogpt_s: float | None
    zpaq: CompressorLosses | None
    ppmd: CompressorLosses | None

    def __str__(self) -> str:
        nanogpt = "-" if self.nanogpt is None else f"{self.nanogpt:.3f} in {self.nanogpt_s:.0f} s"
        return (
            f"| {self.text} | {self.minutes:g} | {self.seconds:.0f} s | {self.recipe} | "
            f"{self.predicted:.2f} | {self.val_loss:.3f} ({self.last_val_loss:.3f}) | "
            f"{self.shakespeare_cpu:.3f} in {self.shakespeare_cpu_s:.0f} s | {nanogpt} | "
            f"{self.kneser_ney:.3f} | {self.zpaq or '-'} | {self.ppmd or '-'} |"
        )


def compare(name: str, folder: Path, minutes: float, nanogpt: Path | None) -> Row:
    """Train all runs on one text, one after the other."""
    with tempfile.TemporaryDirectory() as scratch:
        source = source_of(name, folder, Path(scratch))
        peer = NanoGPT(nanogpt, as_file(source, Path(scratch))) if nanogpt else None
        ours = train(source, minutes, Path(scratch) / "ours")
        stretched = train(source, minutes, Path(scratch) / "cpu", "--config", "shakespeare_cpu")
        theirs: dict[str, Any] = peer.cpu_recipe_in(60 * minutes) if peer else {}
        corpus = corpus_of(source)
        zpaq, ppmd = (compressor_losses(each, corpus, ours["T"]) for each in installed())
        return Row(
            text=name,
            minutes=minutes,
            seconds=ours["wall_s"],
            recipe=ours["recipe"],
            predicted=ours["predicted"],
            val_loss=ours["best_val_loss"],
            last_val_loss=ours["val_loss"],
            shakespeare_cpu=stretched["best_val_loss"],
            shakespeare_cpu_s=stretched["wall_s"],
            kneser_ney=round(kneser_ney(corpus), 4),
            nanogpt=theirs.get("val_loss_by_our_rule"),
            nanogpt_s=theirs.get("wall_s"),
            zpaq=zpaq,
            ppmd=ppmd,
        )


def kneser_ney(corpus: Corpus) -> float:
    """Return the val loss of an n-gram model with 8 characters of context, in nats per id."""
    return ngram_loss(corpus.train, corpus.val, corpus.vocabulary, 8)


def train(source: str, minutes: float, run: Path, *options: str) -> dict[str, Any]:
    """Run `gpt train`; return its outcome, wall-clock time, chosen recipe and prediction."""
    command = [sys.executable, "-m", "gpt", "train", source, "--minutes", str(minutes)]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "--json", "--run-dir", str(run), *options],
        check=True,
        capture_output=True,
        text=True,
    )
    wall = time.perf_counter() - began
    config = load_config(run / "config.yaml")
    model, dropout = config.model, config.model.character_dropout
    members = f"{model.ensemble} of " if model.ensemble > 1 else ""
    hidden = f", token dropout {dropout:g}" if dropout else ""
    predicted = re.search(r"predicted val loss.*: ([\d.]+)", done.stderr)
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome | {
        "wall_s": round(wall, 1),
        "T": model.T,
        "recipe": f"T {model.T}, {members}{model.n_layer} x {model.C}{hidden}",
        "predicted": float(predicted[1]) if predicted else math.nan,
    }


def as_file(source: str, scratch: Path) -> Path:
    """Return the text as a file, for nanoGPT."""
    if Path(source).is_file():
        return Path(source)
    corpus, path = corpus_of(source), scratch / f"{source}.txt"
    path.write_text(corpus.vocabulary.decode(corpus.ids), "utf-8")
    return path


def main() -> None:
    """Print a row for each text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TEXTS)}")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_intermixed_args()
    if not arguments.json:
        print(HEADER, flush=True)
    for name in arguments.names or NAMES:
        row = compare(name, arguments.folder, arguments.minutes, arguments.nanogpt)
        print(json.dumps(asdict(row)) if arguments.json else row, flush=True)


if __name__ == "__main__":
    main()
