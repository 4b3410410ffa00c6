"""Learning rate and window length of each step, and the steps at which evaluations are due.

All depend on the fraction of the run that is done. A plan (`train.plans`) changes the number of
remaining steps, not this fraction, so the learning rate does not jump and windows stay long.

A plan that starts where the previous plan ended starts a new phase: a finished run is trained for
longer. The learning rate is then warmed up again, over `train.rewarm_steps`, to the rate that one
run with all these steps would have at that step.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import pairwise

from gpt.config.schema import Config, TrainConfig

Plan = tuple[int, int]  # a step, and the number of steps of the run planned at that step

SHORT_PART = Fraction(5, 6)  # fraction of a run with windows of `first_window`


def phase_plans(step: int, config: TrainConfig) -> list[Plan]:
    """Return the plans up to `step` of its phase; the first one starts the phase."""
    plans = [(0, config.plans[0][1] if config.plans else config.steps)]
    for plan in config.plans[1:]:
        if plan[0] > step:
            break
        if plan[0] >= plans[-1][1]:
            plans.clear()
        plans.append(plan)
    return plans


def part_done(step: int, config: TrainConfig, start: int = 0) -> Fraction:
    """Return the fraction of the phase that is done before `step`, from 0 to 1.

    It is 0 until step `start` and linear between plans. After a new plan, its slope is the one that
    reaches 1 at the new end.
    """
    return _done(step, phase_plans(step, config), start)


def _done(step: int, plans: list[Plan], start: int = 0) -> Fraction:
    (begin, end), *replans = plans
    done, since = Fraction(0), max(begin, start)
    for planned_at, planned_end in replans:
        if planned_at > since:
            done += (1 - done) * _part(planned_at - since, end - since)
            since = planned_at
        end = planned_end
    return done + (1 - done) * _part(step - since, end - since)


def _part(steps: int, of: int) -> Fraction:
    return min(Fraction(1), Fraction(steps, max(1, of)))


def with_plan(config: Config, step: int, steps: int) -> Config:
    """Return the config with a plan of `steps` for the whole run, made at `step`.

    It replaces later plans, which exist after a rollback.
    """
    plans = config.train.plans or ((0, config.train.steps),)
    before = [plan for plan in plans if plan[0] < step]
    changes = {"steps": steps, "plans": (*before, (step, steps))}
    return config.model_copy(update={"train": config.train.model_copy(update=changes)})


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return AdamW's learning rate at `step`, counted from 0. Muon's is in proportion.

    1. Warmup: linear, to the peak at its last step.
    2. Decay: `config.decay`, from the peak to `min_learning_rate` one step after the last.
    3. A later phase starts with a warmup from `min_learning_rate`, over `rewarm_steps`.
    """
    (begin, end), *_ = phase_plans(step, config)
    peak, warmup = config.learning_rate, config.warmup_steps
    if not begin and step < warmup:
        return peak * (step + 1) / warmup
    if begin:  # a finished run is trained for longer
        peak = _decayed(peak, max(Fraction(0), _part(begin - warmup, end - warmup)), config)
    rate = _decayed(peak, part_done(step, config, start=warmup), config)
    if begin and step < begin + config.rewarm_steps:
        rise = (step - begin + 1) / config.rewarm_steps
        return config.min_learning_rate + rise * (rate - config.min_learning_rate)
    return rate


def _decayed(peak: float, part: Fraction, config: TrainConfig) -> float:
    """Return the rate after the fraction `part` of the decay from `peak`."""
    done = float(part)
    factor = 1 - done if config.decay == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.min_learning_rate + factor * (peak - config.min_learning_rate)


def rewarm_factor(step: int, config: TrainConfig, start: int, rate: float) -> float:
    """Return a factor on `learning_rate` after the schedule was changed at step `start`.

    Over `config.rewarm_steps`, the product changes linearly from `rate` to the new schedule.
    """
    if step >= start + config.rewarm_steps:
        return 1.0
    target = learning_rate(step, config)
    return (rate + (target - rate) * (step - start + 1) / config.rewarm_steps) / target


def short_steps(config: Config) -> int:
    """Return the number of first steps with windows of `first_window`, if that is set."""
    steps = range(config.train.steps)
    return bisect_left(steps, True, key=lambda step: not _is_short(step, config.train))


def _is_short(step: int, config: TrainConfig) -> bool:
    plans = phase_plans(step, config)
    return not plans[0][0] and _done(step + 1, plans) <= SHORT_PART


def short_part(step: int, config: TrainConfig) -> float:
    """Return the fraction of the steps after `step` that have windows of `first_window`."""
    done = part_done(step, config)
    if phase_plans(step, config)[0][0] or done == 1:
        return 0.0
    return float(max(SHORT_PART - done, Fraction()) / (1 - done))


def window_length(step: int, config: Config) -> int:
    """Return T at `step`, in characters.

    Short windows (arXiv:2108.06084) make early steps cheaper, and are enough to learn from then.
    """
    first = config.train.first_window or config.model.T
    return first if _is_short(step, config.train) else config.model.T


def batch_shape(step: int, config: Config) -> tuple[int, int]:
    """Return B and T at `step`. B x T is the same for all steps."""
    T = window_length(step, config)
    return config.train.batch_size * config.model.T // T, T


def is_due(step: int, every: int | str, config: TrainConfig) -> bool:
    """Return whether an event with the period `every`, in steps or such as `10 %`, is due.

    Before the first step, after the last and where a phase ends, everything is due.
    """
    if step >= config.steps or step == phase_plans(step, config)[0][0]:
        return True
    return times_due(every, config, step - 1) > times_due(every, config, step)


def times_due(every: int | str, config: TrainConfig, after: int = 0) -> int:
    """Return how often an event is due after step `after` (periods in %: in its phase)."""
    if isinstance(every, int):
        return -(-config.steps // every) - after // every
    return math.ceil(1 / _as_part(every)) - part_done(after, config) // _as_part(every)


def steps_due(every: int | str, config: TrainConfig) -> Iterator[int]:
    """Yield the steps at which an event with the period `every` is due."""
    starts = [at for at, _ in config.plans[1:] if phase_plans(at, config)[0][0] == at]
    if isinstance(every, int):
        yield from sorted({*range(0, config.steps, every), *starts})
    else:
        done, part = partial(part_done, config=config), _as_part(every)
        for begin, end in pairwise([0, *starts, config.steps]):
            for i in range(math.ceil(1 / part)):
                yield begin + bisect_left(range(begin, end), i * part, key=done)
    yield config.steps


def _as_part(every: str) -> Fraction:
    return Fraction(every.removesuffix(" %")) / 100
