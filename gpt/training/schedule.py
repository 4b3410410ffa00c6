"""Learning rate, batch shape and due events (such as evaluations) of every step of a run.

They depend on the fraction of the run that is done, except for warmup and periods given in steps. A
plan is a pair: the step at which it was made, and the planned number of steps of the whole run. A
run with `train.minutes` makes a new plan when its speed changes. The fraction that is done stays
the same, so the learning rate does not jump and batches do not return to short windows.

A phase is the first training of a run, or a later one that adds steps to the finished run. A phase
ends near the minimal learning rate, so a later phase first raises the rate. Then the rate
decays as if there had been only one decay, from the warmup of the run to the end of the new phase.
"""

import math
from fractions import Fraction
from functools import lru_cache

from gpt.config.period import Period
from gpt.config.schema import Config

Plan = tuple[int, int]  # a step, and the number of steps of the whole run, planned at that step

SHORT_PART = Fraction(5, 6)  # fraction of a run, from its start, that uses `train.first_window`


class Schedule:
    """Learning rate and batch shape of each step, and when evaluations and checkpoints are due.

    Checkpoints store `plans` as `train.plans`. `lr_scale` is a factor of all learning rates. Each
    rollback after a divergence halves it.
    """

    def __init__(self, config: Config) -> None:
        train = config.train
        self.peak, self.floor = train.learning_rate, train.min_learning_rate
        self.warmup_steps, self.batch_size = train.warmup_steps, train.batch_size
        self.T = config.model.T
        self.short_T = train.first_window or self.T
        self.plans: tuple[Plan, ...] = train.plans
        self.unplanned: Plan = (0, train.steps)  # used while there are no plans
        self.lr_scale = 1.0

    @property
    def steps(self) -> int:
        """Number of steps of the whole run, by the newest plan."""
        return (self.plans or (self.unplanned,))[-1][1]

    def replan(self, step: int, steps: int) -> None:
        """At `step`, set the total of the run to `steps`; discard plans made at `step` or later."""
        plans = self.plans or (self.unplanned,)
        self.plans = (*(plan for plan in plans if plan[0] < step), (step, steps))

    def plan_at(self, step: int) -> int | None:
        """Return the total of steps in the plan made at `step`; None if no plan was made then."""
        return dict(self.plans).get(step)

    def stored(self, config: Config) -> Config:
        """Return `config` with `train.steps` and `train.plans` of this schedule."""
        if self.plans == config.train.plans:
            return config
        return config.changed(train={"steps": self.steps, "plans": self.plans})

    def lr(self, step: int) -> float:
        """Return AdamW's learning rate at `step`, counted from 0. Muon's is proportional to it."""
        begin, end = self._phase(step)[0]
        # 1) warmup of the first phase: a linear rise that reaches the peak in its last step
        if begin == 0 and step < self.warmup_steps:
            return self.lr_scale * (self.peak * (step + 1) / self.warmup_steps)
        # 2) linear decay from the peak; it would reach the floor one step after the last step
        peak = self.peak
        if begin > 0:
            peak = self._decayed(peak, _part(begin - self.warmup_steps, end - self.warmup_steps))
        rate = self._decayed(peak, self.part_done(step, start=self.warmup_steps))
        # 3) start of a later phase: a linear rise from the floor to the decay of case 2
        rise = max(1, min(self.warmup_steps, (end - begin) // 10))
        if begin > 0 and step < begin + rise:
            rate = self.floor + (step - begin + 1) / rise * (rate - self.floor)
        return self.lr_scale * rate

    def _decayed(self, peak: float, part: Fraction) -> float:
        return self.floor + (1 - float(part)) * (peak - self.floor)

    def shape(self, step: int) -> tuple[int, int]:
        """Return the shape (B, T) of the batch at `step`. B x T is the same for all steps.

        Early steps can have shorter windows. These take less time for attention, and are long
        enough to learn short contexts (arXiv:2108.06084).
        """
        plans = self._phase(step)
        is_short = plans[0][0] == 0 and _done(step + 1, plans) <= SHORT_PART
        T = self.short_T if is_short else self.T
        return self.batch_size * self.T // T, T

    def steps_of_each_shape(self) -> list[int]:
        """Return one step for each batch shape: `self.steps` and, if step 0 has another, 0."""
        return [self.steps] if self.shape(0) == self.shape(self.steps) else [self.steps, 0]

    def short_part_after(self, step: int) -> float:
        """Return which fraction of the steps from `step` on has windows of `train.first_window`."""
        done = self.part_done(step)
        if self._phase(step)[0][0] > 0 or done == 1:
            return 0.0
        return float(max(SHORT_PART - done, Fraction()) / (1 - done))

    def is_due(self, step: int, every: Period) -> bool:
        """Return whether an event with the period `every` is due after `step` steps.

        Every event is due at the start and at the end of a phase, except events with a period in
        minutes, which do not depend on the step.
        """
        if every.minutes is not None:
            return False
        if step >= self.steps or step == self._phase(step)[0][0]:
            return True
        return self.times_due(every, step - 1) > self.times_due(every, step)

    def times_due(self, every: Period, after: int = 0) -> int:
        """Return how many times an event with the period `every` is due after step `after`.

        `every` is in steps, or in percent of the phase. If the phase ends with step `after`, count
        the times in a new phase, which begins there.
        """
        if every.steps is not None:
            return math.ceil(self.steps / every.steps) - after // every.steps
        assert every.percent is not None  # minutes cannot be counted in steps
        part, done = Fraction(every.percent) / 100, self.part_done(after)
        return math.ceil(1 / part) - (0 if done == 1 else done // part)

    def part_done(self, step: int, start: int = 0) -> Fraction:
        """Return the fraction of the phase that is done before `step`, from 0 to 1.

        The fraction is 0 up to step `start`, and then grows linearly to 1 at the planned end. After
        a new plan, the fraction grows from its current value to 1 at the new end.
        """
        return _done(step, self._phase(step), start)

    def _phase(self, step: int) -> tuple[Plan, ...]:
        """Return the plans that the phase of `step` has made until `step`, oldest first."""
        plans = [self.plans[0] if self.plans else self.unplanned]
        for plan in self.plans[1:]:
            if plan[0] > step:
                break
            if plan[0] >= plans[-1][1]:
                plans.clear()
            plans.append(plan)
        return tuple(plans)


def _done(step: int, plans: tuple[Plan, ...], start: int = 0) -> Fraction:
    """Return the fraction of a phase done before `step`, given its `plans`; see `part_done`."""
    done, since, end = _done_at_last_plan(plans, start)
    return done + (1 - done) * _part(step - since, end - since)


@lru_cache(maxsize=16)  # called at every step; with many plans, a call takes milliseconds
def _done_at_last_plan(plans: tuple[Plan, ...], start: int) -> tuple[Fraction, int, int]:
    """Return the fraction done when the last plan was made, its step, and the planned end.

    A run of 100 steps is shortened to 80 at step 40, when 2/5 is done:

    >>> _done_at_last_plan(((0, 100), (40, 80)), start=0)
    (Fraction(2, 5), 40, 80)

    Steps before `start` do not count. If the last plan was made before step `start`, the fraction
    is 0, and `start` is returned as the step of the plan.
    """
    (begin, end), *replans = plans
    done, since = Fraction(0), max(begin, start)
    for planned_at, planned_end in replans:
        if planned_at > since:
            done += (1 - done) * _part(planned_at - since, end - since)
            since = planned_at
        end = planned_end
    return done, since, end


def _part(steps: int, total: int) -> Fraction:
    return min(Fraction(1), max(Fraction(0), Fraction(steps, max(1, total))))
