"""What a run would take - parameters, memory, time - measured on a short part of it."""

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import torch

from gpt.config.schema import Config
from gpt.device import computing_with, select_device
from gpt.errors import CheckpointError, TrainingError
from gpt.evaluation.loss import evaluate
from gpt.evaluation.units import val_units
from gpt.model.ensemble import LanguageModel, make_model
from gpt.model.transformer import count_parameters
from gpt.runs.checkpoint import CheckpointData, write_checkpoint
from gpt.runs.model import weights_of
from gpt.sampling.generate import generate_text
from gpt.text.batches import EVAL_CHARACTERS
from gpt.text.corpus import Corpus
from gpt.training.ensemble import Update, make_step
from gpt.training.memory import check_training_memory
from gpt.training.schedule import short_steps, steps_due, window_length
from gpt.training.teacher import load_teacher

WARMUP_STEPS, TIMED_STEPS = 2, 3  # the latter at a time, as often as it takes
TIMED_SECONDS = 1.5  # of steps of one length, of an evaluation: less says little
SAMPLED_CHARACTERS = 200


@dataclass(frozen=True)
class Cost:
    """Something that a run does so many times."""

    count: int
    seconds: float  # each


@dataclass(frozen=True)
class Estimate:
    """Bytes and seconds that a run is expected to take; `parameters` by part.

    `state_bytes` is weights, gradients and the optimizers' averages; `peak_bytes` the most that
    the process (on CUDA: the device) held in the probe, which took `probe_seconds`. `seconds` is
    the sum of `costs`.
    """

    device: str
    precision: str
    parameters: dict[str, int]
    state_bytes: int
    peak_bytes: int
    costs: dict[str, Cost]
    seconds: float
    probe_seconds: float


def estimate(config: Config, corpus: Corpus) -> Estimate:
    """Train a throwaway model for a few steps, evaluate, sample and save it; and extrapolate."""
    computing = computing_with(config.threads, deterministic=config.deterministic)
    with _PeakMemory() as memory, computing:
        began = time.perf_counter()
        device = select_device(config.device)
        teacher = load_teacher(config, corpus.vocabulary, device)
        check_training_memory(config, len(corpus.vocabulary), device, teacher)
        model = make_model(config.model, len(corpus.vocabulary), config.seed).to(device)
        update = make_step(model, corpus.train, config, device, corpus.vocabulary, teacher)
        setup = time.perf_counter() - began
        warmup, step = _time_steps(update, config, device)
        evaluation = _time_evaluation(model, corpus, device)
        sample = _time_sample(model, corpus, device)
        with tempfile.TemporaryDirectory() as folder:
            data = CheckpointData(0, config, corpus.vocabulary, weights_of(model))
            save = partial(write_checkpoint, Path(folder), data, update.state_dict())
            saving = _seconds(device, save)
    train, val_characters = config.train, val_units(corpus).ids
    evaluated = set(steps_due(train.eval_every, train))
    saved = evaluated | set(_checkpoint_steps(config, step))
    part = min(train.eval_characters or val_characters, val_characters)
    whole_at_end = val_characters if part < val_characters else 0
    per_character = sample / SAMPLED_CHARACTERS
    costs = {
        "setup": Cost(1, setup + warmup),
        "step": Cost(train.steps, step),
        # that of step 0 needs no evaluation if the head is zero
        "evaluation": Cost(len(evaluated) - (train.init_from is None), evaluation * part),
        "last evaluation": Cost(1, evaluation * whole_at_end),
        "sample": Cost(len(evaluated), per_character * train.sample_length),
        "last sample": Cost(1, per_character * config.sample.length),
        "checkpoint": Cost(len(saved), saving),
    }
    parameters = count_parameters(model)
    return Estimate(
        device=str(device),
        precision=str(update.precision).removeprefix("torch."),
        parameters=parameters,
        state_bytes=4 * 2 * sum(parameters.values()) + update.state_bytes(),
        peak_bytes=_peak_on_device(device) or memory.peak_bytes,
        costs={name: cost for name, cost in costs.items() if cost.count and cost.seconds},
        seconds=sum(cost.count * cost.seconds for cost in costs.values()),
        probe_seconds=time.perf_counter() - began,
    )


def _time_steps(update: Update, config: Config, device: torch.device) -> tuple[float, float]:
    """Seconds that the first steps take more than later ones; mean seconds of a later one."""

    def seconds(first: int, count: int) -> float:
        began = time.perf_counter()
        update.read([update(step) for step in range(first, first + count)])
        return time.perf_counter() - began

    def pace(first: int) -> tuple[float, float]:
        warmup = seconds(first, WARMUP_STEPS)
        done, taken = 0, 0.0
        while taken < TIMED_SECONDS:
            taken += seconds(first + WARMUP_STEPS + done, TIMED_STEPS)
            done += TIMED_STEPS
        return max(0.0, warmup - WARMUP_STEPS * taken / done), taken / done

    steps = config.train.steps
    extra, long = pace(steps)  # windows of T
    if window_length(0, config) == config.model.T:
        return extra, long
    extra_short, short = pace(0)
    share = short_steps(config) / steps
    return extra + extra_short, share * short + (1 - share) * long


def _time_evaluation(model: LanguageModel, corpus: Corpus, device: torch.device) -> float:
    """Seconds for a character of the val split."""
    characters, taken = max(EVAL_CHARACTERS, model.config.T) * torch.get_num_threads(), 0.0
    evaluate(model, corpus.val, characters=characters)  # warm up
    while True:
        scored: list[int] = []
        score = partial(
            evaluate, model, corpus.val, characters=characters, on_progress=scored.append
        )
        taken = _seconds(device, score)
        if taken >= TIMED_SECONDS or characters >= len(corpus.val):
            return taken / sum(scored)
        characters *= 4


def _time_sample(model: LanguageModel, corpus: Corpus, device: torch.device) -> float:
    """Return the seconds that a sample takes.

    Raises:
        TrainingError: the first steps made the model's logits NaN or infinite.
    """
    sample = partial(generate_text, model, corpus.vocabulary, length=SAMPLED_CHARACTERS, seed=0)
    try:
        return _seconds(device, sample)
    except CheckpointError:  # its advice is about a run's checkpoints
        raise TrainingError(
            "the first steps of this config make the logits NaN or infinite; lower "
            "train.learning_rate, train.muon_learning_rate or train.weight_decay"
        ) from None


def _checkpoint_steps(config: Config, seconds_per_step: float) -> range:
    every, steps = config.train.checkpoint_every, config.train.steps
    if isinstance(every, str):
        every = max(1, int(60 * float(every.removesuffix(" min")) / seconds_per_step))
    return range(0, steps, every)


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - began


def _peak_on_device(device: torch.device) -> int:
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0


class _PeakMemory:
    """A context in which a thread watches how much memory the process holds: `peak_bytes`."""

    INTERVAL_S = 0.01

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._process, self._ended = psutil.Process(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(self.INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, self._process.memory_info().rss)
