"""Ranks that torchrun starts here."""

import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.frame import GPT, train
from gpt.config.load import load_config
from gpt.model.shapes import parameter_count

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
SHAPES = {  # configs/shakespeare_cpu.yaml, 0.6 million parameters; and 4.8 million
    "shakespeare_cpu": [],
    "C_256": ["model.T=128", "model.C=256", "model.n_layer=6", "model.n_head=4"],
}
STEPS, REPEATS = 14, 2
V = 65  # characters
WAYS: dict[str, tuple[int, list[str]]] = {  # ranks, settings
    "one_thread": (1, ["threads=1"]),
    "one_thread_half_the_batch": (1, ["threads=1", "half"]),
    "two_threads": (1, ["threads=2"]),
    "two_ranks": (2, ["threads=1"]),
}


def ranks() -> dict[str, Any]:
    """Time a step of one process and of two ranks, in turn.

    `fixed_ms` is the time that does not depend on the batch size (the update), extrapolated from
    a whole batch and half a batch. `exchange_ms` is the time of two ranks minus the time of half a
    batch.
    """
    table: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        config = load_config("shakespeare_cpu", shape)
        B, gradient_bytes = config.train.batch_size, 4 * parameter_count(config.model, V)
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(REPEATS):
            for way, (count, settings) in WAYS.items():
                changes = [s for s in settings if s != "half"]
                changes += [f"train.batch_size={B // 2}"] * (len(changes) < len(settings))
                times[way] += _steps_s([*shape, *changes], count)
        ms = {way: 1000 * statistics.median(each) for way, each in times.items()}
        fixed = max(0.0, 2 * ms["one_thread_half_the_batch"] - ms["one_thread"])
        table[name] = {f"{way}_ms": round(each, 1) for way, each in ms.items()} | {
            "two_ranks_speedup": round(ms["one_thread"] / ms["two_ranks"], 2),
            "two_threads_speedup": round(ms["one_thread"] / ms["two_threads"], 2),
            "gradient_mb": round(gradient_bytes / 1e6, 1),
            "fixed_ms": round(fixed, 1),
            "exchange_ms": round(ms["two_ranks"] - ms["one_thread_half_the_batch"], 1),
        }
    return table


def _steps_s(changes: Sequence[str], ranks: int) -> list[float]:
    """Return the seconds of each step of a short run, without the first few."""
    fixed = ["train.first_window=null", "train.sample_length=0", "sample.length=1"]
    fixed += [f"train.steps={STEPS}", f"train.eval_every={STEPS}", "train.log_every=1"]
    fixed += ["device=cpu", "train.warmup_steps=2"]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        drawn = random.Random(1).choices([chr(48 + i) for i in range(V)], k=50_000)
        text.write_text("".join(drawn), "utf-8")  # short, so that evaluations are fast
        launcher = (*TORCHRUN, "-m", "gpt") if ranks > 1 else GPT
        trained = train("shakespeare_cpu", [*fixed, *changes], text=text, launcher=launcher)
    ends = [line["elapsed_s"] for line in trained.metrics if "train_loss" in line]
    return [after - before for before, after in pairwise(ends[3:])]
