"""The learning-rate range test: which learning rates a model can be trained with.

Leslie N. Smith, Cyclical Learning Rates for Training Neural Networks (arXiv:1506.01186, section
3.3): train a little while the rate rises, and see where the loss falls and where it rises again.
As in fastai, the rate rises exponentially, the loss is smoothed, and the test ends once it
diverges.

There are two rates, Muon's and AdamW's: they rise together, by one factor on those of the config.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.device import computing_with, select_device
from gpt.distributed.ranks import SINGLE
from gpt.errors import Interrupted, TrainingError
from gpt.status import phase
from gpt.text.corpus import Corpus
from gpt.training.build_step import build_step
from gpt.training.init_from import initial_model
from gpt.training.memory_estimate import check_training_memory
from gpt.training.monitor.progress import training_bar
from gpt.training.teacher import load_teacher

log = logging.getLogger(__name__)

STEPS = 100
LOWEST, HIGHEST = 0.01, 100.0  # factors
SMOOTHED_STEPS = 4.0  # the deviation of a Gaussian: a sixth of a power of ten of the factor
DIVERGED = 1.3  # times the lowest smoothed loss; it begins near log V, so fastai's 4 is no limit
LEAST_STEPS = 10  # in which the loss must fall, or they say nothing
# The loss falls fastest while the frequencies of characters are learnt, which takes a tenth of the
# rates that are best for all else: see scripts/experiments.md.
BELOW_HIGHEST = 3.0


@dataclass(frozen=True)
class RangeTest:
    """The loss at each factor on the config's rates, in nats per id, and what it suggests.

    Smoothed, it falls fastest at `steepest`, and is lowest at `highest`: from there on it rises, or
    the test ended. `settings` are the rates at `suggested`, for the peak of a schedule.
    """

    learning_rate: float  # of the config: AdamW's
    muon_learning_rate: float | None  # None: in proportion to it, or AdamW alone
    factors: list[float]
    losses: list[float]
    smoothed: list[float]
    steepest: float
    suggested: float
    highest: float
    rises: bool
    settings: dict[str, float]


def find_learning_rate(
    config: Config, corpus: Corpus, should_stop: Callable[[], bool] = lambda: False
) -> RangeTest:
    """Train a throwaway model for STEPS steps with learning rates that rise from step to step.

    The batches, and all else that is random, are those of a run by this config, of one member.

    Raises:
        TrainingError: the loss does not fall, not even at a hundredth of the config's rates.
        Interrupted: `should_stop` returned True.
        OutOfMemory, CheckpointError, DeviceError: as for a run.
    """
    if len(corpus.vocabulary) == 1:
        raise TrainingError(
            f"{corpus.name}: expected a text that can be learnt, got one character, repeated, of "
            f"which the loss is 0 at any learning rate"
        )
    rates, muon_rate = config.train, _muon_rate(config)
    config = _with_constant_rate(config)
    device = select_device(config.device)
    losses: list[float] = []
    with (
        computing_with(config.threads, deterministic=config.deterministic),
        phase("trying learning rates"),
        training_bar(STEPS, 0) as bar,
    ):
        teacher = load_teacher(config, corpus.vocabulary, device)
        check_training_memory(config, len(corpus.vocabulary), device, teacher)
        model, _ = initial_model(config, corpus.vocabulary, device)
        update = build_step(config, model, device, SINGLE, corpus.train, corpus.vocabulary, teacher)
        for step, factor in enumerate(_factors()):
            if should_stop():
                raise Interrupted("stopped; a range test has nothing to save")
            ((of_members, _),) = update.read([update(step, factor)])
            loss = sum(of_members) / len(of_members)
            if not math.isfinite(loss):
                break
            losses.append(loss)
            bar.set_postfix_str(f"train {loss:.4f}, learning rates x {factor:.3g}", refresh=False)
            bar.update()
            if _diverges(losses):
                break
    lowest = int(smooth(losses).argmin()) if losses else 0
    if lowest < LEAST_STEPS:
        raise TrainingError(
            f"expected a loss that falls at first, got one that rises from learning rates x "
            f"{_factors()[lowest]:.2g} on; set lower ones, or train.precision=fp32"
        )
    return suggest(losses, rates.learning_rate, muon_rate, rates.min_learning_rate)


def suggest(
    losses: list[float],
    learning_rate: float,
    muon_rate: float | None,
    min_learning_rate: float = 0.0,
) -> RangeTest:
    """What the losses of the first steps say.

    The last rate of the schedule is lowered with its peak only where it would be above that.
    """
    factors, smoothed = _factors()[: len(losses)], smooth(losses)
    lowest = int(smoothed.argmin())
    falls = np.gradient(smoothed)[: lowest + 1]
    steepest, highest = float(factors[int(falls.argmin())]), float(factors[lowest])
    suggested = max(steepest, highest / BELOW_HIGHEST)
    settings = {"train.learning_rate": learning_rate * suggested}
    if muon_rate is not None:
        settings["train.muon_learning_rate"] = muon_rate * suggested
    if min_learning_rate > 0.9 * learning_rate * suggested:  # 0.9: the peak will be rounded
        settings["train.min_learning_rate"] = min_learning_rate * suggested
    return RangeTest(
        learning_rate=learning_rate,
        muon_learning_rate=muon_rate,
        factors=factors.tolist(),
        losses=losses,
        smoothed=smoothed.tolist(),
        steepest=steepest,
        suggested=suggested,
        highest=highest,
        rises=lowest < len(losses) - 1,
        settings={key: float(f"{rate:.2g}") for key, rate in settings.items()},
    )


def smooth(losses: list[float]) -> NDArray[np.float64]:
    """The means of the losses around each step, weighed by a Gaussian: without the lag of fastai's.

    A running mean would show each fall some steps late, at rates that are too high. Losses far
    above the first count as twice that.
    """
    steps, limited = np.arange(len(losses)), np.minimum(losses, 2 * losses[0])
    distances = (steps[:, None] - steps) / SMOOTHED_STEPS  # (steps, steps)
    weights = np.exp(-0.5 * distances**2)
    means: NDArray[np.float64] = weights @ limited / weights.sum(1)
    return means


def _factors() -> NDArray[np.float64]:
    return np.geomspace(LOWEST, HIGHEST, STEPS)


def _diverges(losses: list[float]) -> bool:
    smoothed = smooth(losses)
    return bool(smoothed[-1] > DIVERGED * smoothed.min())


def _with_constant_rate(config: Config) -> Config:
    """The config whose schedule is its peak, with the windows that a run begins with."""
    changes = {
        "train.steps": 2 * STEPS,
        "train.minutes": "null",
        "train.max_steps": "null",
        "train.plans": "null",
        "train.warmup_steps": 0,
        "train.min_learning_rate": config.train.learning_rate,
    }
    if config.train.init_from is None:
        changes["model.ensemble"] = 1
    return load_config(config, [f"{key}={value}" for key, value in changes.items()])


def _muon_rate(config: Config) -> float | None:
    """Return Muon's rate if it is set: else it follows from `train.learning_rate`."""
    train = config.train
    is_set = train.optimizer == "muon" and "muon_learning_rate" in train.model_fields_set
    return train.muon_learning_rate if is_set else None
