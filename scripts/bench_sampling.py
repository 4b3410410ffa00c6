"""Parts of bench.py: speed of sampling, of whole processes and of single characters."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_peers import NanoGPT, huggingface_generate

from gpt.config.schema import Config
from gpt.model.ensemble import make_model
from gpt.model.transformer import GPT
from gpt.runs.format import CheckpointData, TrainingState
from gpt.runs.read import read_checkpoint
from gpt.runs.weights import weights_of
from gpt.runs.write import write_checkpoint
from gpt.sampling.engine import Engine, open_engine
from gpt.sampling.generate import Generator, sample_sources
from gpt.sampling.torch_engine import TorchEngine
from gpt.text.vocabulary import Vocabulary

CHARACTERS = 1000
SHAPES = {  # nanoGPT's recipes, 10.65 M and 0.80 M parameters
    "large": {"T": 256, "C": 384, "n_layer": 6, "n_head": 6},
    "small": {"T": 64, "C": 128, "n_layer": 4, "n_head": 4},
}
SHIPPED = {  # shakespeare_best, 0.85 M
    "best": {"T": 512, "C": 128, "n_layer": 4, "n_head": 2, "head_size": 64},
}
SIZES = {  # 10.65 M; shakespeare_cpu, 0.61 M
    "large": SHAPES["large"],
    "cpu": {"T": 512, "C": 128, "n_layer": 3, "n_head": 2, "head_size": 64},
}
MEMBERS = 4
VOCABULARY = Vocabulary("".join(map(chr, range(32, 97))))  # 65 characters, as tinyshakespeare has


def wall(command: list[str]) -> float:
    """Return the seconds of a command that must succeed, from start to exit."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


@contextmanager
def occupied_core() -> Iterator[None]:
    """Run a program that never sleeps."""
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


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


def paces(open_: Any, B: int, characters: int) -> list[float]:
    """Return the seconds of each character of B texts that are generated side by side."""
    engine: Engine = open_(B)
    generator = Generator(engine, [[0]] * B, sample_sources(1, range(B)))
    times = []
    for _ in range(characters):
        began = time.perf_counter()
        generator.step()
        times.append(time.perf_counter() - began)
    return times


def copy_bandwidth(size: int) -> float:
    """Return the bytes/s of copying `size` bytes; reading and writing count once."""
    source, target = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
    times = []
    for _ in range(25):
        began = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - began)
    return size / min(times)


def sampling(nanogpt: NanoGPT | None, repeats: int = 3) -> dict[str, Any]:
    """Time 1 and 64 samples as whole processes, and early and late characters of a sample."""
    imported = [wall([sys.executable, "-c", "import torch"]) for _ in range(repeats)]
    results: dict[str, Any] = {"import_torch_s": round(statistics.median(imported), 2)}
    for name, shape in SHAPES.items():
        with untrained_run(shape) as run:
            data = read_checkpoint(run, "best")

            def one_text(characters: int, data: CheckpointData = data) -> list[float]:
                return paces(lambda B: open_engine(data, "cpu", B), 1, characters)

            command = [sys.executable, "-m", "gpt", "sample", str(run), "--device", "cpu"]
            command += ["--length", str(CHARACTERS), "--num-samples"]
            ours, theirs, alone, many = [], [], [], []
            for _ in range(repeats):  # in turn, under the same load
                ours.append(wall([*command, "1"]))
                if nanogpt is not None:
                    theirs.append(nanogpt.sample(shape, CHARACTERS))
                alone.append(1 / statistics.mean(one_text(CHARACTERS)))
                many.append(64 * CHARACTERS / wall([*command, "64"]))
        size = sum(array.nbytes for array in data.weights.values())
        found: dict[str, Any] = {"weights_mb": round(size / 1e6, 1)}
        found["process_s"] = round(statistics.median(ours), 2)
        if theirs:
            found["nanogpt_process_s"] = round(statistics.median(theirs), 2)
            ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
            found["times_ours"] = round(statistics.median(ratios), 1)
        one = one_text(10_128)
        bound = copy_bandwidth(size) / size
        found["chars_per_s"] = round(statistics.median(alone))
        found["share_of_copy_bandwidth"] = round(1 / statistics.mean(one[:CHARACTERS]) / bound, 2)
        found["chars_per_s_of_64_with_start"] = round(statistics.median(many))
        ratios = [b * a / CHARACTERS for a, b in zip(ours, many, strict=True)]
        found["64_at_once_against_1"] = round(statistics.median(ratios), 1)
        ratios = [b / a for a, b in zip(alone, many, strict=True)]
        found["64_at_once_against_1_without_its_start"] = round(statistics.median(ratios), 1)
        late, early = one[10_000 - 128 : 10_000 + 128], one[200 - 128 : 200 + 128]
        found["character_10000_against_200"] = round(
            statistics.mean(late) / statistics.mean(early), 2
        )
        if torch.cuda.is_available():
            found |= cuda(shape)
        results[name] = found
    return results


def ensembles(repeats: int = 5) -> dict[str, Any]:
    """Compare an ensemble of 4 with one model: whole processes, and characters alone."""
    results: dict[str, Any] = {}
    for name, shape in (SHAPES | SHIPPED).items():
        with untrained_run(shape) as one, untrained_run(shape | {"ensemble": MEMBERS}) as several:
            command = [sys.executable, "-m", "gpt", "sample", "--device", "cpu", "--length"]
            processes, alone = [], []
            for _ in range(repeats):  # in turn, under the same load
                taken = [wall([*command, str(CHARACTERS), str(run)]) for run in (one, several)]
                processes.append(taken[1] / taken[0])
                data = [read_checkpoint(run, "best") for run in (one, several)]
                taken = [
                    sum(paces(lambda B, of=of: open_engine(of, "cpu", B), 1, CHARACTERS))
                    for of in data
                ]
                alone.append(taken[1] / taken[0])
        results[name] = {
            "process_times_one": round(statistics.median(processes), 2),
            "characters_times_one": round(statistics.median(alone), 2),
        }
    return results


def busy_core(repeats: int = 3) -> dict[str, Any]:
    """Time 1 and 64 samples as whole processes, alone and beside a program that never sleeps."""
    results: dict[str, Any] = {}
    for name, shape in SIZES.items():
        for samples in (1, 64):
            with untrained_run(shape) as run:
                command = [sys.executable, "-m", "gpt", "sample", str(run), "--device", "cpu"]
                command += ["--length", str(CHARACTERS), "--num-samples", str(samples)]
                alone, beside = [], []
                for _ in range(repeats):  # in turn, under the same load
                    alone.append(wall(command))
                    with occupied_core():
                        beside.append(wall(command))
            ratios = [b / a for a, b in zip(alone, beside, strict=True)]
            results[f"{name}_{samples}"] = {
                "alone_s": round(statistics.median(alone), 2),
                "beside_s": round(statistics.median(beside), 2),
                "ratio": round(statistics.median(ratios), 2),
            }
    return results


def cuda(shape: dict[str, int]) -> dict[str, Any]:
    """Return characters/s of 1 and 256 texts on the GPU, and of Hugging Face's GPT-2."""
    config = Config.model_validate({"model": shape})
    model = GPT(config.model, len(VOCABULARY), torch.Generator().manual_seed(1)).cuda()
    found: dict[str, Any] = {}
    for B in (1, 256):
        times = paces(lambda B: TorchEngine(model, B), B, 2 * shape["T"])
        found[f"cuda_chars_per_s_of_{B}"] = round(B / statistics.mean(times[shape["T"] :]))
        try:
            theirs = huggingface_generate(shape, len(VOCABULARY), B)
        except ImportError:  # the extra `bench` is not installed
            continue
        found[f"cuda_huggingface_chars_per_s_of_{B}"] = theirs
    return found
