"""What changes from step to step: the learning rate, and how long the windows are."""

import math

from gpt.config.schema import Config, TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """The learning rate of step `step`, counted from 0: a linear warmup, then `config.decay`.

    The last step of the warmup is at the peak, and so is the first of the decay, which would be at
    `min_learning_rate` one step after the last. (AdamW's; Muon's is in proportion.)
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = min(1.0, (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps))
    left = 1 - done if config.decay == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.min_learning_rate + left * (config.learning_rate - config.min_learning_rate)


def rewarm_factor(step: int, config: TrainConfig, start: int, rate: float) -> float:
    """What to multiply `learning_rate` by after the schedule was changed at step `start`.

    Over `config.rewarm_steps` the product goes linearly from `rate` to the new schedule's.
    """
    if step >= start + config.rewarm_steps:
        return 1.0
    target = learning_rate(step, config)
    return (rate + (target - rate) * (step - start + 1) / config.rewarm_steps) / target


def short_steps(config: Config) -> int:
    """How many steps, the first ones, have windows of `first_window`, if that is set."""
    return 5 * config.train.steps // 6


def window_length(step: int, config: Config) -> int:
    """T of a step's windows, in characters.

    While windows are short (arXiv:2108.06084), attention costs less, and there is enough to learn.
    """
    first = config.train.first_window or config.model.T
    return first if step < short_steps(config) else config.model.T


def batch_shape(step: int, config: Config) -> tuple[int, int]:
    """B and T of a step's batch: as many characters whatever the length of a window."""
    T = window_length(step, config)
    return config.train.batch_size * config.model.T // T, T
