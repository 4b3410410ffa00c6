"""Measure training, evaluation and sampling of configs/shakespeare_gpu.yaml on a CUDA GPU."""

import time
from pathlib import Path
from typing import Any

import torch

from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.distributed.ranks import SINGLE
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import make_model
from gpt.sampling.generate import generate_text
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.sources import open_source
from gpt.training.build_step import build_step
from gpt.training.memory_estimate import training_bytes

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "shakespeare_gpu.yaml"
WARMUP_STEPS, TIMED_STEPS = 10, 100
SAMPLE_LENGTH = 1000  # characters


def gpu() -> dict[str, Any]:
    """Measure the config with torch.compile and without, and the memory that it takes."""
    if not torch.cuda.is_available():
        raise SystemExit(
            f"bench.py gpu: expected a CUDA GPU, found none that torch {torch.__version__} can "
            f"use; run it on a machine with a GPU and a CUDA build of torch"
        )
    device, corpus = torch.device("cuda"), load_corpus(open_source("tinyshakespeare"))
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for mode in ("off", "on"):
        config = load_config(CONFIG, [f"train.compile={mode}"])
        torch.cuda.reset_peak_memory_stats()
        measured = measure(config, corpus, device)
        estimated = training_bytes(config, len(corpus.vocabulary), device)
        on_gpu = sum(size for part, size in estimated.items() if part not in ("batch", "counts"))
        peak = torch.cuda.max_memory_allocated()
        measured |= {"peak_mb": round(peak / 1e6), "peak_of_estimate": round(peak / on_gpu, 2)}
        results[f"compile_{mode}"] = measured
    return results


def measure(config: Config, corpus: Corpus, device: torch.device) -> dict[str, float]:
    """Time the start, steps, an evaluation of the val split, and a sample of a new model."""
    began = time.perf_counter()
    model = make_model(config.model, len(corpus.vocabulary), config.seed).to(device)
    update = build_step(config, model, device, SINGLE, corpus.train)
    update.read([update(step) for step in range(WARMUP_STEPS)])
    started = time.perf_counter()
    update.read([update(WARMUP_STEPS + step) for step in range(TIMED_STEPS)])
    trained = time.perf_counter()
    evaluate(model, corpus.val)
    evaluated = time.perf_counter()
    generate_text(model, corpus.vocabulary, length=SAMPLE_LENGTH, seed=0)
    sampled = time.perf_counter()
    step_s = (trained - started) / TIMED_STEPS
    characters = config.train.batch_size * config.model.T
    return {
        "start_s": round(started - began, 1),
        "step_ms": round(1000 * step_s, 2),
        "trained_chars_per_s": round(characters / step_s),
        "evaluated_chars_per_s": round(len(corpus.val) / (evaluated - trained)),
        "sampled_chars_per_s": round(SAMPLE_LENGTH / (sampled - evaluated)),
    }
