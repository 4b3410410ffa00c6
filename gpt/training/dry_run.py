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
from gpt.training.build_step import Update, build_step
from gpt.training.memory_estimate import LIBRARY_BYTES, check_training_memory, training_bytes
from gpt.training.schedule import Schedule
from gpt.training.teacher import load_teacher
from gpt.training.time_budget import CHARACTER, EVALUATION, Stopwatch, TimeBudget

STEPS_AT_ONCE = 3  # steps before their results are read, as those of an ensemble overlap
MIN_SAMPLE_S = 1.5  # seconds of steps of one length, or of evaluations
MAX_TIMED = 999  # repetitions
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
        device = select_device(config.device)
        with phase("measuring a training step"):
            teacher = load_teacher(config, corpus.vocabulary, device)
            check_training_memory(config, V, device, teacher)
            distilled = teacher.model.config if teacher else None
            memory = training_bytes(config, V, device, distilled) | {"libraries": LIBRARY_BYTES}
            model = make_model(config.model, V, config.seed).to(device)
            update = build_step(
                config, model, device, SINGLE, corpus.train, corpus.vocabulary, teacher
            )
            setup_s = clock() - start_s
            step_s = _step_seconds(update, Schedule(config), clock)
        with phase("measuring an evaluation, a sample and a checkpoint"):
            character_s = _character_seconds(model, corpus, clock)
            sample = partial(
                generate_text, model, corpus.vocabulary, length=SAMPLED_CHARACTERS, seed=0
            )
            sampled_s = _seconds(lambda _: sample(), clock, most=1) / SAMPLED_CHARACTERS
            with tempfile.TemporaryDirectory() as folder:
                data = CheckpointData(0, config, corpus.vocabulary, weights_of(model))
                save = partial(write_checkpoint, Path(folder), data, update.state_dict())
                saving_s = _seconds(lambda _: save(), clock, most=1)
        stopwatch = Stopwatch(lambda: start_s + setup_s)
        with_each_s = sampled_s * config.train.sample_length + saving_s
        stopwatch.seconds = {CHARACTER: character_s, EVALUATION: with_each_s, **step_s}
        config = TimeBudget(config, corpus.val, stopwatch).first_plan(config)
    train, schedule, val_characters = config.train, Schedule(config), val_units(corpus).ids
    short_part = schedule.short_steps / schedule.steps if schedule.short_T != schedule.T else 0.0
    mean_s = short_part * step_s[schedule.short_T] + (1 - short_part) * step_s[schedule.T]
    evaluated, every = set(schedule.steps_due(train.eval_every)), train.checkpoint_every
    if isinstance(every, str):
        every = max(1, int(60 * float(every.removesuffix(" min")) / mean_s))
    saved = evaluated | set(range(0, schedule.steps, every))
    part = min(train.eval_characters or val_characters, val_characters)
    costs = {
        "start": Cost(1, start_s),
        "setup": Cost(1, setup_s),
        "step": Cost(train.steps, mean_s),
        # step 0 needs no evaluation if the head is zero
        "evaluation": Cost(len(evaluated) - (train.init_from is None), character_s * part),
        "last evaluation": Cost(part < val_characters, character_s * val_characters),
        "sample": Cost(len(evaluated), sampled_s * train.sample_length),
        "last sample": Cost(1, sampled_s * config.sample.length),
        "checkpoint": Cost(len(saved), saving_s),
    }
    parameters, averages = count_parameters(model), update.state_dict().tensors
    return config, Estimate(
        device=str(device),
        precision=str(update.precision).removeprefix("torch."),
        parameters=parameters,
        state_bytes=4 * 2 * sum(parameters.values()) + sum(a.nbytes for a in averages.values()),
        peak_bytes=int(sum(memory.values())),
        costs={name: cost for name, cost in costs.items() if cost.count and cost.seconds},
        seconds=sum(cost.count * cost.seconds for cost in costs.values()),
    )


def _step_seconds(update: Update, schedule: Schedule, clock: Clock) -> dict[int | str, float]:
    """Return the seconds of a step by the T of its windows."""

    def train(first: int, round_: int) -> None:
        steps = range(first + STEPS_AT_ONCE * round_, first + STEPS_AT_ONCE * (round_ + 1))
        update.read([update(step) for step in steps])

    step_s = dict[int | str, float]()
    for first in (schedule.steps, 0):  # long windows, then short ones
        T = schedule.shape(first)[1]
        if T not in step_s:
            step_s[T] = _seconds(partial(train, first), clock) / STEPS_AT_ONCE
    return step_s


def _character_seconds(model: LanguageModel, corpus: Corpus, clock: Clock) -> float:
    """Return the seconds that an evaluation takes for a character."""
    characters = max(EVAL_CHARACTERS, model.config.T) * torch.get_num_threads()

    def score(_: int) -> int:
        scored: list[int] = []
        evaluate(model, corpus.val, characters=characters, on_progress=scored.append)
        return sum(scored)

    return _seconds(score, clock) / score(0)


def _seconds(work: Callable[[int], object], clock: Clock, most: int = MAX_TIMED) -> float:
    """Return the mean seconds of `work(1)`, `work(2)`, ... after `work(0)`, which takes longer.

    Args:
        work: returns when its results are computed.
        clock: returns seconds.
        most: how often to measure at most.
    """
    work(0)
    began, count = clock(), 0
    while count < most and (count == 0 or clock() - began < MIN_SAMPLE_S):
        count += 1
        work(count)
    return (clock() - began) / count
