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
STEPS, REPEATS = 50, 2
V = 65  # characters
LINKS = {"1_gbit": 1.25e8, "10_gbit": 1.25e9, "100_gbit": 1.25e10}  # bytes/s


def ranks() -> dict[str, Any]:
    """Time a step of one process and of two ranks, in turn.

    `fixed_ms` is the time that does not depend on the batch size (the update), extrapolated from
    a whole batch and half a batch. `exchange_ms` is the time of two ranks minus the time of half a
    batch. `speedup_of_8` and `speedup_of_64` are estimates for that many such machines, by link.
    They assume that ranks do not compute while they send gradients, by a ring all-reduce.
    """
    table: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        config = load_config("shakespeare_cpu", shape)
        B, gradient_bytes = config.train.batch_size, 4 * parameter_count(config.model, V)
        ways: dict[str, tuple[Sequence[str], list[str]]] = {
            "one_thread": (GPT, ["threads=1"]),
            "half_the_batch": (GPT, ["threads=1", f"train.batch_size={B // 2}"]),
            "two_threads": (GPT, ["threads=2"]),
            "two_ranks": ((*TORCHRUN, "-m", "gpt"), ["threads=1"]),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(REPEATS):
            for way, (launcher, changes) in ways.items():
                times[way] += _steps_s([*shape, *changes], launcher)
        ms = {way: 1000 * statistics.median(each) for way, each in times.items()}
        whole, half = ms["one_thread"], ms["half_the_batch"]
        fixed = max(0.0, 2 * half - whole)
        table[name] = {f"{way}_ms": round(each, 1) for way, each in ms.items()} | {
            "two_ranks_speedup": round(whole / ms["two_ranks"], 2),
            "two_threads_speedup": round(whole / ms["two_threads"], 2),
            "gradient_mb": round(gradient_bytes / 1e6, 1),
            "fixed_ms": round(fixed, 1),
            "exchange_ms": round(ms["two_ranks"] - half, 1),
        }
        for n in (8, 64):
            sent = 2 * (n - 1) / n * gradient_bytes  # Patarasuk and Yuan 2009
            table[name][f"speedup_of_{n}"] = {
                link: round(whole / (fixed + (whole - fixed) / n + 1000 * sent / bytes_per_s), 1)
                for link, bytes_per_s in LINKS.items()
            }
    return table


def _steps_s(changes: Sequence[str], launcher: Sequence[str]) -> list[float]:
    """Return the seconds per step of a short run, for each 10 steps but the first."""
    fixed = ["train.first_window=null", "train.sample_length=0", "sample.length=1"]
    fixed += [f"train.steps={STEPS}", f"train.eval_every={STEPS}"]
    fixed += ["device=cpu", "train.warmup_steps=2"]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        drawn = random.Random(1).choices([chr(48 + i) for i in range(V)], k=50_000)
        text.write_text("".join(drawn), "utf-8")  # short, so that evaluations are fast
        trained = train("shakespeare_cpu", [*fixed, *changes], text=text, launcher=launcher)
    ends = [line["elapsed_s"] for line in trained["metrics"] if "train_loss" in line]
    return [(after - before) / 10 for before, after in pairwise(ends)]
