"""Learning rate, batch shape and due events of every step of a run.

All three depend on the fraction of the run that is done. A plan changes the number of remaining
steps but not this fraction, so the learning rate does not jump and long windows stay long.

A plan that starts where the previous one ended starts a later phase: a finished run is trained for
longer. Its learning rate first rises to the rate that one run with all these steps would have.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import pairwise

from gpt.config.schema import Config, TrainConfig

Plan = tuple[int, int]  # a step, and the number of steps of the whole run as planned at that step

SHORT_PART = Fraction(5, 6)  # fraction of a run that uses windows of `train.first_window`


class Schedule:
    """What each step of a run does, and when evaluations and checkpoints are due.

    Attributes:
        plans: the plans so far. `train.plans` stores them, so that the run can be repeated.
        scale: factor on all learning rates. Each rollback halves it.
    """

    def __init__(self, config: Config) -> None:
        train = config.train
        self.peak, self.floor = train.learning_rate, train.min_learning_rate
        self.warmup_steps, self.batch_size = train.warmup_steps, train.batch_size
        self.T, self.short_T = config.model.T, train.first_window or config.model.T
        self.plans: tuple[Plan, ...] = train.plans or ((0, train.steps),)
        self.scale = 1.0

    @property
    def steps(self) -> int:
        """Number of steps of the whole run, by the newest plan."""
        return self.plans[-1][1]

    def replan(self, step: int, steps: int) -> None:
        """Plan `steps` for the whole run, from `step` on.

        This replaces plans for later steps, which exist after a rollback.
        """
        self.plans = (*(plan for plan in self.plans if plan[0] < step), (step, steps))

    def stored(self, config: Config) -> Config:
        """Return `config` with the plans of this schedule, as a checkpoint stores it."""
        if self.plans == Schedule(config).plans:
            return config
        changes = {"steps": self.steps, "plans": self.plans}
        return config.model_copy(update={"train": config.train.model_copy(update=changes)})

    def lr(self, step: int) -> float:
        """Return AdamW's learning rate at `step`, counted from 0. Muon's is in proportion."""
        begin, end = self._phase(step)[0]
        # 1) warmup of the first phase: linear, and at the peak in its last step
        if begin == 0 and step < self.warmup_steps:
            return self.scale * (self.peak * (step + 1) / self.warmup_steps)
        # 2) decay: linear, from the peak to the floor, which the step after the last would have
        peak = self.peak
        if begin > 0:
            peak = self._decayed(peak, _part(begin - self.warmup_steps, end - self.warmup_steps))
        rate = self._decayed(peak, self.part_done(step, start=self.warmup_steps))
        # 3) start of a later phase: a linear rise from the floor to the decay of case 2
        rise = self.rise_steps(begin, end)
        if begin > 0 and step < begin + rise:
            rate = self.floor + (step - begin + 1) / rise * (rate - self.floor)
        return self.scale * rate

    def _decayed(self, peak: float, part: Fraction) -> float:
        return self.floor + (1 - float(part)) * (peak - self.floor)

    def rise_steps(self, begin: int, end: int) -> int:
        """Return how many steps the learning rate rises in a later phase from `begin` to `end`."""
        return max(1, min(self.warmup_steps, (end - begin) // 10))

    def shape(self, step: int) -> tuple[int, int]:
        """Return (B, T) of the batch at `step`. B x T is the same for all steps.

        Early steps can have shorter windows, which cost less attention and suffice to learn short
        contexts (arXiv:2108.06084).
        """
        T = self.short_T if self._is_short(step) else self.T
        return self.batch_size * self.T // T, T

    @property
    def short_steps(self) -> int:
        """Number of steps that use short windows, if `train.first_window` is set."""
        return bisect_left(range(self.steps), True, key=lambda step: not self._is_short(step))

    def _is_short(self, step: int) -> bool:
        plans = self._phase(step)
        return plans[0][0] == 0 and _done(step + 1, plans) <= SHORT_PART

    def short_part_after(self, step: int) -> float:
        """Return the fraction of the steps from `step` on that use short windows."""
        done = self.part_done(step)
        if self.phase_start(step) > 0 or done == 1:
            return 0.0
        return float(max(SHORT_PART - done, Fraction()) / (1 - done))

    def is_due(self, step: int, every: int | str) -> bool:
        """Return whether an event is due after `step` steps.

        Every event is due before the first step, after the last one and where a phase starts.

        Args:
            step: the number of steps done.
            every: the event's period, in steps or as a part of a phase, such as `10 %`.
        """
        if step >= self.steps or step == self.phase_start(step):
            return True
        return self.times_due(every, step - 1) > self.times_due(every, step)

    def times_due(self, every: int | str, after: int = 0) -> int:
        """Return how often an event is still due after step `after`: see `is_due`."""
        if isinstance(every, int):
            return -(-self.steps // every) - after // every
        return math.ceil(1 / _as_part(every)) - self.part_done(after) // _as_part(every)

    def steps_due(self, every: int | str) -> Iterator[int]:
        """Yield all steps at which an event is due, some perhaps twice: see `is_due`."""
        starts = [at for at, _ in self.plans[1:] if self.phase_start(at) == at]
        if isinstance(every, int):
            yield from sorted({*range(0, self.steps, every), *starts})
        else:
            part = _as_part(every)
            for begin, end in pairwise([0, *starts, self.steps]):
                for i in range(math.ceil(1 / part)):
                    yield begin + bisect_left(range(begin, end), i * part, key=self.part_done)
        yield self.steps

    def phase_start(self, step: int) -> int:
        """Return the first step of the phase that `step` is in."""
        return self._phase(step)[0][0]

    def part_done(self, step: int, start: int = 0) -> Fraction:
        """Return the fraction of its phase that is done before `step`, from 0 to 1.

        It is 0 until step `start` and linear between plans. After a new plan, its slope is the one
        that reaches 1 at the new end.
        """
        return _done(step, self._phase(step), start)

    def _phase(self, step: int) -> list[Plan]:
        """Return the plans up to `step` of its phase. The first one starts the phase."""
        plans = [self.plans[0]]
        for plan in self.plans[1:]:
            if plan[0] > step:
                break
            if plan[0] >= plans[-1][1]:
                plans.clear()
            plans.append(plan)
        return plans


def _done(step: int, plans: list[Plan], start: int = 0) -> Fraction:
    (begin, end), *replans = plans
    done, since = Fraction(0), max(begin, start)
    for planned_at, planned_end in replans:
        if planned_at > since:
            done += (1 - done) * _part(planned_at - since, end - since)
            since = planned_at
        end = planned_end
    return done + (1 - done) * _part(step - since, end - since)


def _part(steps: int, total: int) -> Fraction:
    """Return the fraction that `steps` are of `total`, from 0 to 1."""
    return min(Fraction(1), max(Fraction(0), Fraction(steps, max(1, total))))


def _as_part(every: str) -> Fraction:
    return Fraction(every.removesuffix(" %")) / 100


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
