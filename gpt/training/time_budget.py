"""Predict how long work will take, and how many steps fit into `train.minutes`."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import torch

from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.config.section import MAX_COUNT
from gpt.distributed import Ranks
from gpt.errors import UsageError
from gpt.evaluation.loss import evaluate, timed_ids
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids
from gpt.training.members import Update
from gpt.training.schedule import Schedule

NEWEST_WEIGHT = 1 / 3  # weight of the newest measurement in the running mean
SAMPLING_S = 0.2  # assumed seconds for a sample and a checkpoint, before they are measured
PROBE_S, MAX_PROBES = 0.3, 9  # limits for measuring one kind of work: seconds, repetitions

SAMPLING, CHARACTER = "sampling", "character"  # kinds of work; see `Stopwatch`
Seconds = Mapping[int | str, float]
"""Seconds of each kind of work."""

FREE_PART = 0.01  # fraction of the command's time that stays unplanned
AFTERWARDS_S = 3.0  # seconds reserved for the picture and the printed sample after training
CHECK_PART = 0.02  # time between checks of the plan, as a fraction of the command's time
TOLERANCE = 0.03  # a larger error, as a fraction of the remaining steps, changes the plan
CURVE_PART = 0.03  # largest fraction of train.minutes for all evaluations but the last
WHOLE_PART = 0.25  # largest fraction of train.minutes for scoring all of val once
REDUCED_VAL = 0.2  # if val is made smaller: the fraction of WHOLE_PART that scoring it takes
MIN_EVAL_CHARACTERS = 10_000  # smallest part of val that an evaluation scores
MIN_STEP_S = 1e-6  # seconds; avoids a division by 0


class Stopwatch:
    """Running means of the seconds that each kind of work takes.

    The kinds are a training step (its key is the window length T), CHARACTER (scoring one
    character of val), and SAMPLING (the sample and the checkpoint after an evaluation).
    `probed` contains the seconds of steps and of a character that were measured before training.
    A lap is not recorded if it begins before `warmup` steps with its T, because they are slower.
    """

    def __init__(
        self, clock: Callable[[], float], probed: Seconds | None = None, warmup: int = 0
    ) -> None:
        self.clock, self.warmup = clock, warmup
        self._steps = Counter[int]()  # number of steps with each T before the recorded ones
        self.probed = dict(probed or {})
        self.seconds: dict[int | str, float] = {}  # mean of each kind of work, in training
        self._recent: dict[int | str, tuple[float, int]] = {}  # (seconds, count), not averaged yet
        self._since = clock()

    def start(self) -> None:
        """Start the first lap."""
        self._since = self.clock()

    def lap(self, work: int | str, times: int = 1) -> float:
        """Count the seconds since the last lap as `times` x `work`; return these seconds."""
        before, self._since = self._since, self.clock()
        if isinstance(work, int) and self._steps[work] < self.warmup:
            self._steps[work] += times
            return self._since - before
        seconds, count = self._recent.get(work, (0.0, 0))
        self._recent[work] = seconds + self._since - before, count + times
        return self._since - before

    def settle(self) -> None:
        """Update the running means with the times that `lap` recorded since the last call."""
        for work, (seconds, times) in self._recent.items():
            if times:
                mean = seconds / times
                before = self.seconds.get(work, mean)
                self.seconds[work] = before + NEWEST_WEIGHT * (mean - before)
        self._recent.clear()

    def step_s(self, T: int) -> float:
        """Return the mean seconds of a step with windows of `T` ids, measured or estimated.

        The estimate is the probed time, scaled by the slowdown since then of steps with another T.
        """
        both = [work for work in self.seconds if isinstance(work, int) and work in self.probed]
        slowdown = self.seconds[both[-1]] / self.probed[both[-1]] if both else 1.0
        return self.seconds.get(T, self.probed.get(T, 0.0) * slowdown)

    def other_s(self, work: str) -> float:
        """Return the measured or default seconds of `work`, which is CHARACTER or SAMPLING."""
        default = SAMPLING_S if work == SAMPLING else 0.0
        return self.seconds.get(work, self.probed.get(work, default))

    def probe(
        self,
        step: Callable[[int], object],
        update: Update,
        config: Config,
        val: Ids,
        ranks: Ranks,
        seconds: float = PROBE_S,
    ) -> None:
        """Measure the seconds of a step, and of scoring a character. All ranks must call this.

        `step` is `update.probe` or, if the weights may change, `update`. The model of `update`
        scores characters of `val`. Measure each kind of work for about `seconds`.
        """

        def finish_step(number: int) -> None:
            step(number)
            if update.device.type in ("cuda", "mps"):
                torch.accelerator.synchronize(update.device)

        schedule = Schedule(config)
        for number in schedule.steps_of_each_shape():
            T = schedule.shape(number)[1]
            if T not in self.probed:
                for _ in range(update.warmup - 1):  # `time` omits another step
                    step(number)
                self.probed[T] = self.time(partial(finish_step, number), ranks, seconds)
        part = val[: timed_ids(config.model.T, update.device) + 1]
        score_s = self.time(partial(evaluate, update.model, part), ranks, seconds)
        self.probed[CHARACTER] = score_s / (len(part) - 1) / ranks.size

    def time(self, work: Callable[[], object], ranks: Ranks, seconds: float = PROBE_S) -> float:
        """Return the mean seconds of calls of `work`; omit the first, slower one if possible."""
        times: list[float] = []
        while len(times) < MAX_PROBES and not ranks.any(sum(times) >= seconds):
            self.start()
            work()
            times.append(self.clock() - self._since)
        return sum(times[1:] or times) / len(times[1:] or times)


class TimeBudget:
    """Plans how many steps fit into `train.minutes`, and plans again if the speed changes.

    Without `train.minutes`, it plans nothing.
    """

    def __init__(
        self, config: Config, val_ids: int, stopwatch: Stopwatch, elapsed_before: float = 0.0
    ) -> None:
        self.config, self.stopwatch = config, stopwatch
        self.val_ids, self.elapsed_before = val_ids, elapsed_before  # val_ids: number of scored ids
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

    def val_part(self) -> float:
        """Return the fraction of val to keep: 1 if the config sets val, or scoring val is fast."""
        whole_s = self.score_s(self.val_ids)
        is_given = {"val_fraction", "val_source", "split"} & self.config.data.model_fields_set
        if is_given or whole_s <= WHOLE_PART * self.limit_s:
            return 1.0
        return REDUCED_VAL * WHOLE_PART * self.limit_s / whole_s

    def smaller_val_fraction(self, corpus: Corpus) -> float | None:
        """Return the `data.val_fraction` to use if scoring val takes too long, else None."""
        if (part := self.val_part()) == 1:
            return None
        least = 2 * (self.config.model.T + 2)  # twice the minimum: rounding may halve the fraction
        fraction = max(part * corpus.val_characters, least) / corpus.characters
        digit = 10.0 ** math.floor(math.log10(fraction))
        fraction = float(f"{math.floor(fraction / digit) * digit:.1g}")
        return fraction if fraction * corpus.characters < corpus.val_characters else None

    def first_plan(self) -> Config:
        """Return a new run's config with as many `train.steps` as fit into `train.minutes`.

        If evaluations would take too much of the time, limit them by `train.eval_characters`. A
        config without `train.minutes`, or with `train.plans`, is returned unchanged.
        """
        if self.config.train.minutes is None or self.config.train.plans:
            return self.config
        self.limit_evaluations()
        steps = self.first_total(Schedule(self.config), 0)
        settings = [f"train.steps={steps}", f"train.plans=[[0, {steps}]]"]
        if steps < self.config.train.warmup_steps:
            settings.append("train.warmup_steps=null")  # the default, a tenth of the steps
        return load_config(self.config, settings)

    def first_total(self, schedule: Schedule, step: int) -> int:
        """Return how many steps the run can have; raise UsageError if none fits after `step`."""
        step_s = self.step_s(schedule, step)
        closing_s = self.score_s(self.val_ids) + self.stopwatch.other_s(SAMPLING)
        if (missing_s := step_s + closing_s - self.remaining_s) > 0:
            raise UsageError(
                f"train.minutes {self.limit_s / 60:.2g} is too short for one step: "
                f"{self.used_s:.1f} s are used, a step takes {step_s:.2g} s, and evaluating, "
                f"saving and sampling at the end take {closing_s + AFTERWARDS_S:.1f} s. Add at "
                f"least {1.2 * missing_s / 60 + 0.01:.2f} minutes"
            )
        return self.total_steps(schedule, step)

    def new_total(self, schedule: Schedule, step: int, whole_splits: int) -> int | None:
        """Return, at `step`, the new number of steps of the whole run; None to keep the plan.

        With `train.eval_characters`, reserve time to score all of val `whole_splits` times.
        """
        if math.isinf(self.limit_s) or step >= schedule.steps or self.used_s < self.next_check_s:
            return None
        self.next_check_s = self.used_s + CHECK_PART * self.given_s
        self.stopwatch.settle()
        total = self.total_steps(schedule, step, whole_splits)
        error = abs(total - schedule.steps)
        return total if error > TOLERANCE * (schedule.steps - step) else None

    def total_steps(self, schedule: Schedule, step: int, whole_splits: int = 1) -> int:
        """Return how many steps the whole run has time for, but at least `step` + 1."""
        part = self.config.train.eval_characters
        fixed_s = whole_splits * self.score_s(self.val_ids) if part else 0.0
        step_s = self.step_s(schedule, step)
        eval_s = self.score_s(part or self.val_ids) + self.stopwatch.other_s(SAMPLING)
        if isinstance(every := self.config.train.eval_every, int):
            step_s += eval_s / every
        else:
            fixed_s += schedule.times_due(every, step) * eval_s
        steps = int((self.remaining_s - fixed_s) / max(step_s, MIN_STEP_S))
        return max(step + 1, min(step + steps, self.config.train.max_steps or MAX_COUNT))

    def step_s(self, schedule: Schedule, step: int) -> float:
        """Return the expected seconds of a step, averaged from `step` to the end of the run."""
        short = schedule.short_part_after(step)
        short_s, long_s = map(self.stopwatch.step_s, (schedule.short_T, schedule.T))
        return short * short_s + (1 - short) * long_s

    def score_s(self, ids: int) -> float:
        """Return the seconds to score `ids` ids of val."""
        return min(ids, self.val_ids) * self.stopwatch.other_s(CHARACTER)

    def fitting_steps(self) -> int:
        """Return how many steps of a new run fit into `train.minutes`, at least 1."""
        self.limit_evaluations()
        return self.total_steps(Schedule(self.config), 0)

    def limit_evaluations(self) -> None:
        """Limit evaluations by `train.eval_characters` if scoring all of val is too slow."""
        schedule, train = Schedule(self.config), self.config.train
        steps = int(self.remaining_s / max(self.step_s(schedule, 0), MIN_STEP_S))
        schedule.replan(0, max(1, steps))
        before_last = schedule.times_due(train.eval_every) - 1  # the last evaluation scores all val
        affordable_s = CURVE_PART * self.limit_s
        whole_s = before_last * self.score_s(self.val_ids)
        if not train.eval_characters and whole_s > affordable_s:
            part = max(MIN_EVAL_CHARACTERS, int(affordable_s / whole_s * self.val_ids))
            self.config = load_config(self.config, [f"train.eval_characters={part}"])
