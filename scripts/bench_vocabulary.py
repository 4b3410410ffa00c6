"""Time a training step and its parts by the size of the vocabulary.

    python scripts/bench.py vocabulary_size

The steps are those of shipped configs, one step for each V in turn, on a random text with a skewed
distribution of characters. Parts are given in ms of CPU time of all threads, which other programs
disturb least; `step_ms` is wall-clock time.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = (65, 3000, 7000)  # an English text; a Japanese and a Chinese one
CONFIGS = ("shakespeare_cpu", "shakespeare_fast")
PRECISIONS = ("bf16", "fp32")
TIMED = 7
SCORED = 20_000  # characters of an evaluation


def vocabulary_size() -> dict[str, Any]:
    """Return median ms of a step and of its parts, by config, precision and V."""
    table = {}
    for config in CONFIGS:
        for precision in PRECISIONS:
            works = {V: _parts(config, precision, V) for V in SIZES}
            table[f"{config}, {precision}"] = _measured(works)
    return table


def _parts(name: str, precision: str, V: int) -> dict[str, Callable[[], object]]:
    """Return a step on a text of V characters, and its parts, as functions to time."""
    import torch

    from gpt.config.load import load_config
    from gpt.device import autocast
    from gpt.distributed.ranks import SINGLE
    from gpt.evaluation.loss import evaluate
    from gpt.model.transformer import GPT, cross_entropy
    from gpt.training.linear_cross_entropy import linear_cross_entropy
    from gpt.training.step import TrainStep

    config = load_config(name, [f"train.precision={precision}", "device=cpu"])
    draws = np.random.default_rng(1).random(10**6)
    ids = (V * draws**4).astype(np.uint16)
    model = GPT(config.model, V)
    step = TrainStep(config, model, torch.device("cpu"), SINGLE, ids)
    numbers = iter(range(10**6))
    x, y = step.batches(0)
    hidden = torch.randn(*x.shape, config.model.C, requires_grad=True)

    def head() -> None:
        with autocast(step.device, step.precision):
            logits = model.head(hidden)
        _backward(cross_entropy(logits, y, reduction="sum"))

    def fused_head() -> None:
        rows, weight = hidden.flatten(0, 1), model.head.weight
        _backward(linear_cross_entropy(rows, weight, y.flatten(), step.precision))

    return {
        "step": lambda: step(next(numbers)),
        "embeddings": lambda: _backward(model.embed(x).sum()),
        "head_and_loss_apart": head,
        "head_and_loss_as_one": fused_head,
        "norm": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")),
        "adamw": lambda: step.optimizers[-1].step(0.0),
        f"evaluation_of_{SCORED}": lambda: evaluate(model, ids[:SCORED]),
    }


def _backward(loss: Any) -> None:
    loss.backward()


def _measured(works: dict[int, dict[str, Callable[[], object]]]) -> dict[str, dict[str, float]]:
    """Return, for each V, wall-clock ms of the step and CPU ms of all parts."""
    clock: dict[int, list[float]] = {V: [] for V in works}
    cpu: dict[int, dict[str, list[float]]] = {V: {name: [] for name in works[V]} for V in works}
    for _ in range(TIMED + 2):
        for V, parts in works.items():
            for name, work in parts.items():
                began, before = time.perf_counter(), time.process_time()
                work()
                cpu[V][name].append(time.process_time() - before)
                if name == "step":
                    clock[V].append(time.perf_counter() - began)
    return {
        f"V {V}": {"step_ms": _median_ms(clock[V])}
        | {f"{name}_cpu_ms": _median_ms(taken) for name, taken in cpu[V].items()}
        for V in works
    }


def _median_ms(seconds: list[float]) -> float:
    return round(1000 * statistics.median(seconds[2:]), 1)
