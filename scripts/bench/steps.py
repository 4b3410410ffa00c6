"""Operations of a training step, and steps beside another run or on a GPU."""

import os
import statistics
import subprocess
import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch

from bench.frame import GPT, in_turn, median_ms, median_ratio, records, settings
from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.distributed import SINGLE
from gpt.model import transformer
from gpt.model.ensemble import make_model
from gpt.reading.sources import open_source
from gpt.text.corpus import Corpus, load_corpus
from gpt.training.members import build_step
from gpt.training.memory_estimate import HOST_PARTS, training_bytes
from gpt.training.optimizer import Muon, make_optimizers
from gpt.training.step import TrainStep
from gpt.training.workers import WorkerBackward

V = 65  # characters of tinyshakespeare
PRODUCTS = [(4096, 384, 1536), (4096, 1024, 1024), (2048, 2048, 2048)]  # rows, inner, columns
SPINS = {"sleeping": "0", "ours": "1000", "spinning": "300000"}  # GOMP_SPINCOUNT
GPU_WARMUP_STEPS, GPU_STEPS = 10, 100
WITHOUT_PAUSES = ["train.steps=100", "train.eval_every=100"]


def peak() -> dict[str, int]:
    """Measure the fastest matrix product of this machine, in GFLOP/s."""
    rates = {}
    for dtype in (torch.float32, torch.bfloat16):
        fastest = 0.0
        for rows, inner, columns in PRODUCTS:
            a, b = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
            until = time.perf_counter() + 2  # some CPUs take seconds for one product in bfloat16
            while (began := time.perf_counter()) < until:
                a @ b
                took = time.perf_counter() - began
                fastest = max(fastest, 2 * rows * inner * columns / took / 1e9)
        rates[str(dtype).removeprefix("torch.")] = round(fastest)
    return rates


def optimizer() -> dict[str, float]:
    """Time a step of our Muon and of torch's Muon on shakespeare_cpu's blocks."""
    config = load_config("shakespeare_cpu", [])
    ours = make_optimizers(transformer.GPT(config.model, V), config.train)[0]
    assert isinstance(ours, Muon)
    for p in ours.parameters:
        p.grad = torch.randn_like(p)
    theirs = torch.optim.Muon(ours.parameters, lr=1e-3)
    taken = in_turn({"torch": theirs.step, "ours": lambda: ours.step(1.0)}, 7)
    return {f"{name}_ms": median_ms(each) for name, each in taken.items()}


def workers() -> dict[str, Any]:
    """Time a step that divides windows among threads, and a step that divides operations."""
    if torch.get_num_threads() == 1:
        return {"threads": 1}
    ids, table = torch.randint(V, (10**6,), dtype=torch.uint8).numpy(), dict[str, Any]()
    for name, changes in [
        ("quickstart", []),
        ("shakespeare_cpu", []),
        ("shakespeare_gpu", ["model.dropout=0"]),
    ]:
        config = load_config(name, [*changes, "device=cpu"])
        model = transformer.GPT(config.model, V)
        step, numbers = TrainStep(config, model, torch.device("cpu"), SINGLE, ids), count()
        backward = step.backward
        assert isinstance(backward, WorkerBackward)
        own_workers = backward.workers

        def train(workers: int, step: Any = step, numbers: Any = numbers) -> None:
            step.backward.workers = workers
            step(next(numbers))

        ways = {"windows": partial(train, own_workers), "operations": partial(train, 1)}
        taken = in_turn(ways, 10, warmup=2)
        table[name] = {f"{way}_ms": median_ms(each) for way, each in taken.items()}
        table[name]["times_faster"] = median_ratio(taken["operations"], taken["windows"])
    return table


def threads() -> dict[str, float]:
    """Measure steps/s of one run and of two at once, by how long waiting threads spin."""
    table: dict[str, list[float]] = {}
    for name, spin in [*SPINS.items()] * 3:
        for runs in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                run_dirs = [Path(folder, str(number)) for number in range(runs)]
                programs = [_start_quickstart(run_dir, spin) for run_dir in run_dirs]
                assert not any(program.wait() for program in programs)
                rates = [_steps_per_s(run_dir) for run_dir in run_dirs]
            table.setdefault(f"{name}_{runs}_at_once", []).append(sum(rates))
    return {name: round(statistics.median(rates), 1) for name, rates in table.items()}


def _start_quickstart(run: Path, spin: str) -> subprocess.Popen[bytes]:
    """Start a training whose threads spin for `spin` rounds while they wait."""
    command = [*GPT, "train", "--config", "quickstart", "--run-dir", str(run)]
    return subprocess.Popen(
        [*command, *settings(WITHOUT_PAUSES)],
        env=os.environ | {"GOMP_SPINCOUNT": spin},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _steps_per_s(run: Path) -> float:
    """Return the pace of a run without its first steps."""
    trained = [record for record in records(run) if "train_loss" in record]
    first, last = trained[len(trained) // 10], trained[-1]
    return float((last["step"] - first["step"]) / (last["elapsed_s"] - first["elapsed_s"]))


def gpu() -> dict[str, Any]:
    """Measure shakespeare_gpu with torch.compile and without, its memory, and an ensemble."""
    if not torch.cuda.is_available():
        raise SystemExit(
            f"gpu: expected a CUDA GPU, found none that torch {torch.__version__} can "
            f"use; run it on a machine with a GPU and a CUDA build of torch"
        )
    device, corpus = torch.device("cuda"), load_corpus(open_source("tinyshakespeare"))
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for mode in ("off", "on"):
        config = load_config("shakespeare_gpu", [f"train.compile={mode}"])
        torch.cuda.reset_peak_memory_stats()
        measured = _on_gpu(config, corpus, device)
        estimated = training_bytes(config, len(corpus.vocabulary), device)
        on_gpu = sum(size for part, size in estimated.items() if part not in HOST_PARTS)
        peak = torch.cuda.max_memory_allocated()
        measured |= {"peak_mb": round(peak / 1e6), "peak_of_estimate": round(peak / on_gpu, 2)}
        results[f"compile_{mode}"] = measured
    shape = ["model.n_layer=6", "model.C=192", "model.n_head=3", "model.T=512"]
    shape += ["train.batch_size=8", "train.first_window=null", "train.compile=off"]
    for members in (1, 10):
        config = load_config("quickstart", [*shape, f"model.ensemble={members}"])
        results[f"members_{members}"] = _on_gpu(config, corpus, device)
    return results


def _on_gpu(config: Config, corpus: Corpus, device: torch.device) -> dict[str, float]:
    """Time the start and the steps of a new model."""
    began = time.perf_counter()
    model = make_model(config.model, len(corpus.vocabulary), config.seed).to(device)
    update = build_step(config, model, device, SINGLE, corpus.train)
    update.read([update(step) for step in range(GPU_WARMUP_STEPS)])
    started = time.perf_counter()
    update.read([update(GPU_WARMUP_STEPS + step) for step in range(GPU_STEPS)])
    step_s = (time.perf_counter() - started) / GPU_STEPS
    characters = config.train.batch_size * config.model.T
    return {
        "start_s": round(started - began, 1),
        "step_ms": round(1000 * step_s, 2),
        "trained_chars_per_s": round(characters / step_s),
    }
