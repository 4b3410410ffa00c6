"""Parts of bench.py: ranks that torchrun starts here, and val losses by batch size."""

import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
CONFIGS = Path(__file__).resolve().parents[1] / "configs"
SHAPES = {  # configs/shakespeare_cpu.yaml, 0.6 million parameters; and 4.8 million
    "shakespeare_cpu": [],
    "C_256": ["model.T=128", "model.C=256", "model.n_layer=6", "model.n_head=4"],
}
STEPS, REPEATS = 14, 2
V = 65  # characters
LINKS = {"1_gbit": 1.25e8, "10_gbit": 1.25e9, "100_gbit": 1.25e10}  # bytes/s
WAYS: dict[str, tuple[int, list[str]]] = {  # ranks, settings
    "one_thread": (1, ["threads=1"]),
    "one_thread_half_the_batch": (1, ["threads=1", "half"]),
    "two_threads": (1, ["threads=2"]),
    "two_ranks": (2, ["threads=1"]),
}
BATCHES = (1, 2, 4, 8, 16)  # multiples of quickstart's batch size
BATCH_STEPS = 512  # steps with the smallest batch


def ranks() -> dict[str, Any]:
    """Time a step of one process and of two ranks, in turn.

    `fixed_ms` is the time that does not depend on the batch size (the update), extrapolated from
    a whole batch and half a batch. `exchange_ms` is the time of two ranks minus the time of half a
    batch. `speedup_of_8` and `speedup_of_64` are estimates for that many such machines, by link.
    """
    from gpt.config.load import load_config
    from gpt.model.shapes import parameter_count

    path = CONFIGS / "shakespeare_cpu.yaml"
    table: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        config = load_config(path, shape)
        B, gradient_bytes = config.train.batch_size, 4 * parameter_count(config.model, V)
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(REPEATS):
            for way, (count, settings) in WAYS.items():
                changes = [s for s in settings if s != "half"]
                changes += [f"train.batch_size={B // 2}"] * (len(changes) < len(settings))
                times[way] += _steps_s(path, [*shape, *changes], count)
        ms = {way: 1000 * statistics.median(each) for way, each in times.items()}
        fixed = max(0.0, 2 * ms["one_thread_half_the_batch"] - ms["one_thread"])
        estimated = partial(step_ms, fixed, ms["one_thread"] - fixed, gradient_bytes)
        speedups = {
            f"speedup_of_{n}": {
                link: round(ms["one_thread"] / estimated(speed, n), 1)
                for link, speed in LINKS.items()
            }
            for n in (8, 64)
        }
        table[name] = {f"{way}_ms": round(each, 1) for way, each in ms.items()} | {
            "two_ranks_speedup": round(ms["one_thread"] / ms["two_ranks"], 2),
            "two_threads_speedup": round(ms["one_thread"] / ms["two_threads"], 2),
            "gradient_mb": round(gradient_bytes / 1e6, 1),
            "fixed_ms": round(fixed, 1),
            "exchange_ms": round(ms["two_ranks"] - ms["one_thread_half_the_batch"], 1),
            **speedups,
        }
    return table


def _steps_s(config: Path, changes: Sequence[str], ranks: int) -> list[float]:
    """Return the seconds of each step of a short run, without the first few."""
    fixed = ["train.first_window=null", "train.sample_length=0", "sample.length=1"]
    fixed += [f"train.steps={STEPS}", f"train.eval_every={STEPS}", "train.log_every=1"]
    fixed += ["device=cpu", "train.warmup_steps=2"]
    with tempfile.TemporaryDirectory() as folder:
        run, text = Path(folder, "run"), Path(folder, "text.txt")
        drawn = random.Random(1).choices([chr(48 + i) for i in range(V)], k=50_000)
        text.write_text("".join(drawn), "utf-8")  # short, so that evaluations are fast
        program = [*TORCHRUN, f"--nproc-per-node={ranks}"] if ranks > 1 else []
        command = [sys.executable, *program, "-m", "gpt", "train", str(text)]
        command += ["--config", str(config), "--run-dir", str(run)]
        command += [part for change in [*fixed, *changes] for part in ("--set", change)]
        subprocess.run(command, check=True, capture_output=True)
        lines = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
        ends = [line["elapsed_s"] for line in lines if "train_loss" in line]
    return [after - before for before, after in pairwise(ends[3:])]


def step_ms(
    fixed_ms: float, divided_ms: float, gradient_bytes: float, bytes_per_s: float, ranks: int
) -> float:
    """Estimate the ms of a step on `ranks` that do not compute while they send gradients.

    A ring all-reduce sends 2 (N - 1) / N times the gradient (Patarasuk and Yuan 2009).
    """
    sent = 2 * (ranks - 1) / ranks * gradient_bytes
    return fixed_ms + divided_ms / ranks + 1000 * sent / bytes_per_s


def batch_sizes() -> dict[str, Any]:
    """Measure the val loss of quickstart's model after the same characters, by batch size.

    Each size is trained with the config's learning rate, and with that rate times the square root
    of the factor. The lower loss counts.
    """
    from gpt.config.load import load_config

    path = CONFIGS / "quickstart.yaml"
    train = load_config(path, []).train
    table: dict[str, Any] = {}
    for times in BATCHES:
        steps = BATCH_STEPS // times
        losses = {}
        for rule, factor in (("rate", 1.0), ("rate_times_root", times**0.5)):
            changes = [
                f"train.batch_size={train.batch_size * times}",
                f"train.steps={steps}",
                f"train.warmup_steps={max(2, steps // 30)}",
                f"train.eval_every={steps}",
                f"train.learning_rate={factor * train.learning_rate}",
                f"train.muon_learning_rate={factor * train.muon_learning_rate}",
                *("train.sample_length=0", "device=cpu"),
            ]
            losses[rule] = _val_loss(path, changes)
        row: dict[str, Any] = {"steps": steps} | {k: round(v, 3) for k, v in losses.items()}
        table[str(train.batch_size * 256 * times)] = row
        print(row, file=sys.stderr)
    return table


def _val_loss(config: Path, changes: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gpt", "train", "--config", str(config), "--json"]
        command += ["--run-dir", str(Path(folder, "run"))]
        command += [part for change in changes for part in ("--set", change)]
        done = subprocess.run(command, check=True, capture_output=True)
    return float(json.loads(done.stdout)["val_loss"])
