"""Predict how long work will take, and how many steps fit into `train.minutes`.

`Stopwatch` measures. `TimeBudget` plans the number of steps, and plans again if the speed changes.
"""

import math

from gpt.config.load import load_config
from gpt.config.schema import MAX_COUNT, Config
from gpt.errors import UsageError
from gpt.text.corpus import Corpus
from gpt.training.schedule import Schedule
from gpt.training.stopwatch import CHARACTER, SAMPLING, Stopwatch

FREE_PART = 0.01  # fraction of the time that stays unplanned
AFTERWARDS_S = 3.0  # seconds after training: a picture, and the sample that the command prints
CHECK_PART = 0.02  # fraction of the time between two checks of the plan
TOLERANCE = 0.03  # largest error of a plan, as a fraction of the remaining steps
CURVE_PART = 0.03  # largest fraction of the time for the evaluations before the last
WHOLE_PART = 0.25  # largest fraction of the time to score all of val
REDUCED_VAL = 0.2  # a val that is too large is cut to this fraction of what WHOLE_PART allows
MIN_EVAL_CHARACTERS = 10_000  # smallest part of val that an evaluation scores
MIN_STEP_S = 1e-6  # seconds; avoids a division by 0


class TimeBudget:
    """Plans how many steps fit into `train.minutes`; without that setting, plans nothing."""

    def __init__(
        self, config: Config, val_characters: int, stopwatch: Stopwatch, elapsed_before: float = 0.0
    ) -> None:
        self.train, self.stopwatch = config.train, stopwatch
        self.val_characters, self.elapsed_before = val_characters, elapsed_before
        self.limit_s = 60 * (config.train.minutes or math.inf)
        self.given_s = self.limit_s - elapsed_before  # seconds that this command may use
        self.next_check_s = self.used_s + CHECK_PART / 2 * self.given_s

    @property
    def used_s(self) -> float:
        """Seconds of `train.minutes` used so far, over all resumes."""
        return self.elapsed_before + self.stopwatch.clock()

    @property
    def remaining_s(self) -> float:
        """Seconds of `train.minutes` that remain for training and evaluations."""
        return self.limit_s - FREE_PART * self.given_s - AFTERWARDS_S - self.used_s

    def val_part(self, config: Config) -> float:
        """Return the fraction of val to keep: 1 if the user chose val, or scoring it is fast."""
        whole_s = self.score_s(self.val_characters)
        is_given = {"val_fraction", "val_source", "split"} & config.data.model_fields_set
        if is_given or whole_s <= WHOLE_PART * self.limit_s:
            return 1.0
        return REDUCED_VAL * WHOLE_PART * self.limit_s / whole_s

    def smaller_val_fraction(self, config: Config, corpus: Corpus) -> float | None:
        """Return the `data.val_fraction` to use if scoring val takes too long, else None."""
        if (part := self.val_part(config)) == 1:
            return None
        min_fraction = 2 * (config.model.T + 2) / corpus.characters  # rounding may halve it
        fraction = max(part * corpus.val_characters / corpus.characters, min_fraction)
        digit = 10.0 ** math.floor(math.log10(fraction))
        fraction = float(f"{math.floor(fraction / digit) * digit:.1g}")
        return fraction if fraction * corpus.characters < corpus.val_characters else None

    def first_plan(self, config: Config) -> Config:
        """Return the config of a new run with the number of steps that fit into `train.minutes`.

        If evaluations would take too much of the time, limit them by `train.eval_characters`. A
        config without `train.minutes`, or with `train.plans` of an earlier run, does not change.
        """
        if config.train.minutes is None or config.train.plans:
            return config
        config = self.with_short_evaluations(config)
        self.train = config.train
        steps = self.first_end(Schedule(config), 0)
        settings = [f"train.steps={steps}", f"train.plans=[[0, {steps}]]"]
        if steps < config.train.warmup_steps:
            settings.append("train.warmup_steps=null")  # the default, a tenth of the steps
        return load_config(config, settings)

    def first_end(self, schedule: Schedule, step: int) -> int:
        """Return how many steps the whole run can have; raise UsageError if not one more fits."""
        step_s = self.step_s(schedule, step)
        end_s = self.score_s(self.val_characters) + self.stopwatch.other_s(SAMPLING)
        if (missing_s := step_s + end_s - self.remaining_s) > 0:
            raise UsageError(
                f"train.minutes {self.limit_s / 60:.2g} is too short for one step: "
                f"{self.used_s:.1f} s are used, a step takes {step_s:.2g} s, and evaluating, "
                f"saving and sampling at the end take {end_s + AFTERWARDS_S:.1f} s. Add at least "
                f"{1.2 * missing_s / 60 + 0.01:.2f} minutes"
            )
        return self.end(schedule, step)

    def new_end(self, schedule: Schedule, step: int, whole_splits: int) -> int | None:
        """Return, at `step`, the new number of steps of the whole run; None to keep the plan.

        If evaluations score a part of val, reserve time to score all of val `whole_splits` times.
        """
        if math.isinf(self.limit_s) or step >= schedule.steps or self.used_s < self.next_check_s:
            return None
        self.next_check_s = self.used_s + CHECK_PART * self.given_s
        self.stopwatch.settle()
        end = self.end(schedule, step, whole_splits)
        error = abs(end - schedule.steps)
        return end if error > TOLERANCE * (schedule.steps - step) else None

    def end(self, schedule: Schedule, step: int, whole_splits: int = 1) -> int:
        """Return how many steps the whole run can have, at least `step` + 1; see `new_end`."""
        part = self.train.eval_characters
        fixed_s = whole_splits * self.score_s(self.val_characters) if part else 0.0
        step_s = self.step_s(schedule, step)
        eval_s = self.score_s(part or self.val_characters) + self.stopwatch.other_s(SAMPLING)
        if isinstance(every := self.train.eval_every, int):
            step_s += eval_s / every
        else:
            fixed_s += schedule.times_due(every, step) * eval_s
        steps = int((self.remaining_s - fixed_s) / max(step_s, MIN_STEP_S))
        return max(step + 1, min(step + steps, self.train.max_steps or MAX_COUNT))

    def step_s(self, schedule: Schedule, step: int) -> float:
        """Return the expected seconds of a step, averaged from `step` to the end of the run."""
        short = schedule.short_part_after(step)
        short_s, long_s = map(self.stopwatch.step_s, (schedule.short_T, schedule.T))
        return short * short_s + (1 - short) * long_s

    def score_s(self, characters: int) -> float:
        """Return the seconds to score `characters` characters of val."""
        return min(characters, self.val_characters) * self.stopwatch.other_s(CHARACTER)

    def fitting_steps(self, config: Config) -> int:
        """Return how many steps of a new run of `config` fit into the time, at least 1."""
        config = self.with_short_evaluations(config)
        self.train = config.train
        return self.end(Schedule(config), 0)

    def with_short_evaluations(self, config: Config) -> Config:
        """Return `config`; set `train.eval_characters` if scoring all of val takes too long."""
        schedule = Schedule(config)
        steps = int(self.remaining_s / max(self.step_s(schedule, 0), MIN_STEP_S))
        schedule.replan(0, max(1, steps))
        before_last = schedule.times_due(config.train.eval_every) - 1  # the last scores all of val
        affordable_s = CURVE_PART * self.limit_s
        whole_s = before_last * self.score_s(self.val_characters)
        if config.train.eval_characters or whole_s <= affordable_s:
            return config
        part = max(MIN_EVAL_CHARACTERS, int(affordable_s / whole_s * self.val_characters))
        return load_config(config, [f"train.eval_characters={part}"])
