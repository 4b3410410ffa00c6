"""Learning rate, batch shape and due events (such as evaluations) of every step of a run.

All three depend on the fraction of the run that is done. During training, a new plan can change the
number of steps of the run, to use all of `train.minutes`. The fraction that is done stays the same,
so the learning rate does not jump and batches do not return to short windows.

A finished run can be trained for longer. The added steps are a new phase of the run. The phase
before ended with the minimal learning rate, so the rate first rises again. It then decays as if
there had been only one decay, from the warmup of the run to the end of the new phase.
"""

import math
from bisect import bisect_left
from fractions import Fraction
from functools import lru_cache

from gpt.config.schema import Config

Plan = tuple[int, int]  # a step, and the number of steps of the whole run as planned at that step

SHORT_PART = Fraction(5, 6)  # fraction of a run, at its start, with windows of `train.first_window`


class Schedule:
    """Learning rate and batch shape of each step, and when evaluations and checkpoints are due.

    Attributes:
        plans: a tuple of (step, steps) pairs: from step `step` on, the run is planned to have
            `steps` steps in total. Without `train.minutes`, `plans` is empty until `replan` is
            called. A checkpoint stores `plans` as `train.plans`, to repeat the run.
        scale: factor of all learning rates. It is halved each time that training diverges and
            returns to a checkpoint.
    """

    def __init__(self, config: Config) -> None:
        train = config.train
        self.peak, self.floor = train.learning_rate, train.min_learning_rate
        self.warmup_steps, self.batch_size = train.warmup_steps, train.batch_size
        self.T = config.model.attention_window
        self.short_T = train.first_window or self.T
        self.plans: tuple[Plan, ...] = train.plans
        self.unplanned: Plan = (0, train.steps)  # used while there are no plans
        self.scale = 1.0

    @property
    def steps(self) -> int:
        """Number of steps of the whole run, which `replan` can change during training."""
        return (self.plans or (self.unplanned,))[-1][1]

    def replan(self, step: int, steps: int) -> None:
        """Change the number of steps of the whole run to `steps`, from step `step` on.

        Earlier changes from `step` or later on are discarded. There can be some after a rollback.
        """
        plans = self.plans or (self.unplanned,)
        self.plans = (*(plan for plan in plans if plan[0] < step), (step, steps))

    def stored(self, config: Config) -> Config:
        """Return `config` with the number of steps of this schedule, and the history of changes.

        The history, `train.plans`, lets a later run repeat this one without a clock.
        """
        if self.plans == config.train.plans:
            return config
        changes = {"steps": self.steps, "plans": self.plans}
        return config.model_copy(update={"train": config.train.model_copy(update=changes)})

    def lr(self, step: int) -> float:
        """Return AdamW's learning rate at `step`, counted from 0. Muon's is proportional to it."""
        begin, end = self._phase(step)[0]
        # 1) warmup of the first phase: linear, and at the peak in its last step
        if begin == 0 and step < self.warmup_steps:
            return self.scale * (self.peak * (step + 1) / self.warmup_steps)
        # 2) linear decay from the peak; it would reach the floor one step after the last
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
        """Return the number of warmup steps when a finished run is trained for longer.

        The added steps go from `begin` to `end`.
        """
        return max(1, min(self.warmup_steps, (end - begin) // 10))

    def shape(self, step: int) -> tuple[int, int]:
        """Return the shape (B, T) of the batch at `step`. B x T is the same for all steps.

        Early steps can have shorter windows. These take less time for attention, and are long
        enough to learn short contexts (arXiv:2108.06084).
        """
        T = self.short_T if self._is_short(step) else self.T
        return self.batch_size * self.T // T, T

    @property
    def short_steps(self) -> int:
        """Number of steps that use short windows. Use it only if `train.first_window` is set."""
        return bisect_left(range(self.steps), True, key=lambda step: not self._is_short(step))

    def _is_short(self, step: int) -> bool:
        plans = self._phase(step)
        return plans[0][0] == 0 and _done(step + 1, plans) <= SHORT_PART

    def short_part_after(self, step: int) -> float:
        """Return the fraction of the steps from `step` on with windows of `train.first_window`."""
        done = self.part_done(step)
        if self._phase(step)[0][0] > 0 or done == 1:
            return 0.0
        return float(max(SHORT_PART - done, Fraction()) / (1 - done))

    def is_due(self, step: int, every: int | str) -> bool:
        """Return whether an event, such as an evaluation, is due after `step` steps.

        Every event is due before the first step, after the last step, and where a resume added
        steps to a finished run.

        Args:
            step: the number of steps done.
            every: the event's period: a number of steps, or a percentage such as `10 %` of the run
                or of the steps that a resume added.
        """
        if step >= self.steps or step == self._phase(step)[0][0]:
            return True
        return self.times_due(every, step - 1) > self.times_due(every, step)

    def times_due(self, every: int | str, after: int = 0) -> int:
        """Return how many more times an event is due after step `after`, until the run ends.

        `every` is its period: a number of steps, or a percentage of the run such as `10 %`. If a
        finished run is continued, it is a percentage of the steps added.
        """
        if isinstance(every, int):
            return -(-self.steps // every) - after // every
        part = Fraction(every.removesuffix(" %")) / 100
        return math.ceil(1 / part) - self.part_done(after) // part

    def part_done(self, step: int, start: int = 0) -> Fraction:
        """Return the fraction of the training that is done before `step`, from 0 to 1.

        The fraction is 0 up to step `start`, and then grows linearly to 1 at the planned last step.
        If a new plan moves that step, the fraction does not jump: it grows from its current value
        to 1 at the new end. If a run that had reached its end is continued with more steps, the
        fraction covers only the steps added.
        """
        return _done(step, self._phase(step), start)

    def _phase(self, step: int) -> tuple[Plan, ...]:
        """Return the plans made in the current phase until `step`, the oldest first.

        A plan is a pair: the step at which it was made, and the number of steps of the run. A phase
        is one training of a run: the first one, or a later one that extends the finished run. The
        first plan of a later phase was made at the last step of the plan before.
        """
        plans = [self.plans[0] if self.plans else self.unplanned]
        for plan in self.plans[1:]:
            if plan[0] > step:
                break
            if plan[0] >= plans[-1][1]:
                plans.clear()
            plans.append(plan)
        return tuple(plans)


def _done(step: int, plans: tuple[Plan, ...], start: int = 0) -> Fraction:
    """Return the fraction of a phase that is done before `step`, from 0 to 1.

    A phase is the original run, or the steps that a resume added to a finished run.

    Args:
        step: a step of the phase.
        plans: pairs of the step at which the number of steps was planned, and this number.
        start: the fraction is 0 up to this step, and then grows to 1.
    """
    done, since, end = _done_at_last_plan(plans, start)
    return done + (1 - done) * _part(step - since, end - since)


@lru_cache(maxsize=16)  # every step needs it, and with many plans it takes milliseconds
def _done_at_last_plan(plans: tuple[Plan, ...], start: int) -> tuple[Fraction, int, int]:
    """Return how much of a phase was done when its number of steps was last changed.

    A phase is the original run, or the steps that a resume added to a finished run. A plan is a
    pair: the step at which it was made, and the step at which the phase is planned to end. For
    example, a run of 100 steps is shortened to 80 steps at step 40, when 2/5 is done:

    >>> _done_at_last_plan(((0, 100), (40, 80)), start=0)
    (Fraction(2, 5), 40, 80)

    Returns:
        The fraction done when the last plan was made; the step of that plan; and the step at which
        the phase ends as planned then. Only steps after `start` count as done, so if the last plan
        was made before `start`, the fraction is 0 and the second number is `start`.
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
    """Return `steps` / `total`, limited to values from 0 to 1."""
    return min(Fraction(1), max(Fraction(0), Fraction(steps, max(1, total))))
