"""How fast models of different shapes train here: a few are measured, the others interpolated."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from gpt.config.schema import Config, ModelConfig
from gpt.device import computing_with, select_device
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import make_model
from gpt.text.batches import EVAL_CHARACTERS
from gpt.text.corpus import Corpus
from gpt.training.ensemble import make_step
from gpt.training.gradients import takes_threads
from gpt.training.memory import check_training_memory
from gpt.training.schedule import short_steps, window_length

WARMUP_STEPS, TIMED_STEPS = 2, 3  # the latter at least
WARMUP_EVALUATIONS, TIMED_EVALUATIONS = 1, 1  # which take longer than steps, and count less
TIMED_SECONDS = 0.4  # of steps of one length, and of evaluations
SMALLER_SAVES = 0.7  # smaller models compute at a lower rate: time goes as operations to the power
MEMBERS = (1, 2, 3, 4, 5, 6, 8)  # of the ensembles that are considered
BESIDE_SAVES = 0.7  # members side by side take their number to this power at least, until measured


@dataclass(frozen=True)
class Pace:
    """Seconds for a character: of a step, all its costs shared, and of an evaluation."""

    train_s: float
    evaluation_s: float

    def times(self, training: float, evaluation: float) -> "Pace":
        """So many times those of each."""
        return Pace(training * self.train_s, evaluation * self.evaluation_s)


@dataclass
class Speed:
    """The paces of some configs on a text with V ids, measured by `measure`; others follow.

    Attributes:
        at_once: members of an ensemble that train side by side, with fewer threads each.
        beside: how many times as long as one member so many take, which is measured on one shape.
    """

    V: int
    measure: Callable[[Config], Pace]
    at_once: int = 1
    measured: dict[tuple[int, ...], tuple[float, Pace]] = field(default_factory=dict)
    beside: float | None = None

    def knows(self, config: Config) -> bool:
        """Whether this shape was measured."""
        return _shape(config) in self.measured

    def learn(self, config: Config) -> None:
        """Measure a config, with the members of its that train at once."""
        members = min(config.model.ensemble, self.at_once)
        pace = self.measure(with_members(config, members))
        operations = operations_per_character(config.model, self.V)
        of_one = pace.times(1 / self._members_take(members), 1 / members)
        self.measured[_shape(config)] = operations, of_one

    def learn_beside(self, config: Config) -> None:
        """Measure what the members that train at once take: with a shape that was measured."""
        pace = self.measure(with_members(config, self.at_once))
        self.beside = pace.train_s / self._predict_one(config).train_s

    def predict(self, config: Config) -> Pace:
        """The pace of a config: of all its members together."""
        members = config.model.ensemble
        return self._predict_one(config).times(self._members_take(members), members)

    def _members_take(self, members: int) -> float:
        """Times as long as one of them: fewer than are at once in between, more in turn."""
        if self.at_once == 1:
            return members
        beside = self.at_once**BESIDE_SAVES if self.beside is None else self.beside
        if members >= self.at_once:
            return beside * members / self.at_once
        return float(beside ** (math.log(members) / math.log(self.at_once)))

    def _predict_one(self, config: Config) -> Pace:
        """The pace of one member, by operations between the nearest that were measured."""
        if known := self.measured.get(_shape(config)):
            return known[1]
        operations = operations_per_character(config.model, self.V)
        points = sorted(self.measured.values(), key=lambda point: point[0])
        smaller = [point for point in points if point[0] <= operations]
        larger = [point for point in points if point[0] > operations]
        if smaller and larger:
            (a, of_a), (b, of_b) = smaller[-1], larger[0]
            part = (operations - a) / (b - a)
            return Pace(
                of_a.train_s + part * (of_b.train_s - of_a.train_s),
                of_a.evaluation_s + part * (of_b.evaluation_s - of_a.evaluation_s),
            )
        nearest, pace = smaller[-1] if smaller else larger[0]
        ratio = (operations / nearest) ** (1.0 if smaller else SMALLER_SAVES)
        return pace.times(ratio, ratio)


def with_members(config: Config, members: int) -> Config:
    """The same config of an ensemble of so many members."""
    model = config.model.model_copy(update={"ensemble": members})
    return config.model_copy(update={"model": model})


def members_at_once(config: Config) -> int:
    """How many members of a large ensemble train side by side, by such a config."""
    large = with_members(config, max(MEMBERS))
    with computing_with(config.threads):
        if not takes_threads(large, select_device(config.device)):
            return 1
        return min(torch.get_num_threads(), large.model.ensemble)


def operations_per_character(model: ModelConfig, V: int) -> float:
    """Floating-point operations of a training step, for each character.

    As PaLM counts them (arXiv:2204.02311, appendix B): 6 for each weight of a matrix product and
    6 T (hs + vs) for each head, as if nothing were masked.
    """
    queries, values = model.n_head * model.head_size, model.n_head * model.value_size
    layer = model.C * (2 * queries + 2 * values + 8 * model.C) + model.T * (queries + values)
    return 6.0 * (model.n_layer * layer + model.C * V)


def measure_pace(config: Config, corpus: Corpus) -> Pace:
    """Train a throwaway model for a few steps of each length, and evaluate it on a little.

    Raises OutOfMemory if there is none for it.
    """
    device = select_device(config.device)
    check_training_memory(config, len(corpus.vocabulary), device)
    with computing_with(config.threads):
        model = make_model(config.model, len(corpus.vocabulary), config.seed).to(device)
        update = make_step(model, corpus.train, config, device, corpus.vocabulary)
        steps = config.train.steps
        long = _mean_seconds(lambda i: update(steps + i), device)
        short = long
        if window_length(0, config) != config.model.T:
            short = _mean_seconds(update, device)
        part = short_steps(config) / steps
        step = part * short + (1 - part) * long
        characters = max(EVAL_CHARACTERS, config.model.T) * torch.get_num_threads()
        scored: list[int] = []

        def score(_: int) -> None:
            scored.clear()
            evaluate(model, corpus.val, characters=characters, on_progress=scored.append)

        mean_s = _mean_seconds(score, device, WARMUP_EVALUATIONS, TIMED_EVALUATIONS)
        evaluation = mean_s / sum(scored)
    return Pace(step / (config.train.batch_size * config.model.T), evaluation)


def _mean_seconds(
    work: Callable[[int], object],
    device: torch.device,
    warmup: int = WARMUP_STEPS,
    timed: int = TIMED_STEPS,
) -> float:
    """Of work repeated so often or more, after a warmup, which takes longer."""
    times: list[float] = []
    while len(times) < warmup + timed or sum(times[warmup:]) < TIMED_SECONDS:
        began = time.perf_counter()
        work(len(times))
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        times.append(time.perf_counter() - began)
    return sum(times[warmup:]) / len(times[warmup:])


def _shape(config: Config) -> tuple[int, ...]:
    model, train = config.model, config.train
    return model.n_layer, model.C, model.T, train.batch_size * model.T
