"""Plan how many steps fit into `train.minutes`, at first and whenever the pace changes."""

import logging
import math
from collections.abc import Callable
from functools import partial

import torch

from gpt.config.load import load_config
from gpt.config.schema import MAX_COUNT, Config
from gpt.distributed.ranks import SINGLE, Ranks
from gpt.errors import UsageError
from gpt.evaluation.loss import evaluate
from gpt.text.batches import EVAL_CHARACTERS
from gpt.text.vocabulary import Ids
from gpt.training.ensemble_step import Update
from gpt.training.schedule import (
    phase_plans,
    short_part,
    times_due,
    window_length,
    with_plan,
)

log = logging.getLogger(__name__)

MARGIN = 0.01  # fraction of the time to keep free
AFTERWARDS_S = 3.0  # seconds after training: a picture, and the sample that the command prints
CHECKED_EVERY = 0.02  # fraction of the time between two checks of the plan
TOLERANCE = 0.03  # largest error of a plan, as a fraction of the remaining time
MIN_TOLERANCE = 0.005  # the same as a fraction of the whole time; the larger one counts
NEWEST = 1 / 3  # weight of the newest measurement in the running mean
EVALUATED = (
    0.05  # largest fraction of the time for evaluations, unless train.eval_characters is set
)
MIN_EVAL_CHARACTERS = 10_000
MIN_STEP_S = 1e-6  # seconds
SLACK = 1.2  # factor on the missing time in the advice: the next start may take longer
PROBED_S, PROBES = 0.3, 9  # most seconds and repetitions of one kind of work before a run

# kinds of work besides steps, which are known by their T
EVALUATION, CHARACTER, PICTURE = "evaluation", "character", "picture"


class Pace:
    """Running means of the seconds that each kind of work takes.

    The kinds are a step (known by the T of its windows), a scored CHARACTER, the sample and the
    checkpoint of each EVALUATION, and an occasional PICTURE.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[int | str, float] = {}
        self.probed: dict[int, float] = {}  # seconds of a backward pass alone, by T
        self._recent: dict[int | str, tuple[float, int]] = {}  # seconds, times
        self._since = clock()

    def start(self) -> None:
        """Start the clock of the next lap."""
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
                self.seconds[work] = before + NEWEST * (mean - before)
        self._recent.clear()

    def step_s(self, T: int) -> float:
        """Return the seconds of a step with windows of T, estimated if none was made yet."""
        made = [other for other in self.probed if other in self.seconds]
        ratio = self.seconds[made[-1]] / self.probed[made[-1]] if made else 1.0
        return self.seconds.get(T, self.probed.get(T, 0.0) * ratio)

    def probe(self, update: Update, val: Ids, config: Config, ranks: Ranks = SINGLE) -> None:
        """Measure backward passes and a short evaluation, without changing the model."""
        for step in (config.train.steps, 0):  # long windows, then short ones
            T = window_length(step, config)
            if T not in self.probed:
                self.probed[T] = self._seconds_of(partial(update.probe, step), ranks)
        some = val[: max(EVAL_CHARACTERS, config.model.T) * torch.get_num_threads() + 1]
        score = partial(evaluate, update.model, some)
        self.seconds[CHARACTER] = self._seconds_of(score, ranks) / (len(some) - 1) / ranks.size

    def _seconds_of(self, work: Callable[[], object], ranks: Ranks) -> float:
        """Return the mean seconds of several calls; the first one counts only if it is slow."""
        times: list[float] = []
        while len(times) < PROBES and not ranks.any(sum(times) >= PROBED_S):
            self.start()
            work()
            times.append(self.clock() - self._since)
        return sum(times[1:] or times) / len(times[1:] or times)


class TimeBudget:
    """The time of `train.minutes`, and the steps that fit. Without `train.minutes`, plans nothing.

    Args:
        config: the settings of the run.
        update: the training step to measure.
        val: the ids of the val split.
        clock: returns the seconds since the command began.
        elapsed_before: seconds of training of the commands that this one resumes.
        pace: measured already, in place of `update` and `clock`.
        ranks: the processes that train.
    """

    def __init__(
        self,
        config: Config,
        update: Update,
        val: Ids,
        clock: Callable[[], float],
        elapsed_before: float = 0.0,
        pace: Pace | None = None,
        ranks: Ranks = SINGLE,
    ) -> None:
        self.ranks = ranks
        self.limit_s = 60 * (config.train.minutes or math.inf)
        self.val_characters, self.elapsed_before = len(val) - 1, elapsed_before
        self.given_s = self.limit_s - elapsed_before  # of this command
        self.pace = pace or Pace(clock)
        if pace is None and config.train.minutes is not None:
            self.pace.probe(update, val, config, ranks)
        self.next_check_s = self.used_s + CHECKED_EVERY * self.given_s / 2

    def check_soon(self, step: int, config: Config) -> None:
        """Schedule an early check, for a plan that was made for other minutes."""
        fixed_s, step_s = self._costs(step, config, wholes=0)
        planned_s = fixed_s + (config.train.steps - step) * step_s
        self.next_check_s = self.used_s + CHECKED_EVERY / 2 * min(self.given_s, planned_s)

    @property
    def used_s(self) -> float:
        """Seconds used so far, over all resumes."""
        return self.elapsed_before + self.pace.clock()

    @property
    def remaining_s(self) -> float:
        """Seconds that remain for training."""
        return self.limit_s - MARGIN * self.given_s - AFTERWARDS_S - self.used_s

    @property
    def evaluated_part(self) -> float:
        """Fraction of the time that an evaluation of the whole val split takes."""
        return self._evaluation_s(self.val_characters) / self.limit_s

    def first_plan(self, config: Config) -> Config:
        """Return the config of a new run with as many steps as fit; unchanged if it has plans.

        If evaluations would take too much of the time, they use a part of the val split.

        Raises:
            UsageError: there is not enough time for one step.
        """
        if config.train.minutes is None or config.train.plans:
            return config
        config = self._with_short_evaluations(config)
        self._check_fits(0, config)
        steps, warmup = self._end(0, config), config.train.warmup_steps
        if (
            "warmup_steps" in config.train.model_fields_set and steps < warmup
        ):  # else it is derived from steps
            log.warning(
                "train.warmup_steps %d: about %d steps fit into train.minutes, so the learning "
                "rate will not reach its peak; set fewer warmup steps, or more minutes",
                *(warmup, steps),
            )
            steps = warmup
        return load_config(config, [f"train.steps={steps}", f"train.plans=[[0, {steps}]]"])

    def extend(self, step: int, config: Config) -> Config:
        """Return the config to continue a finished run from `step` for the remaining time.

        The default of `train.rewarm_steps` is the run's warmup, or a tenth of the new steps if that
        is less.

        Raises:
            UsageError: there is not enough time for one step.
        """
        config = with_plan(config, step, step + 1)
        self._check_fits(step, config)
        end = self._end(step, config, wholes=2)
        train = config.train
        rewarm = train.rewarm_steps or max(1, min(train.warmup_steps, (end - step) // 10))
        train = train.model_copy(update={"rewarm_steps": rewarm})
        return with_plan(config.model_copy(update={"train": train}), step, end)

    def _check_fits(self, step: int, config: Config) -> None:
        """Raise UsageError, with the shortest time that works, if not even one step fits."""
        step_s = self._step_s(step, config)
        after_s = self._evaluation_s(self.val_characters) + AFTERWARDS_S
        missing_s = step_s + after_s - AFTERWARDS_S - self.remaining_s
        if missing_s <= 0:
            return
        least = math.ceil(100 * (self.given_s + SLACK * missing_s) / 60) / 100
        raise UsageError(
            f"train.minutes {self.given_s / 60:.2g} is too short for one step. Starting took "
            f"{self.pace.clock():.1f} s, a step takes {_short_s(step_s)}, and the evaluation at "
            f"the end, saving and a sample {after_s:.1f} s. Use --minutes {least:g} or more"
        )

    def new_end(self, step: int, config: Config, wholes: int = 0) -> int | None:
        """Return a new number of steps of the run; None if the current plan is good enough.

        Args:
            step: the number of steps done.
            config: the config with the current plan.
            wholes: how often the whole val split is scored at the end, with train.eval_characters.
        """
        if math.isinf(self.limit_s) or step >= config.train.steps:
            return None
        return self.ranks.broadcast(
            self._new_end, step, config, wholes
        )  # one clock decides for all ranks

    def _new_end(self, step: int, config: Config, wholes: int) -> int | None:
        if self.used_s < self.next_check_s:
            return None
        self.next_check_s = self.used_s + CHECKED_EVERY * self.given_s
        self.pace.settle()
        fixed_s, step_s = self._costs(step, config, wholes)
        late_s = fixed_s + (config.train.steps - step) * step_s - self.remaining_s
        end = self._end(step, config, wholes)
        tolerance_s = max(TOLERANCE * self.remaining_s, MIN_TOLERANCE * self.given_s)
        return end if abs(late_s) > tolerance_s and end != config.train.steps else None

    def _end(self, step: int, config: Config, wholes: int = 1) -> int:
        """Return the step at which the time will be over, at least `step` + 1."""
        fixed_s, step_s = self._costs(step, config, wholes)
        steps = int((self.remaining_s - fixed_s) / max(step_s, MIN_STEP_S))
        return max(step + 1, min(step + steps, config.train.max_steps or MAX_COUNT))

    def _costs(self, step: int, config: Config, wholes: int) -> tuple[float, float]:
        """Return the seconds that do not depend on the number of steps, and those of each step."""
        train, all_s = config.train, self._evaluation_s(self.val_characters)
        every, part = train.eval_every, train.eval_characters
        evaluation_s = self._evaluation_s(part) if part else all_s
        fixed_s, step_s = evaluation_s, self._step_s(step, config)
        if evaluation_s < all_s:
            fixed_s += wholes * all_s
        if isinstance(every, int):
            return fixed_s, step_s + evaluation_s / every
        after = max(phase_plans(step, train)[0][0], step - 1)
        return fixed_s + (times_due(every, train, after) - 1) * evaluation_s, step_s

    def _step_s(self, step: int, config: Config) -> float:
        """Return the mean seconds of the remaining steps."""
        short = short_part(step, config.train)
        first = config.train.first_window or config.model.T
        return short * self.pace.step_s(first) + (1 - short) * self.pace.step_s(config.model.T)

    def _evaluation_s(self, characters: int) -> float:
        """Return the seconds of an evaluation on `characters`, with its sample and checkpoint."""
        seconds = self.pace.seconds
        score_s = min(characters, self.val_characters) * seconds.get(CHARACTER, 0.0)
        return seconds.get(EVALUATION, 0.0) + score_s

    def _with_short_evaluations(self, config: Config) -> Config:
        """Set `train.eval_characters` if evaluations would take too much of the time."""
        if config.train.eval_characters:
            return config
        steps = max(1, int(self.remaining_s / max(self._step_s(0, config), MIN_STEP_S)))
        train = config.train.model_copy(update={"steps": steps})
        on_the_way = times_due(train.eval_every, train) - 1  # the last one scores all of val
        affordable = EVALUATED * self.limit_s / self._evaluation_s(self.val_characters)
        if on_the_way <= affordable:
            return config
        part = int(affordable / 2 / on_the_way * self.val_characters)
        return load_config(config, [f"train.eval_characters={max(MIN_EVAL_CHARACTERS, part)}"])


def _short_s(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.2g} ms"
