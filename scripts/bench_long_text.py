"""Measure a training step on a text of 1 MB and of 1 GB, and whether its memory grows.

    python scripts/bench.py long_text

The steps are those of configs/quickstart.yaml, on both texts in turn. The texts are files in the
working directory. Their pages are dropped from the system's cache first, as after a restart.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from gpt.text.vocabulary import Ids

SIZES = {"1_mb": 10**6, "1_gb": 10**9}  # characters of one byte
V = 65
WARMUP_STEPS, TIMED_STEPS = 50, 200


def long_text() -> dict[str, Any]:
    """Return median ms of a step on each text, and MB of the process's memory before and after."""
    import torch

    from gpt.config.load import load_config
    from gpt.distributed.ranks import SINGLE
    from gpt.model.transformer import GPT
    from gpt.training.build_step import build_step

    config = load_config("quickstart", ["device=cpu", f"train.steps={10**6}"])
    with tempfile.TemporaryDirectory(dir=".") as folder:
        texts = {name: _written(Path(folder, name), size) for name, size in SIZES.items()}
        steps = {
            name: build_step(config, GPT(config.model, V), torch.device("cpu"), SINGLE, ids)
            for name, ids in texts.items()
        }
        times: dict[str, list[float]] = {name: [] for name in steps}
        for i in range(WARMUP_STEPS + TIMED_STEPS):
            for name, step in steps.items():
                began = time.perf_counter()
                step(i)
                times[name].append(time.perf_counter() - began)
            if i == WARMUP_STEPS:
                before = _memory_mb()
        after = _memory_mb()
    small, large = (timed[WARMUP_STEPS:] for timed in times.values())
    return {
        **{f"{name}_first_step_ms": round(1000 * timed[0], 1) for name, timed in times.items()},
        "1_mb_ms": round(1000 * statistics.median(small), 2),
        "1_gb_ms": round(1000 * statistics.median(large), 2),
        "ratio": round(statistics.median(b / a for a, b in zip(small, large, strict=True)), 3),
        f"own_memory_mb_after_{WARMUP_STEPS}_steps": before,
        f"own_memory_mb_after_{WARMUP_STEPS + TIMED_STEPS}_steps": after,
    }


def _written(path: Path, size: int) -> Ids:
    """Write `size` random ids and map the file into memory; none of it is cached."""
    draws = np.random.default_rng(1)
    with path.open("wb") as file:
        for start in range(0, size, 10**7):
            file.write(draws.integers(V, size=min(10**7, size - start), dtype=np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    ids: Ids = np.memmap(path, np.uint8, "r")
    return ids


def _memory_mb() -> float:
    """Return the process's memory without mapped files, whose pages the system can take back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000
