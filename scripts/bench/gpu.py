"""Measure training of configs/shakespeare_gpu.yaml on a CUDA GPU."""

import time
from typing import Any

import torch

from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.distributed.ranks import SINGLE
from gpt.model.ensemble import make_model
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.sources import open_source
from gpt.training.build_step import build_step
from gpt.training.memory_estimate import training_bytes

WARMUP_STEPS, TIMED_STEPS = 10, 100


def gpu() -> dict[str, Any]:
    """Measure the config with torch.compile and without, and the memory that it takes."""
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
        measured = measure(config, corpus, device)
        estimated = training_bytes(config, len(corpus.vocabulary), device)
        on_gpu = sum(size for part, size in estimated.items() if part != "batch")
        peak = torch.cuda.max_memory_allocated()
        measured |= {"peak_mb": round(peak / 1e6), "peak_of_estimate": round(peak / on_gpu, 2)}
        results[f"compile_{mode}"] = measured
    return results


def measure(config: Config, corpus: Corpus, device: torch.device) -> dict[str, float]:
    """Time the start and the steps of a new model."""
    began = time.perf_counter()
    model = make_model(config.model, len(corpus.vocabulary), config.seed).to(device)
    update = build_step(config, model, device, SINGLE, corpus.train)
    update.read([update(step) for step in range(WARMUP_STEPS)])
    started = time.perf_counter()
    update.read([update(WARMUP_STEPS + step) for step in range(TIMED_STEPS)])
    step_s = (time.perf_counter() - started) / TIMED_STEPS
    characters = config.train.batch_size * config.model.T
    return {
        "start_s": round(started - began, 1),
        "step_ms": round(1000 * step_s, 2),
        "trained_chars_per_s": round(characters / step_s),
    }
