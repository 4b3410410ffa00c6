"""Measure how fast some models train on this machine, and interpolate the speed of other models."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
import torch

from gpt.config.schema import Config, ModelConfig
from gpt.device import computing_with, free_cached_memory, select_device
from gpt.distributed.ranks import SINGLE, Ranks
from gpt.evaluation.loss import evaluate, timed_ids
from gpt.model.ensemble import make_model
from gpt.text.corpus import Corpus
from gpt.training.build_step import Update, build_step
from gpt.training.gradients import supports_threads
from gpt.training.memory_estimate import check_training_memory
from gpt.training.schedule import Schedule

WARMUP_ROUNDS = 1  # rounds of steps that are not timed
MIN_TIMED_ROUNDS, MAX_ROUNDS = 2, 9  # fewest rounds that are timed, and most rounds in all
MIN_TIMED_S = 0.7  # seconds of timed rounds after which timing ends
# a model smaller than all measured ones takes time in proportion to operations ** SMALLER_POWER
SMALLER_POWER = 0.7
# Steps that are timed together: an accelerator computes them while the CPU launches the next ones.
ACCELERATOR_STEPS = 4
# M members in parallel take M ** MEMBERS_POWER times as long as one. Two members with one thread
# each had powers from 0.5 (small models) to 1.1 (scripts/experiments.md).
MEMBERS_POWER = 0.8
MEMBERS = (1, 2, 3, 4, 5, 6, 8)  # sizes of the ensembles that are considered
LARGE_ENSEMBLES = (12, 16, 24, 32)  # the same, only on an accelerator


@dataclass(frozen=True)
class Pace:
    """Speed of a model, in seconds per character."""

    train_s: float  # seconds of a training step, divided by its number of characters
    evaluation_s: float  # to score a character


@dataclass
class Speed:
    """Measured paces of some configs, and predictions for other configs.

    Paces are interpolated by the number of operations per character. On an accelerator, launching
    the kernels of a step can take longer than computing them. There, the seconds of a training
    step are fitted as a + b * layers + c * operations.
    """

    V: int  # size of the vocabulary
    measure: Callable[[list[Config]], list[Pace]]  # returns the paces of single models
    threads: int = 1  # divided among the members of an ensemble; 1 if they take turns
    launches_kernels: bool = False  # whether the models are trained on an accelerator
    # operations per character and pace, by layers, channels, window and characters per step
    measured: dict[tuple[int, ...], tuple[float, Pace]] = field(default_factory=dict)

    def has_measured(self, config: Config) -> bool:
        """Return whether a model with the shape and batch size of `config` was measured."""
        return _shape(config) in self.measured

    def add(self, *configs: Config) -> None:
        """Measure the paces of `configs`, which must be single models, and store them."""
        for config, pace in zip(configs, self.measure([*configs]), strict=True):
            operations = operations_per_character(config.model, self.V)
            self.measured[_shape(config)] = operations, pace

    def predict(self, config: Config) -> Pace:
        """Return the pace of `config`: the seconds per character of all members together."""
        pace, members = self._predict_one(config), config.model.ensemble
        together = min(members, self.threads)  # more members than `threads` take turns
        # each member has as many threads: on 8 threads, 5 members take as long as 8, with 3 idle
        occupying = self.threads // (self.threads // together)
        slowdown = occupying**MEMBERS_POWER * members / together
        return Pace(slowdown * pace.train_s, members * pace.evaluation_s)

    def _predict_one(self, config: Config) -> Pace:
        if known := self.measured.get(_shape(config)):
            return known[1]
        points = sorted((n, pace.train_s, pace.evaluation_s) for n, pace in self.measured.values())
        measured, train_s, evaluation_s = np.array(points).T
        operations = operations_per_character(config.model, self.V)
        nearest = np.clip(operations, measured[0], measured[-1])
        ratio = (operations / nearest) ** (SMALLER_POWER if operations < nearest else 1.0)
        interpolated = (np.interp(nearest, measured, each) for each in (train_s, evaluation_s))
        pace = Pace(*(float(ratio * seconds) for seconds in interpolated))
        return replace(pace, train_s=self._fitted_s(config)) if self.launches_kernels else pace

    def _fitted_s(self, config: Config) -> float:
        """Return the training seconds per character of `config`, by a fit to all measured paces."""
        measured = [
            (1, n_layer, operations * in_step, in_step * pace.train_s)
            for (n_layer, _, _, in_step), (operations, pace) in self.measured.items()
        ]
        *terms, seconds = np.array(measured).T
        scale = np.max(terms, axis=1)  # the fit needs terms of similar size
        relative = (np.array(terms).T / scale) / seconds[:, None]  # to minimise relative errors
        costs, *_ = np.linalg.lstsq(relative, np.ones_like(seconds))
        in_step = _in_step(config)
        operations = operations_per_character(config.model, self.V) * in_step
        term = np.array([1, config.model.n_layer, operations])
        return float(term / scale @ np.maximum(costs, 0.0)) / in_step


def threads_of_members(config: Config, ranks: Ranks = SINGLE) -> int:
    """Return the number of threads divided among ensemble members; 1 if they train in turn."""
    with computing_with(config.threads):
        shared = supports_threads(config, select_device(config.device), ranks)
        return torch.get_num_threads() if shared else 1


def operations_per_character(model: ModelConfig, V: int) -> float:
    """Return the floating-point operations of a training step per character.

    Count 6 for each weight of a matrix product, and 6 x attention window x (key size + value size)
    for each head, as for PaLM (arXiv:2204.02311, appendix B). Ignore the causal mask.
    """
    both = model.n_head * (model.head_size + model.value_size)
    layer = model.C * (2 * both + 8 * model.C) + model.T * both
    return 6.0 * (model.n_layer * layer + model.C * V)


def measure_paces(
    configs: list[Config], corpus: Corpus, before_each: Callable[[], object] = lambda: None
) -> list[Pace]:
    """Return the paces of `configs`, which must be single models, measured on temporary models.

    The models take turns, so that other programs on the machine slow all of them equally. No model
    is compiled, because compiling would take longer than the measurement. `before_each` is called
    before each step; an exception that it raises ends the measurement.
    """
    configs = [config.changed(train={"compile": "off"}) for config in configs]
    device, ids, vocabulary = select_device(configs[0].device), corpus.train, corpus.vocabulary
    with computing_with(configs[0].threads):
        models, updates = [], []
        for config in configs:
            before_each()
            check_training_memory(config, len(vocabulary), device)
            models.append(make_model(config.model, len(vocabulary), config.seed).to(device))
            updates.append(build_step(config, models[-1], device, SINGLE, ids, vocabulary))
            free_cached_memory(device)  # for the next model
        together = 1 if device.type == "cpu" else ACCELERATOR_STEPS
        last_steps = [config.train.steps for config in configs]
        long_s = _step_seconds(updates, last_steps, together, before_each)
        short_s = _step_seconds(updates, [0] * len(configs), together, before_each)
        paces = []
        for i, config in enumerate(configs):
            short_part = Schedule(config).short_part_after(0)
            step_s = short_part * short_s[i] + (1 - short_part) * long_s[i]
            part = corpus.val[: timed_ids(config.model.T, device) + 1]
            for _ in range(2):  # the first evaluation takes longer
                began = time.perf_counter()
                evaluate(models[i], part)
            evaluation_s = (time.perf_counter() - began) / (len(part) - 1)
            paces.append(Pace(step_s / _in_step(config), evaluation_s))
    del models, updates
    gc.collect()  # a step and its prefetched batches refer to each other
    free_cached_memory(device)
    return paces


def _step_seconds(
    updates: list[Update], first_steps: list[int], together: int, before_each: Callable[[], object]
) -> list[float]:
    """Return the median seconds per step of each model.

    Model i starts at step `first_steps[i]`. Each measurement times `together` steps.
    """
    rounds: list[list[float]] = []
    while len(rounds) < WARMUP_ROUNDS + MIN_TIMED_ROUNDS or (
        sum(map(sum, rounds[WARMUP_ROUNDS:])) < MIN_TIMED_S and len(rounds) < MAX_ROUNDS
    ):
        times = []
        for update, first in zip(updates, first_steps, strict=True):
            before_each()
            began = time.perf_counter()
            done = together * len(rounds)
            update.read([update(first + done + i) for i in range(together)])
            times.append((time.perf_counter() - began) / together)
        rounds.append(times)
    return [median(times) for times in zip(*rounds[WARMUP_ROUNDS:], strict=True)]


def _shape(config: Config) -> tuple[int, ...]:
    return config.model.n_layer, config.model.C, config.model.T, _in_step(config)


def _in_step(config: Config) -> int:
    return config.train.batch_size * config.model.T
