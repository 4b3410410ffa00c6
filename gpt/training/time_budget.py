"""Compute how many steps fit into `train.minutes`; refuse too few minutes."""

import math

from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.config.section import MAX_COUNT
from gpt.config.train_config import TrainConfig
from gpt.errors import UsageError
from gpt.training.schedule import Schedule
from gpt.training.stopwatch import CHARACTER, MIN_STEP_S, SAMPLING, Stopwatch

FREE_PART = 0.01  # fraction of the command's time that stays unplanned
AFTERWARDS_S = 3.0  # seconds reserved for the picture and the printed sample after training
CURVE_PART = 0.03  # largest fraction of train.minutes for all evaluations but the last
MIN_EVAL_CHARACTERS = 10_000  # smallest part of val that an evaluation scores


class TimeBudget:
    """The time limit of a run; computes how many steps fit, by the times of `stopwatch`."""

    def __init__(
        self, minutes: float | None, val_ids: int, stopwatch: Stopwatch, elapsed_before: float = 0.0
    ) -> None:
        self.limit_s = 60 * (minutes or math.inf)
        self.val_ids = val_ids  # number of ids of val that are scored
        self.stopwatch = stopwatch  # its clock counts from the start of the command
        self.elapsed_before = elapsed_before  # seconds of training before a resume
        self.given_s = self.limit_s - elapsed_before  # seconds that this command may use

    @property
    def used_s(self) -> float:
        """Seconds of `train.minutes` used so far, over all resumes."""
        return self.elapsed_before + self.stopwatch.clock()

    @property
    def remaining_s(self) -> float:
        """Seconds of `train.minutes` that remain for training and evaluations."""
        return self.limit_s - FREE_PART * self.given_s - AFTERWARDS_S - self.used_s

    def total_steps(
        self, train: TrainConfig, schedule: Schedule, step: int = 0, whole_splits: int = 1
    ) -> int:
        """Return how many steps the whole run has time for at `step`, but at least `step` + 1.

        With `train.eval_characters`, reserve time to score all of val `whole_splits` times.
        """
        part = train.eval_characters
        fixed_s = whole_splits * self.score_s(self.val_ids) if part else 0.0
        step_s = self.step_s(schedule, step)
        eval_s = self.score_s(part or self.val_ids) + self.stopwatch.other_s(SAMPLING)
        if train.eval_every.steps is not None:
            step_s += eval_s / train.eval_every.steps
        else:
            fixed_s += schedule.times_due(train.eval_every, step) * eval_s
        steps = int((self.remaining_s - fixed_s) / max(step_s, MIN_STEP_S))
        return max(step + 1, min(step + steps, train.max_steps or MAX_COUNT))

    def fitting_steps(self, train: TrainConfig, schedule: Schedule, step: int) -> int:
        """Return `total_steps` for a plan made at `step`; raise UsageError if no step fits."""
        step_s = self.step_s(schedule, step)
        closing_s = self.score_s(self.val_ids) + self.stopwatch.other_s(SAMPLING)
        if (missing_s := step_s + closing_s - self.remaining_s) > 0:
            raise UsageError(
                f"train.minutes {self.limit_s / 60:.2g} is too short for one step: "
                f"{self.used_s:.1f} s are used, a step takes {step_s:.2g} s, and evaluating, "
                f"saving and sampling at the end take {closing_s + AFTERWARDS_S:.1f} s. Add at "
                f"least {1.2 * missing_s / 60 + 0.01:.2f} minutes"
            )
        return self.total_steps(train, schedule, step)

    def limit_evaluations(self, config: Config) -> Config:
        """Return `config`, with `train.eval_characters` set if scoring all of val is too slow.

        With this setting, all evaluations but the last take about CURVE_PART of the time.
        """
        schedule = Schedule(config)
        steps = int(self.remaining_s / max(self.step_s(schedule), MIN_STEP_S))
        schedule.replan(0, max(1, steps))
        before_last = schedule.times_due(config.train.eval_every) - 1  # the last scores all of val
        whole_s, affordable_s = before_last * self.score_s(self.val_ids), CURVE_PART * self.limit_s
        if config.train.eval_characters or whole_s <= affordable_s:
            return config
        part = max(MIN_EVAL_CHARACTERS, int(affordable_s / whole_s * self.val_ids))
        return load_config(config, [f"train.eval_characters={part}"])

    def step_s(self, schedule: Schedule, step: int = 0) -> float:
        """Return the expected seconds of a step, averaged from `step` to the end of the run."""
        short = schedule.short_part_after(step)
        short_s, long_s = map(self.stopwatch.step_s, (schedule.short_T, schedule.T))
        return short * short_s + (1 - short) * long_s

    def score_s(self, ids: int) -> float:
        """Return the seconds to score `ids` ids of val."""
        return min(ids, self.val_ids) * self.stopwatch.other_s(CHARACTER)


def plan_new_run(config: Config, budget: TimeBudget) -> Config:
    """Return a new run's config with as many `train.steps` as fit into `train.minutes`.

    If evaluations would take too much of the time, limit them by `train.eval_characters`. A config
    without `train.minutes`, or with `train.plans`, is returned unchanged.
    """
    if config.train.minutes is None or config.train.plans:
        return config
    config = budget.limit_evaluations(config)
    steps = budget.fitting_steps(config.train, Schedule(config), step=0)
    settings = [f"train.steps={steps}", f"train.plans=[[0, {steps}]]"]
    if steps < config.train.warmup_steps:
        settings.append("train.warmup_steps=null")  # the default, a tenth of the steps
    return load_config(config, settings)
