"""Training steps on a long text and with a large vocabulary, and `gpt eval` of a text."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.frame import in_turn, median_ms, median_ratio, text_or_tinyshakespeare
from gpt import api
from gpt.config.load import load_config
from gpt.device import autocast
from gpt.distributed import SINGLE
from gpt.evaluation.evaluation_report import evaluate_text
from gpt.evaluation.loss import Units, evaluate
from gpt.evaluation.scored_text import ScoredText
from gpt.model.transformer import GPT, cross_entropy
from gpt.text.vocabulary import Ids
from gpt.training.linear_cross_entropy import linear_cross_entropy
from gpt.training.step import TrainStep

CPU = torch.device("cpu")
TEXT_BYTES = {"1_mb": 10**6, "1_gb": 10**9}  # sizes of texts in ASCII
WARMUP_STEPS, TIMED_STEPS = 50, 200
SIZES = (65, 3000, 7000)  # V of an English, a Japanese and a Chinese text
SCORED = 20_000  # characters of an evaluation


def long_text() -> dict[str, Any]:
    """Time a step of quickstart on 1 MB and on 1 GB of text, in turn; measure its memory.

    The texts are files in the working directory. Their pages are dropped from the system's cache
    first, as after a restart.
    """
    config = load_config("quickstart", ["device=cpu", f"train.steps={10**6}"])
    works: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for name, size in TEXT_BYTES.items():
            step = TrainStep(
                config, GPT(config.model, SIZES[0]), CPU, SINGLE, _written(Path(folder, name), size)
            )
            works[name] = partial(_next_step, step, count())
        cold = in_turn(works, WARMUP_STEPS)
        before = _memory_mb()
        taken = in_turn(works, TIMED_STEPS)
        after = _memory_mb()
    return {
        **{f"{name}_first_step_ms": round(1000 * each[0], 1) for name, each in cold.items()},
        **{f"{name}_ms": median_ms(each) for name, each in taken.items()},
        "ratio": median_ratio(taken["1_gb"], taken["1_mb"]),
        "growth_of_memory_mb": round(after - before, 1),
    }


def _next_step(step: TrainStep, numbers: "count[int]") -> None:
    step(next(numbers))


def _written(path: Path, size: int) -> Ids:
    """Write `size` random ids and map the file into memory; none of it is cached."""
    draws = np.random.default_rng(1)
    with path.open("wb") as file:
        for start in range(0, size, 10**7):
            file.write(draws.integers(SIZES[0], size=min(10**7, size - start), dtype=np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    ids: Ids = np.memmap(path, np.uint8, "r")
    return ids


def _memory_mb() -> float:
    """Return the process's memory without mapped files, whose pages the system can take back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000


def vocabulary_size() -> dict[str, dict[str, float]]:
    """Measure the CPU ms of a training step and of its parts, by config, precision and V.

    The text is random, with a skewed distribution of characters. CPU time is that of all threads,
    which other programs disturb least.
    """
    table = {}
    for config in ("shakespeare_cpu", "shakespeare_fast"):
        for precision in ("bf16", "fp32"):
            works = {
                f"{name}, V {V}": work
                for V in SIZES
                for name, work in _parts(config, precision, V).items()
            }
            taken = in_turn(works, 7, warmup=2, clock=time.process_time)
            medians = {name: round(1000 * statistics.median(s), 1) for name, s in taken.items()}
            table[f"{config}, {precision}"] = medians
    return table


def _parts(name: str, precision: str, V: int) -> dict[str, Callable[[], object]]:
    """Return a step on a text of V characters, and its parts, as functions to time."""
    config = load_config(name, [f"train.precision={precision}", "device=cpu"])
    ids = (V * np.random.default_rng(1).random(10**6) ** 4).astype(np.uint16)
    model = GPT(config.model, V)
    step = TrainStep(config, model, CPU, SINGLE, ids)
    x, y, _ = step.draw(0)
    hidden = torch.randn(*x.shape, config.model.C, requires_grad=True)

    def head() -> None:
        with autocast(step.device, step.precision):
            logits = model.head(hidden)
        _backward(cross_entropy(logits, y, reduction="sum"))

    def fused_head() -> None:
        rows, weight = hidden.flatten(0, 1), model.head.weight
        _backward(linear_cross_entropy(rows, weight, y.flatten(), step.precision))

    return {
        "step": partial(_next_step, step, count()),
        "head and loss apart": head,
        "head and loss as one": fused_head,
        f"evaluation of {SCORED}": lambda: evaluate(model, ids[:SCORED]),
    }


def _backward(loss: Any) -> None:
    loss.backward()


def eval_speed(run: Path, text: Path | None = None) -> dict[str, Any]:
    """Measure the CPU time of scoring `text`, divided by that of the evaluation in training."""
    model, path = api.load(run), text_or_tinyshakespeare(text)
    vocabulary = model.vocabulary
    ids = vocabulary.encode(model.prepare(path.read_text("utf-8"), drop_unknown=True))
    n = len(ids) - 1
    scored = ScoredText(str(path), ids, vocabulary, Units(n, n, n), 0, None)
    works: dict[str, Callable[[], object]] = {
        "in_training": partial(evaluate, model.module, ids),
        "gpt_eval": partial(evaluate_text, model.module, scored),
        "gpt_eval_html": partial(evaluate_text, model.module, scored, surprise=True),
    }
    taken = in_turn(works, 5, clock=time.process_time)
    medians = {name: statistics.median(each) for name, each in taken.items()}
    ratios = {name: round(each / medians["in_training"], 2) for name, each in medians.items()}
    return {"characters": n, "cpu_s": round(medians["in_training"], 2), **ratios}
