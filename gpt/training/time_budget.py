"""Plan how many steps fit into `train.minutes`, and plan again if the training speed changes."""

import logging
import math
from collections.abc import Callable
from functools import partial

from gpt.config.load import load_config
from gpt.config.schema import MAX_COUNT, Config
from gpt.distributed.ranks import Ranks
from gpt.errors import UsageError
from gpt.evaluation.loss import evaluate, timed_ids
from gpt.text.vocabulary import Ids
from gpt.training.build_step import Update
from gpt.training.run_context import RunContext
from gpt.training.schedule import Schedule

log = logging.getLogger(__name__)

FREE_PART = 0.01  # fraction of the time that stays unplanned
AFTERWARDS_S = 3.0  # seconds after training: a picture, and the sample that the command prints
CHECK_PART = 0.02  # fraction of the time between two checks of the plan
TOLERANCE = 0.03  # largest error of a plan, as a fraction of the remaining steps
NEWEST_WEIGHT = 1 / 3  # weight of the newest measurement in the running mean
EVALUATION_SHARE = 0.05  # largest fraction of the time for evaluations before the last one
MIN_EVAL_CHARACTERS = 10_000
MIN_STEP_S = 1e-6  # seconds
PROBE_S, MAX_PROBES = 0.3, 9  # seconds or repetitions after which measuring a kind of work ends

# kinds of work, as keys of `Stopwatch.seconds`; the key of a step is the T of its windows
EVALUATION, CHARACTER = "evaluation", "character"


class Stopwatch:
    """Running means of the seconds that each kind of work takes.

    The kinds are a training step (its key is the window length T), CHARACTER (scoring one
    character of val), and EVALUATION (the sample and checkpoint of an evaluation).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[int | str, float] = {}
        self.probed: dict[int, float] = {}  # seconds of a step before training, by T
        self._recent: dict[int | str, tuple[float, int]] = {}  # (seconds, times) since `settle`
        self._since = clock()

    def start(self) -> None:
        """Start the first lap."""
        self._since = self.clock()

    def lap(self, work: int | str, times: int = 1) -> None:
        """Attribute the time since the last lap to `work`, which was done `times` times."""
        before, self._since = self._since, self.clock()
        seconds, count = self._recent.get(work, (0.0, 0))
        self._recent[work] = seconds + self._since - before, count + times

    def settle(self) -> None:
        """Update the running means with the times that `lap` recorded since the last call."""
        for work, (seconds, times) in self._recent.items():
            if times:
                mean = seconds / times
                before = self.seconds.get(work, mean)
                self.seconds[work] = before + NEWEST_WEIGHT * (mean - before)
        self._recent.clear()

    def step_s(self, T: int) -> float:
        """Return the measured or estimated mean seconds of a step with windows of `T` ids."""
        ratios = [self.seconds[made] / s for made, s in self.probed.items() if made in self.seconds]
        return self.seconds.get(T, self.probed.get(T, 0.0) * (ratios or [1.0])[-1])

    def probe(self, step: Callable[[int], object], update: Update, context: RunContext) -> None:
        """Measure the seconds of a step, and of scoring a character.

        Every rank must call this method.

        Args:
            step: computes a step, given its number, as `update.probe` does.
            update: the TrainStep or EnsembleStep whose model scores the characters.
            context: the settings and the text of the run.
        """
        config, ranks, val = context.config, context.ranks, context.corpus.val
        schedule = Schedule(config)
        for number in (schedule.steps, 0):  # long windows, then short ones
            T = schedule.shape(number)[1]
            if T not in self.probed:
                self.probed[T] = self.time(partial(step, number), ranks)
        self.start()
        part = val[: timed_ids(config.model.T, update.device) + 1]
        score_s = self.time(partial(evaluate, update.model, part), ranks)
        self.seconds[CHARACTER] = score_s / (len(part) - 1) / ranks.size

    def time(self, work: Callable[[], object], ranks: Ranks) -> float:
        """Return the mean seconds of a few calls of `work`, ignoring the first, slower call."""
        times: list[float] = []
        while len(times) < MAX_PROBES and not ranks.any(sum(times) >= PROBE_S):
            self.start()
            work()
            times.append(self.clock() - self._since)
        return sum(times[1:] or times) / len(times[1:] or times)


class TimeBudget:
    """Plans how many steps fit into `train.minutes`. Without that setting, it plans nothing."""

    def __init__(
        self, config: Config, val: Ids, stopwatch: Stopwatch, elapsed_before: float = 0.0
    ) -> None:
        self.train, self.stopwatch = config.train, stopwatch
        self.val_characters, self.elapsed_before = len(val) - 1, elapsed_before
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

    def first_plan(self, config: Config) -> Config:
        """Return the config of a new run with the number of steps that fit into `train.minutes`.

        If evaluations would take too much of the time, limit them by `train.eval_characters`. A
        config without `train.minutes`, or with `train.plans` of an earlier run, does not change.
        """
        if config.train.minutes is None or config.train.plans:
            return config
        config = self._with_short_evaluations(config)
        self.train = config.train
        steps = self.first_end(Schedule(config), 0)
        settings = [f"train.steps={steps}", f"train.plans=[[0, {steps}]]"]
        if steps < config.train.warmup_steps:
            settings.append("train.warmup_steps=null")  # a tenth of the steps
        return load_config(config, settings)

    def first_end(self, schedule: Schedule, step: int) -> int:
        """Return how many steps the whole run can have.

        Raises:
            UsageError: no further step fits.
        """
        step_s, end_s = self.step_s(schedule, step), self.evaluation_s(self.val_characters)
        missing_s = step_s + end_s - self.remaining_s
        if missing_s > 0:
            raise UsageError(
                f"train.minutes {self.limit_s / 60:.2g} is too short for one step: "
                f"{self.used_s:.1f} s are used, a step takes {step_s:.2g} s, and the evaluation "
                f"at the end, saving and a sample {end_s + AFTERWARDS_S:.1f} s. Add at least "
                f"{1.2 * missing_s / 60 + 0.01:.2f} minutes"
            )
        return self._end(schedule, step, whole_splits=1)

    def new_end(self, schedule: Schedule, step: int, whole_splits: int) -> int | None:
        """Return, at `step`, the new number of steps of the whole run; None to keep the plan.

        If evaluations score a part of val, reserve time to score all of val `whole_splits` times.
        """
        if math.isinf(self.limit_s) or step >= schedule.steps or self.used_s < self.next_check_s:
            return None
        self.next_check_s = self.used_s + CHECK_PART * self.given_s
        self.stopwatch.settle()
        end = self._end(schedule, step, whole_splits)
        error = abs(end - schedule.steps)
        return end if error > TOLERANCE * (schedule.steps - step) else None

    def _end(self, schedule: Schedule, step: int, whole_splits: int) -> int:
        """Return how many steps the whole run can have, at least `step` + 1; see `new_end`."""
        every, part = self.train.eval_every, self.train.eval_characters
        whole_s = self.evaluation_s(self.val_characters)
        evaluation_s = self.evaluation_s(part) if part else whole_s
        fixed_s, step_s = evaluation_s, self.step_s(schedule, step)
        if evaluation_s < whole_s:
            fixed_s += whole_splits * whole_s
        if isinstance(every, int):
            step_s += evaluation_s / every
        else:
            fixed_s += (schedule.times_due(every, step) - 1) * evaluation_s
        steps = int((self.remaining_s - fixed_s) / max(step_s, MIN_STEP_S))
        return max(step + 1, min(step + steps, self.train.max_steps or MAX_COUNT))

    def step_s(self, schedule: Schedule, step: int) -> float:
        """Return the expected seconds of a step, averaged from `step` to the end of the run."""
        short = schedule.short_part_after(step)
        short_s, long_s = map(self.stopwatch.step_s, (schedule.short_T, schedule.T))
        return short * short_s + (1 - short) * long_s

    def evaluation_s(self, characters: int) -> float:
        """Return the seconds to score `characters` characters, sample, and save a checkpoint."""
        seconds = self.stopwatch.seconds
        score_s = min(characters, self.val_characters) * seconds.get(CHARACTER, 0.0)
        return seconds.get(EVALUATION, 0.0) + score_s

    def _with_short_evaluations(self, config: Config) -> Config:
        schedule = Schedule(config)
        steps = int(self.remaining_s / max(self.step_s(schedule, 0), MIN_STEP_S))
        schedule.replan(0, max(1, steps))
        before_last = schedule.times_due(config.train.eval_every) - 1  # the last scores all of val
        affordable = EVALUATION_SHARE * self.limit_s / self.evaluation_s(self.val_characters)
        if config.train.eval_characters or before_last <= affordable:
            return config
        part = int(affordable / 2 / before_last * self.val_characters)
        return load_config(config, [f"train.eval_characters={max(MIN_EVAL_CHARACTERS, part)}"])
