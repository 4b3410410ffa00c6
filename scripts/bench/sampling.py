"""Speed of sampling, of whole processes and of single characters."""

import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from bench.frame import (
    GPT,
    SHAPES,
    in_turn,
    median_ratio,
    seconds,
    text_or_tinyshakespeare,
    untrained_run,
)
from bench.peers import NanoGPT
from gpt.runs.read import read_checkpoint
from gpt.sampling.choose_engine import open_engine
from gpt.sampling.generate import Generator, sample_streams

CHARACTERS = 1000
BEST = {"T": 512, "C": 128, "n_layer": 4, "n_head": 2, "head_size": 64}  # shakespeare_best, 0.85 M
MEMBERS = 4
NEVER_SLEEPS = (sys.executable, "-c", "while True: pass")


def command(run: Path, samples: int = 1) -> list[str]:
    """Return the command that prints `samples` of CHARACTERS."""
    options = ["--device", "cpu", "--length", str(CHARACTERS), "--num-samples", str(samples)]
    return [*GPT, "sample", str(run), *options]


def character_seconds(run: Path, characters: int) -> list[float]:
    """Return the seconds of each character of one text."""
    engine = open_engine(read_checkpoint(run, "best"), "cpu", 1)
    generator = Generator(engine, [[0]], sample_streams(1, range(1)))
    return in_turn({"": generator.step}, characters)[""]


def sampling(nanogpt: Path | None = None) -> dict[str, Any]:
    """Time 1 and 64 samples as whole processes, and early and late characters of a sample."""
    peer = NanoGPT(nanogpt, text_or_tinyshakespeare(None)) if nanogpt else None
    results: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        with untrained_run(shape) as run:
            works = {
                "1": partial(seconds, *command(run)),
                "64": partial(seconds, *command(run, 64)),
            }
            if peer:
                works["nanogpt"] = partial(peer.sample, shape, CHARACTERS)
            taken = in_turn(works, 3)
            one = character_seconds(run, 10_128)
        late, early = one[10_000 - 128 : 10_000 + 128], one[200 - 128 : 200 + 128]
        results[name] = {
            "process_s": round(statistics.median(taken["1"]), 2),
            "chars_per_s": round(CHARACTERS / statistics.median(taken["1"])),
            "chars_per_s_of_64": round(64 * CHARACTERS / statistics.median(taken["64"])),
            "chars_per_s_without_start": round(1 / statistics.mean(one[:CHARACTERS])),
            "character_10000_against_200": round(statistics.mean(late) / statistics.mean(early), 2),
        }
        if peer:
            results[name]["nanogpt_process_s"] = round(statistics.median(taken["nanogpt"]), 2)
            results[name]["times_ours"] = median_ratio(taken["nanogpt"], taken["1"])
    return results


def ensembles() -> dict[str, float]:
    """Return the time of an ensemble of 4, as a whole process, divided by that of one model."""
    results = {}
    for name, shape in (SHAPES | {"best": BEST}).items():
        with untrained_run(shape) as one, untrained_run(shape | {"ensemble": MEMBERS}) as several:
            runs = {"one": one, "several": several}
            works = {which: partial(seconds, *command(run)) for which, run in runs.items()}
            taken = in_turn(works, 5)
        results[name] = median_ratio(taken["several"], taken["one"])
    return results


def busy_core() -> dict[str, float]:
    """Return the time of 1 and 64 samples beside a program that never sleeps / that alone."""
    results = {}
    for name, shape in (SHAPES | {"best": BEST}).items():
        with untrained_run(shape) as run:
            for samples in (1, 64):
                work = partial(seconds, *command(run, samples))
                taken = in_turn({"alone": work, "beside": partial(_beside_another, work)}, 3)
                results[f"{name}_{samples}"] = median_ratio(taken["beside"], taken["alone"])
    return results


def _beside_another(work: partial[float]) -> None:
    """Work while a program occupies a core."""
    program = subprocess.Popen(NEVER_SLEEPS)
    try:
        work()
    finally:
        program.kill()
        program.wait()
