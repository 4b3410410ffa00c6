"""What a run would take - parameters, memory, time - measured on a short part of it."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from gpt.config.schema import Config
from gpt.device import computing_with, select_device
from gpt.distributed.ranks import SINGLE
from gpt.errors import CheckpointError, TrainingError
from gpt.evaluation.loss import evaluate, val_units
from gpt.model.ensemble import LanguageModel, make_model
from gpt.model.transformer import count_parameters
from gpt.runs.format import CheckpointData
from gpt.runs.weights import weights_of
from gpt.runs.write import write_checkpoint
from gpt.sampling.generate import generate_text
from gpt.status import phase
from gpt.text.batches import EVAL_CHARACTERS
from gpt.text.corpus import Corpus
from gpt.training.build_step import build_step
from gpt.training.ensemble_step import Update
from gpt.training.memory_estimate import LIBRARY_BYTES, check_training_memory, training_bytes
from gpt.training.schedule import Schedule
from gpt.training.teacher import load_teacher
from gpt.training.time_budget import CHARACTER, EVALUATION, Stopwatch, TimeBudget

WARMUP_STEPS, TIMED_STEPS = 2, 3
MIN_TIMED_S = 1.5  # seconds of steps of one length, or of an evaluation
SAMPLED_CHARACTERS = 200

Clock = Callable[[], float]


@dataclass(frozen=True)
class Cost:
    """One kind of work: how often a run does it, and the seconds that it takes each time."""

    count: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """Memory and time that a run is expected to take.

    Attributes:
        parameters: their number, by part of the model.
        state_bytes: weights, gradients and the optimizers' averages.
        peak_bytes: the estimate of all memory: see `training_bytes`.
        costs: the kinds of work of the run; `start` is what precedes training.
        seconds: the sum of `costs`.
    """

    device: str
    precision: str
    parameters: dict[str, int]
    state_bytes: int
    peak_bytes: int
    costs: dict[str, Cost]
    seconds: float


def estimate(config: Config, corpus: Corpus, clock: Clock | None = None) -> tuple[Config, Estimate]:
    """Measure a short part of a run on a throwaway model, and extrapolate.

    Args:
        config: the settings of the run. With `train.minutes`, as many steps are planned as fit.
        corpus: its text.
        clock: returns the seconds since the command began; default: since this call.

    Returns:
        The config, with the planned steps, and the estimate.
    """
    began = time.perf_counter()
    clock = clock or (lambda: time.perf_counter() - began)
    start_s, V = clock(), len(corpus.vocabulary)
    with computing_with(config.threads, deterministic=config.deterministic):
        with phase("measuring a training step"):
            device = select_device(config.device)
            teacher = load_teacher(config, corpus.vocabulary, device)
            check_training_memory(config, V, device, teacher)
            taught_by = teacher.model.config if teacher else None
            peak_bytes = sum(training_bytes(config, V, device, taught_by).values()) + LIBRARY_BYTES
            model = make_model(config.model, V, config.seed).to(device)
            update = build_step(
                config, model, device, SINGLE, corpus.train, corpus.vocabulary, teacher
            )
            setup_s = clock() - start_s
            warmup_s, step_s = _time_steps(update, config, clock)
        with phase("measuring an evaluation"):
            character_s = _time_evaluation(model, corpus, device, clock)
        with phase("measuring a sample and a checkpoint"):
            sampled_s = _time_sample(model, corpus, device, clock) / SAMPLED_CHARACTERS
            with tempfile.TemporaryDirectory() as folder:
                data = CheckpointData(0, config, corpus.vocabulary, weights_of(model))
                save = partial(write_checkpoint, Path(folder), data, update.state_dict())
                saving_s = _seconds(device, save, clock)
        ready_s = start_s + setup_s + warmup_s
        stopwatch = Stopwatch(lambda: ready_s)
        with_each_s = sampled_s * config.train.sample_length + saving_s
        stopwatch.seconds = {CHARACTER: character_s, EVALUATION: with_each_s, **step_s}
        config = TimeBudget(config, corpus.val, stopwatch).first_plan(config)
    train, schedule, val_characters = config.train, Schedule(config), val_units(corpus).ids
    short_part = schedule.short_steps / schedule.steps if schedule.short_T != schedule.T else 0.0
    mean_s = short_part * step_s[schedule.short_T] + (1 - short_part) * step_s[schedule.T]
    evaluated = set(schedule.steps_due(train.eval_every))
    saved = evaluated | set(_checkpoint_steps(config, mean_s))
    part = min(train.eval_characters or val_characters, val_characters)
    whole_at_end = val_characters if part < val_characters else 0
    costs = {
        "start": Cost(1, start_s),
        "setup": Cost(1, setup_s + warmup_s),
        "step": Cost(train.steps, mean_s),
        # step 0 needs no evaluation if the head is zero
        "evaluation": Cost(len(evaluated) - (train.init_from is None), character_s * part),
        "last evaluation": Cost(1, character_s * whole_at_end),
        "sample": Cost(len(evaluated), sampled_s * train.sample_length),
        "last sample": Cost(1, sampled_s * config.sample.length),
        "checkpoint": Cost(len(saved), saving_s),
    }
    parameters = count_parameters(model)
    return config, Estimate(
        device=str(device),
        precision=str(update.precision).removeprefix("torch."),
        parameters=parameters,
        state_bytes=4 * 2 * sum(parameters.values())
        + sum(array.nbytes for array in update.state_dict().tensors.values()),
        peak_bytes=int(peak_bytes),
        costs={name: cost for name, cost in costs.items() if cost.count and cost.seconds},
        seconds=sum(cost.count * cost.seconds for cost in costs.values()),
    )


def _time_steps(
    update: Update, config: Config, clock: Clock
) -> tuple[float, dict[int | str, float]]:
    """Return how much longer the first steps take, and the seconds of a later step by its T."""

    def seconds(first: int, count: int) -> float:
        began = clock()
        update.read([update(step) for step in range(first, first + count)])
        return clock() - began

    schedule, extra_s, step_s = Schedule(config), 0.0, dict[int | str, float]()
    for first in (schedule.steps, 0):  # long windows, then short ones
        T = schedule.shape(first)[1]
        if T in step_s:
            break
        warmup_s = seconds(first, WARMUP_STEPS)
        done, taken_s = 0, 0.0
        while taken_s < MIN_TIMED_S:
            taken_s += seconds(first + WARMUP_STEPS + done, TIMED_STEPS)
            done += TIMED_STEPS
        step_s[T] = taken_s / done
        extra_s += max(0.0, warmup_s - WARMUP_STEPS * step_s[T])
    return extra_s, step_s


def _time_evaluation(
    model: LanguageModel, corpus: Corpus, device: torch.device, clock: Clock
) -> float:
    """Return the seconds that an evaluation takes for a character of the val split."""
    characters = max(EVAL_CHARACTERS, model.config.T) * torch.get_num_threads()
    evaluate(model, corpus.val, characters=characters)  # warm up
    while True:
        scored: list[int] = []
        score = partial(
            evaluate, model, corpus.val, characters=characters, on_progress=scored.append
        )
        taken_s = _seconds(device, score, clock)
        if taken_s >= MIN_TIMED_S or characters >= len(corpus.val):
            return taken_s / sum(scored)
        characters *= 4


def _time_sample(model: LanguageModel, corpus: Corpus, device: torch.device, clock: Clock) -> float:
    """Return the seconds that a sample takes.

    Raises:
        TrainingError: the first steps made the model's logits NaN or infinite.
    """
    sample = partial(generate_text, model, corpus.vocabulary, length=SAMPLED_CHARACTERS, seed=0)
    try:
        return _seconds(device, sample, clock)
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


def _seconds(device: torch.device, work: Callable[[], object], clock: Clock) -> float:
    began = clock()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return clock() - began
