"""How fast models of different shapes train here: a few are measured, the others interpolated."""

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median

import torch

from gpt.config.schema import Config, ModelConfig
from gpt.device import computing_with, free_cached_memory, select_device
from gpt.distributed.ranks import SINGLE
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import make_model, members_of
from gpt.model.transformer import GPT
from gpt.text.batches import EVAL_CHARACTERS
from gpt.text.corpus import Corpus
from gpt.training.build_step import build_step
from gpt.training.ensemble_step import Update
from gpt.training.gradients import takes_threads
from gpt.training.memory_estimate import check_training_memory
from gpt.training.schedule import Schedule

WARMUP_ROUNDS, TIMED_ROUNDS = 1, 2  # of steps of one length; the latter at least,
TIMED_S, MOST_ROUNDS = 0.7, 9  # and more, in all, while they take less than so many seconds
SMALLER_SAVES = 0.7  # smaller models compute at a lower rate: time goes as operations to the power
BESIDE = 0.8  # members side by side take their number to this power, unless that is measured: of
# two by one thread each it was 0.5 to 1.1, least of small models (experiments.md)
FAR = 5  # times as many operations: time does not go by them alone
LONGER_STEPS = 2  # times as many characters in a step: on a GPU a character takes less of longer
MEMBERS = (1, 2, 3, 4, 5, 6, 8)  # of the ensembles that are considered


@dataclass(frozen=True)
class Pace:
    """Seconds for a character: of a step, all its costs shared, and of an evaluation."""

    train_s: float
    evaluation_s: float


@dataclass
class Speed:
    """The paces of some configs on a text with V ids, measured by `measure`; others follow.

    Attributes:
        threads: that members of an ensemble share, if they train side by side; else 1.
        at_once: members whose pace together is measured.
        beside: how many times as long as one member those take, once it is measured.
    """

    V: int
    measure: Callable[[list[Config]], list[Pace]]
    threads: int = 1
    at_once: int = 1
    measured: dict[tuple[int, ...], tuple[float, Pace]] = field(default_factory=dict)
    beside: float | None = None

    def knows(self, config: Config) -> bool:
        """Whether this shape was measured; or it is between two that are not far apart.

        Those whose steps are longer or shorter by more than LONGER_STEPS do not count.
        """
        operations, in_step = self._operations(config), _step_characters(config)
        known = sorted(
            of_shape
            for (*_, its_step), (of_shape, _) in self.measured.items()
            if max(its_step, in_step) <= LONGER_STEPS * min(its_step, in_step)
        )
        return operations in known or any(a < operations < b <= FAR * a for a, b in pairwise(known))

    def learn(self, *configs: Config, others: Sequence[Config] = ()) -> list[Pace]:
        """Measure configs, in turn: of one member; of `at_once`, those whose shape is known.

        Returns the paces of `others`, which tell nothing of such configs: of other settings.
        """
        paces = self.measure([*others, *configs])
        for config, pace in zip(configs, paces[len(others) :], strict=True):
            if config.model.ensemble == 1:
                self.measured[_shape(config)] = self._operations(config), pace
            else:
                of_one = self.measured[_shape(config)][1]
                self.beside = max(1.0, pace.train_s / of_one.train_s)
        return paces[: len(others)]

    def predict(self, config: Config) -> Pace:
        """The pace of a config: of all its members together."""
        members = config.model.ensemble
        pace = self._predict_one(config)
        return Pace(self._members_take(members) * pace.train_s, members * pace.evaluation_s)

    def _members_take(self, members: int) -> float:
        """Times as long as one of them: more than there are threads take turns."""
        together = min(members, self.threads)
        most = self._busy(self.at_once)
        beside = most**BESIDE if self.beside is None else self.beside
        power = math.log(self._busy(together)) / math.log(most) if most > 1 else 1.0
        return float(beside**power * members / together)

    def _busy(self, members: int) -> int:
        """The members that so many take as long as: each has as many threads as all can have."""
        return self.threads // (self.threads // min(members, self.threads))

    def _operations(self, config: Config) -> float:
        return operations_per_character(config.model, self.V)

    def _predict_one(self, config: Config) -> Pace:
        """The pace of one member, by operations between the nearest that were measured."""
        if known := self.measured.get(_shape(config)):
            return known[1]
        operations = self._operations(config)
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
        return Pace(pace.train_s * ratio, pace.evaluation_s * ratio)


def with_members(config: Config, members: int) -> Config:
    """The same config of an ensemble of so many members."""
    model = config.model.model_copy(update={"ensemble": members})
    return config.model_copy(update={"model": model})


def threads_of_members(config: Config) -> int:
    """The threads that members of an ensemble share, by such a config; 1 if they take turns."""
    with computing_with(config.threads):
        shared = takes_threads(config, select_device(config.device))
        return torch.get_num_threads() if shared else 1


def operations_per_character(model: ModelConfig, V: int) -> float:
    """Floating-point operations of a training step, for each character.

    As PaLM counts them (arXiv:2204.02311, appendix B): 6 for each weight of a matrix product and
    6 T (hs + vs) for each head, as if nothing were masked.
    """
    queries, values = model.n_head * model.head_size, model.n_head * model.value_size
    layer = model.C * (2 * queries + 2 * values + 8 * model.C) + model.T * (queries + values)
    return 6.0 * (model.n_layer * layer + model.C * V)


def measure_paces(
    configs: list[Config], corpus: Corpus, before_each: Callable[[], object] = lambda: None
) -> list[Pace]:
    """Train throwaway models for a few steps of each length, and evaluate them on a little.

    In training they take turns, so that all have the same share of a machine that others use, too.
    `before_each` is called before each step; what it raises ends the measurement.

    Raises OutOfMemory if there is none for one of them.
    """
    device, V = select_device(configs[0].device), len(corpus.vocabulary)
    with computing_with(configs[0].threads):
        models, updates = [], []
        for config in configs:
            before_each()
            check_training_memory(config, V, device)
            models.append(make_model(config.model, V, config.seed).to(device))
            updates.append(
                build_step(config, models[-1], device, SINGLE, corpus.train, corpus.vocabulary)
            )
            free_cached_memory(device)  # of a first step, which the next model may need
        long_s = _median_seconds(
            [partial(_train, u, c.train.steps) for u, c in zip(updates, configs, strict=True)],
            before_each,
        )
        short_s = long_s
        if any(Schedule(config).shape(0)[1] != config.model.T for config in configs):
            short_s = _median_seconds(
                [partial(_train, update, 0) for update in updates], before_each
            )
        paces = [
            Pace(
                _mean_step(config, *step_s) / _step_characters(config),
                config.model.ensemble * _evaluation_seconds(members_of(model)[0], corpus),
            )
            for config, model, *step_s in zip(configs, models, short_s, long_s, strict=True)
        ]
    del models, updates
    gc.collect()  # a step and what draws its batches refer to each other
    free_cached_memory(device)
    return paces


def _train(update: Update, first: int, step: int) -> None:
    """A step, until its results are known."""
    update.read([update(first + step)])


def _mean_step(config: Config, short_s: float, long_s: float) -> float:
    """Of the short windows that come first in a run, and of the long ones."""
    part = Schedule(config).short_steps / config.train.steps
    return part * short_s + (1 - part) * long_s


def _evaluation_seconds(model: GPT, corpus: Corpus) -> float:
    """For a character, the second time: the first takes longer."""
    characters = max(EVAL_CHARACTERS, model.config.T) * torch.get_num_threads()
    for _ in range(2):
        scored: list[int] = []
        began = time.perf_counter()
        evaluate(model, corpus.val, characters=characters, on_progress=scored.append)
    return (time.perf_counter() - began) / sum(scored)


def _median_seconds(
    works: list[Callable[[int], object]], before_each: Callable[[], object]
) -> list[float]:
    """Of each work, done in turn: the first times, which take longer, do not count."""
    rounds: list[list[float]] = []
    while len(rounds) < WARMUP_ROUNDS + TIMED_ROUNDS or (
        sum(map(sum, rounds[WARMUP_ROUNDS:])) < TIMED_S and len(rounds) < MOST_ROUNDS
    ):
        times = []
        for work in works:
            before_each()
            began = time.perf_counter()
            work(len(rounds))
            times.append(time.perf_counter() - began)
        rounds.append(times)
    return [median(of_work) for of_work in zip(*rounds[WARMUP_ROUNDS:], strict=True)]


def _shape(config: Config) -> tuple[int, ...]:
    model = config.model
    return model.n_layer, model.C, model.T, _step_characters(config)


def _step_characters(config: Config) -> int:
    return config.train.batch_size * config.model.T
