"""What changes from step to step: the learning rate, and how long the windows are.

Both follow how much of the run is done. A plan (`train.plans`) changes how many steps are left, and
nothing of what is done: so the learning rate never jumps, and windows that are long stay long.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from gpt.config.schema import Config, TrainConfig

SHORT_PART = Fraction(5, 6)  # of a run has windows of `first_window`


def part_done(step: int, config: TrainConfig, start: int = 0) -> Fraction:
    """How much of the run from step `start` to its end is done before a step: 0 to 1.

    It grows by the same with each step, up to the step of a new plan, from which on it grows so
    that it is 1 at the new end.
    """
    done, since, end = Fraction(0), start, config.plans[0][1] if config.plans else config.steps
    for planned_at, planned_end in config.plans:
        if planned_at > step:
            break
        if planned_at > since:
            done += (1 - done) * _part(planned_at - since, end - since)
            since = planned_at
        end = planned_end
    return done + (1 - done) * _part(step - since, end - since)


def _part(steps: int, of: int) -> Fraction:
    return min(Fraction(1), Fraction(steps, max(1, of)))


def with_plan(config: Config, step: int, steps: int) -> Config:
    """The config with one more plan: from this step on, so many steps in the whole run.

    It replaces those from this step on, which a run that was rolled back has not come to again.
    """
    plans = config.train.plans or ((0, config.train.steps),)
    before = [plan for plan in plans if plan[0] < step]
    changes = {"steps": steps, "plans": (*before, (step, steps))}
    return config.model_copy(update={"train": config.train.model_copy(update=changes)})


def learning_rate(step: int, config: TrainConfig) -> float:
    """The learning rate of step `step`, counted from 0: a linear warmup, then `config.decay`.

    The last step of the warmup is at the peak, and so is the first of the decay, which would be at
    `min_learning_rate` one step after the last. (AdamW's; Muon's is in proportion.)
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = float(part_done(step, config, start=config.warmup_steps))
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
    steps = range(config.train.steps)
    return bisect_left(steps, True, key=lambda step: not _is_short(step, config.train))


def _is_short(step: int, config: TrainConfig) -> bool:
    return part_done(step + 1, config) <= SHORT_PART


def window_length(step: int, config: Config) -> int:
    """T of a step's windows, in characters.

    While windows are short (arXiv:2108.06084), attention costs less, and there is enough to learn.
    """
    first = config.train.first_window or config.model.T
    return first if _is_short(step, config.train) else config.model.T


def batch_shape(step: int, config: Config) -> tuple[int, int]:
    """B and T of a step's batch: as many characters whatever the length of a window."""
    T = window_length(step, config)
    return config.train.batch_size * config.model.T // T, T


def is_due(step: int, every: int | str, config: TrainConfig) -> bool:
    """Whether it is time at a step for what comes every so many steps, or `10 %` of the run.

    Before the first step and after the last everything is due.
    """
    if step == 0 or step >= config.steps:
        return True
    return times_due(every, config, step - 1) > times_due(every, config, step)


def times_due(every: int | str, config: TrainConfig, after: int = 0) -> int:
    """How many times that is, after a step."""
    if isinstance(every, int):
        return -(-config.steps // every) - after // every
    return math.ceil(1 / _as_part(every)) - part_done(after, config) // _as_part(every)


def steps_due(every: int | str, config: TrainConfig) -> Iterator[int]:
    """At which steps that is."""
    if isinstance(every, int):
        yield from range(0, config.steps, every)
    else:
        done, part = partial(part_done, config=config), _as_part(every)
        for i in range(math.ceil(1 / part)):
            yield bisect_left(range(config.steps), i * part, key=done)
    yield config.steps


def _as_part(every: str) -> Fraction:
    return Fraction(every.removesuffix(" %")) / 100
