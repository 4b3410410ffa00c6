"""What a run would take - parameters, memory, time - from a short probe of the real thing."""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from gpt.config.schema import Config
from gpt.device import generator, select_device
from gpt.evaluation.loss import evaluate
from gpt.model.transformer import GPT, count_parameters
from gpt.sampling.generate import generate_text
from gpt.text.batches import EVAL_CHARACTERS
from gpt.text.corpus import Corpus
from gpt.training.schedule import short_steps, window_length
from gpt.training.step import TrainStep

WARMUP_STEPS, TIMED_STEPS, SAMPLED = 2, 7, 16


@dataclass(frozen=True)
class Estimate:
    """Bytes and seconds that a run is expected to take; `parameters` by part."""

    device: str
    precision: str
    parameters: dict[str, int]
    state_bytes: int
    peak_bytes: int
    seconds_per_step: float
    seconds_per_evaluation: float
    seconds: float


def estimate(config: Config, corpus: Corpus) -> Estimate:
    """Take a few steps with a throwaway model, score and sample a little, and extrapolate.

    `state_bytes` is weights, gradients and the optimizers' averages; `peak_bytes` what the probe's
    process (on CUDA: the device) held at most.
    """
    device = select_device(config.device)
    draws = generator(config.seed, "init", 0)
    model = GPT(config.model, len(corpus.vocabulary), draws).to(device)
    step = TrainStep(model, corpus.train, config, device)

    def pace(first: int) -> float:
        steps = range(first, first + WARMUP_STEPS + TIMED_STEPS)
        times = [_seconds(device, partial(step, i)) for i in steps]
        return statistics.median(times[WARMUP_STEPS:])

    per_step = pace(config.train.steps)  # windows of T
    if window_length(0, config) < config.model.T:
        per_step += short_steps(config) / config.train.steps * (pace(0) - per_step)

    at_once = max(EVAL_CHARACTERS, config.model.T) * torch.get_num_threads()
    part = corpus.val[: at_once + 1]
    evaluate(model, part)  # warm up
    scored = _seconds(device, lambda: evaluate(model, part))
    sampled = _seconds(
        device, lambda: generate_text(model, corpus.vocabulary, length=SAMPLED, seed=0)
    )
    per_evaluation = (
        scored * (len(corpus.val) - 1) / (len(part) - 1)
        + sampled * config.train.sample_length / SAMPLED
    )
    evaluations = 1 + -(-config.train.steps // config.train.eval_every)
    parameters = count_parameters(model)
    return Estimate(
        device=str(device),
        precision=str(step.precision).removeprefix("torch."),
        parameters=parameters,
        state_bytes=4 * 2 * sum(parameters.values()) + step.state_bytes(),
        peak_bytes=_peak_bytes(device),
        seconds_per_step=per_step,
        seconds_per_evaluation=per_evaluation,
        seconds=config.train.steps * per_step + evaluations * per_evaluation,
    )


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - began


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # the one counts bytes, Linux KiB
