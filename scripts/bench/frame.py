"""Functions that all parts use: commands of `gpt`, timings in turn, and medians."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gpt.config.schema import Config
from gpt.model.ensemble import make_model
from gpt.reading.named import locate_shakespeare
from gpt.runs.format import CheckpointData, TrainingState
from gpt.runs.weights import weights_of
from gpt.runs.write import write_checkpoint
from gpt.text.vocabulary import Vocabulary

GPT = (sys.executable, "-m", "gpt")
VOCABULARY = Vocabulary("".join(map(chr, range(32, 97))))  # 65 characters, as tinyshakespeare has
SHAPES = {  # nanoGPT's recipes, 10.65 M and 0.80 M parameters
    "large": {"T": 256, "C": 384, "n_layer": 6, "n_head": 6},
    "small": {"T": 64, "C": 128, "n_layer": 4, "n_head": 4},
}
SMALL: dict[str, object] = {  # settings of a run of seconds
    "threads": 1,
    "model.T": 64,
    "model.C": 64,
    "model.n_layer": 2,
    "model.n_head": 2,
    "train.steps": 100,
    "train.batch_size": 8,
    "train.sample_length": 0,
}


def settings(changes: Iterable[str]) -> list[str]:
    """Return the arguments that make each change, such as "train.steps=3"."""
    return [argument for change in changes for argument in ("--set", change)]


def train(
    config: str,
    changes: Iterable[str] = (),
    *,
    text: Path | None = None,
    launcher: Sequence[str] = GPT,
) -> dict[str, Any]:
    """Train a shipped config in a temporary folder; return its outcome, metrics and wall_s."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = [*launcher, "train", *([str(text)] if text else []), "--json"]
        command += ["--config", config, "--run-dir", str(run), *settings(changes)]
        began = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True)
        wall = time.perf_counter() - began
        outcome: dict[str, Any] = json.loads(done.stdout)
        return outcome | {"wall_s": round(wall, 1), "metrics": records(run)}


def records(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run."""
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def dry_run(config: str, changes: Iterable[str] = (), *texts: str) -> dict[str, Any]:
    """Return what `gpt train --dry-run` measures and estimates."""
    command = [*GPT, "train", *texts, "--dry-run", "--json", "--config", config]
    done = subprocess.run([*command, *settings(changes)], check=True, capture_output=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def seconds(*command: str, repeats: int = 1) -> float:
    """Return the median wall-clock time of a command that must succeed."""
    work = partial(subprocess.run, command, check=True, capture_output=True)
    return round(statistics.median(in_turn({"": work}, repeats)[""]), 3)


def in_turn(
    works: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    warmup: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each work, repeated in turn so that all have the same load.

    The first `warmup` rounds are not counted.
    """
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(warmup + repeats):
        for name, work in works.items():
            began = clock()
            work()
            taken[name].append(clock() - began)
    return {name: each[warmup:] for name, each in taken.items()}


def median_ms(taken: Iterable[float]) -> float:
    """Return the median of some seconds, in ms."""
    return round(1000 * statistics.median(taken), 2)


def median_ratio(numerators: Iterable[float], denominators: Iterable[float]) -> float:
    """Return the median ratio of times that were taken in turn."""
    pairs = zip(numerators, denominators, strict=True)
    return round(statistics.median(a / b for a, b in pairs), 2)


@contextmanager
def untrained_run(shape: dict[str, int]) -> Iterator[Path]:
    """Write a run with an untrained model of `shape`; the weights do not affect the speed."""
    config = Config.model_validate({"model": shape, "sample": {"temperature": 1.0}})
    model = make_model(config.model, len(VOCABULARY), seed=1)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        data = CheckpointData(1, config, VOCABULARY, weights_of(model), best_step=1)
        write_checkpoint(run, data, TrainingState({}, {}))
        yield run


def text_or_tinyshakespeare(text: Path | None) -> Path:
    """Return `text`, by default the file of tinyshakespeare."""
    return text or locate_shakespeare()
