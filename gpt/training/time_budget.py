"""Plan how many steps fit into `train.minutes`, at first and whenever the pace changes."""

import logging
import math
from collections.abc import Callable
from functools import partial

import torch

from gpt.config.load import load_config
from gpt.config.schema import MAX_COUNT, Config
from gpt.distributed.ranks import Ranks
from gpt.errors import UsageError, counted
from gpt.evaluation.loss import evaluate
from gpt.text.batches import EVAL_CHARACTERS
from gpt.text.vocabulary import Ids
from gpt.training.build_step import Update
from gpt.training.schedule import Schedule

log = logging.getLogger(__name__)

FREE_PART = 0.01  # fraction of the time that stays unplanned
AFTERWARDS_S = 3.0  # seconds after training: a picture, and the sample that the command prints
CHECK_PART = 0.02  # fraction of the time between two checks of the plan
TOLERANCE = 0.03  # largest error of a plan, as a fraction of the remaining time
MIN_TOLERANCE = 0.005  # the same as a fraction of the whole time; the larger one counts
NEWEST_WEIGHT = 1 / 3  # weight of the newest measurement in the running mean
EVALUATION_SHARE = 0.05  # largest fraction of the time for evaluations before the last one
EVALUATION_SHARE_TO_WARN = 0.5  # fraction of the time for the last evaluation
MIN_EVAL_CHARACTERS = 10_000
MIN_STEP_S = 1e-6  # seconds
START_RESERVE = 1.2  # factor on the missing time in the advice: the next start may take longer
PROBE_S, MAX_PROBES = 0.3, 9  # most seconds and repetitions of one kind of work before a run

# kinds of work besides steps, which are identified by their T
EVALUATION, CHARACTER, PICTURE = "evaluation", "character", "picture"


class Stopwatch:
    """Running means of the seconds that each kind of work takes.

    The kinds are a step (identified by the T of its windows), a scored CHARACTER, the sample and
    the checkpoint of each EVALUATION, and an occasional PICTURE.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[int | str, float] = {}
        self.probed: dict[int, float] = {}  # seconds of a backward pass alone, by T
        self._recent: dict[int | str, tuple[float, int]] = {}  # seconds, times
        self._since = clock()

    def start(self) -> None:
        """Start the first lap."""
        self._since = self.clock()

    def lap(self, work: int | str, times: int = 1) -> None:
        """Attribute the time since the last lap to `times` x `work`."""
        before, self._since = self._since, self.clock()
        seconds, count = self._recent.get(work, (0.0, 0))
        self._recent[work] = seconds + self._since - before, count + times

    def settle(self) -> None:
        """Update the running means with the laps since the last call."""
        for work, (seconds, times) in self._recent.items():
            if times:
                mean = seconds / times
                before = self.seconds.get(work, mean)
                self.seconds[work] = before + NEWEST_WEIGHT * (mean - before)
        self._recent.clear()

    def step_s(self, T: int) -> float:
        """Return the seconds of a step with windows of `T`, estimated if none was made yet."""
        made = [other for other in self.probed if other in self.seconds]
        ratio = self.seconds[made[-1]] / self.probed[made[-1]] if made else 1.0
        return self.seconds.get(T, self.probed.get(T, 0.0) * ratio)

    def probe(self, update: Update, val: Ids, config: Config, ranks: Ranks) -> None:
        """Measure backward passes and a short evaluation, without changing the model."""
        schedule = Schedule(config)
        for step in (schedule.steps, 0):  # long windows, then short ones
            T = schedule.shape(step)[1]
            if T not in self.probed:
                self.probed[T] = self._seconds_of(partial(update.probe, step), ranks)
        part = val[: max(EVAL_CHARACTERS, config.model.T) * torch.get_num_threads() + 1]
        score_s = self._seconds_of(partial(evaluate, update.model, part), ranks)
        self.seconds[CHARACTER] = score_s / (len(part) - 1) / ranks.size

    def _seconds_of(self, work: Callable[[], object], ranks: Ranks) -> float:
        """Return the mean seconds of several calls; the first one counts only if it is slow."""
        times: list[float] = []
        while len(times) < MAX_PROBES and not ranks.any(sum(times) >= PROBE_S):
            self.start()
            work()
            times.append(self.clock() - self._since)
        return sum(times[1:] or times) / len(times[1:] or times)


class TimeBudget:
    """The time of `train.minutes`, and the steps that fit. Without `train.minutes`, plans nothing.

    Rank 0 plans for all ranks.

    Args:
        config: the settings of the run.
        val: the ids of the val split.
        stopwatch: the seconds of each kind of work; its clock counts since the command began.
        elapsed_before: seconds of training of the commands that this one resumes.
    """

    def __init__(
        self, config: Config, val: Ids, stopwatch: Stopwatch, elapsed_before: float = 0.0
    ) -> None:
        self.train, self.stopwatch = config.train, stopwatch
        self.limit_s = 60 * (config.train.minutes or math.inf)
        self.val_characters, self.elapsed_before = len(val) - 1, elapsed_before
        self.given_s = self.limit_s - elapsed_before  # of this command
        self.next_check_s = self.used_s + CHECK_PART * self.given_s / 2

    @property
    def used_s(self) -> float:
        """Seconds used so far, over all resumes."""
        return self.elapsed_before + self.stopwatch.clock()

    @property
    def remaining_s(self) -> float:
        """Seconds that remain for training."""
        return self.limit_s - FREE_PART * self.given_s - AFTERWARDS_S - self.used_s

    def first_plan(self, config: Config) -> Config:
        """Return the config of a new run with as many steps as fit; unchanged if it has plans.

        If evaluations would take too much of the time, they use a part of the val split.

        Raises:
            UsageError: there is not enough time for one step.
        """
        if config.train.minutes is None or config.train.plans:
            return config
        config = self._with_short_evaluations(config)
        self.train, schedule = config.train, Schedule(config)
        self._check_fits(schedule, 0)
        steps, warmup = self._end(schedule, 0), config.train.warmup_steps
        if "warmup_steps" in config.train.model_fields_set and steps < warmup:
            log.warning(
                "train.warmup_steps %d: about %d steps fit into train.minutes, so the learning "
                "rate will not reach its peak; set fewer warmup steps, or more minutes",
                *(warmup, steps),
            )
            steps = warmup
        return load_config(config, [f"train.steps={steps}", f"train.plans=[[0, {steps}]]"])

    def log_first_plan(self, steps: int) -> None:
        """Log the number of steps, and warn if the last evaluation takes most of the time."""
        if self.train.minutes is None:
            return
        log.info(
            "about %s in %g min; the bar shows when that changes",
            *(counted(steps, "step"), self.train.minutes),
        )
        share = self._evaluation_s(self.val_characters) / self.limit_s
        if share > EVALUATION_SHARE_TO_WARN:
            log.warning(
                "the evaluation at the end takes about %.0f %% of the time: for more steps, set a "
                "smaller data.val_fraction, or more minutes",
                100 * min(share, 1.0),
            )

    def later_phase(self, schedule: Schedule, step: int) -> int:
        """Return the number of steps with which a finished run uses the remaining time.

        Raises:
            UsageError: there is not enough time for one step.
        """
        schedule.replan(step, step + 1)
        self._check_fits(schedule, step)
        return self._end(schedule, step, whole_splits=2)

    def check_soon(self, schedule: Schedule, step: int) -> None:
        """Schedule an early check, for a plan that was made for other minutes."""
        fixed_s, step_s = self._costs(schedule, step, whole_splits=0)
        planned_s = fixed_s + (schedule.steps - step) * step_s
        self.next_check_s = self.used_s + CHECK_PART / 2 * min(self.given_s, planned_s)

    def new_end(self, schedule: Schedule, step: int, whole_splits: int = 0) -> int | None:
        """Return a new number of steps of the run; None if the current plan is good enough.

        Args:
            schedule: the current plan.
            step: the number of steps done.
            whole_splits: how often the whole val split is scored at the end if
                `train.eval_characters` is set.
        """
        is_early = self.used_s < self.next_check_s
        if math.isinf(self.limit_s) or step >= schedule.steps or is_early:
            return None
        self.next_check_s = self.used_s + CHECK_PART * self.given_s
        self.stopwatch.settle()
        fixed_s, step_s = self._costs(schedule, step, whole_splits)
        late_s = fixed_s + (schedule.steps - step) * step_s - self.remaining_s
        end = self._end(schedule, step, whole_splits)
        tolerance_s = max(TOLERANCE * self.remaining_s, MIN_TOLERANCE * self.given_s)
        return end if abs(late_s) > tolerance_s and end != schedule.steps else None

    def _check_fits(self, schedule: Schedule, step: int) -> None:
        """Raise UsageError, with the shortest time that works, if not even one step fits."""
        step_s = self._step_s(schedule, step)
        evaluation_s = self._evaluation_s(self.val_characters)
        missing_s = step_s + evaluation_s - self.remaining_s
        if missing_s <= 0:
            return
        least = math.ceil(100 * (self.given_s + START_RESERVE * missing_s) / 60) / 100
        shown_s = f"{step_s:.1f} s" if step_s >= 1 else f"{1000 * step_s:.2g} ms"
        raise UsageError(
            f"train.minutes {self.given_s / 60:.2g} is too short for one step. Starting took "
            f"{self.stopwatch.clock():.1f} s, a step takes {shown_s}, and the evaluation at the "
            f"end, saving and a sample {evaluation_s + AFTERWARDS_S:.1f} s. Use --minutes "
            f"{least:g} or more"
        )

    def _end(self, schedule: Schedule, step: int, whole_splits: int = 1) -> int:
        """Return the step at which the time will be over, at least `step` + 1."""
        fixed_s, step_s = self._costs(schedule, step, whole_splits)
        steps = int((self.remaining_s - fixed_s) / max(step_s, MIN_STEP_S))
        return max(step + 1, min(step + steps, self.train.max_steps or MAX_COUNT))

    def _costs(self, schedule: Schedule, step: int, whole_splits: int) -> tuple[float, float]:
        """Return the seconds that do not depend on the number of steps, and those of each step."""
        every, part = self.train.eval_every, self.train.eval_characters
        whole_s = self._evaluation_s(self.val_characters)
        evaluation_s = self._evaluation_s(part) if part else whole_s
        fixed_s, step_s = evaluation_s, self._step_s(schedule, step)
        if evaluation_s < whole_s:
            fixed_s += whole_splits * whole_s
        if isinstance(every, int):
            return fixed_s, step_s + evaluation_s / every
        return fixed_s + (schedule.times_due(every, step) - 1) * evaluation_s, step_s

    def _step_s(self, schedule: Schedule, step: int) -> float:
        """Return the mean seconds of the steps from `step` on."""
        short, stopwatch = schedule.short_part_after(step), self.stopwatch
        return short * stopwatch.step_s(schedule.short_T) + (1 - short) * stopwatch.step_s(
            schedule.T
        )

    def _evaluation_s(self, characters: int) -> float:
        """Return the seconds of an evaluation on `characters`, with its sample and checkpoint."""
        seconds = self.stopwatch.seconds
        score_s = min(characters, self.val_characters) * seconds.get(CHARACTER, 0.0)
        return seconds.get(EVALUATION, 0.0) + score_s

    def _with_short_evaluations(self, config: Config) -> Config:
        """Set `train.eval_characters` if evaluations would take too much of the time."""
        if config.train.eval_characters:
            return config
        schedule = Schedule(config)
        steps = int(self.remaining_s / max(self._step_s(schedule, 0), MIN_STEP_S))
        schedule.replan(0, max(1, steps))
        before_last = schedule.times_due(config.train.eval_every) - 1  # the last scores all of val
        affordable = EVALUATION_SHARE * self.limit_s / self._evaluation_s(self.val_characters)
        if before_last <= affordable:
            return config
        part = int(affordable / 2 / before_last * self.val_characters)
        return load_config(config, [f"train.eval_characters={max(MIN_EVAL_CHARACTERS, part)}"])
