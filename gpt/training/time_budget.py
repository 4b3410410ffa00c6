"""How many steps fit into `train.minutes`: planned at first, and again when the pace changes."""

import logging
import math
from collections.abc import Callable
from functools import partial

import torch

from gpt.config.load import load_config
from gpt.config.schema import LARGEST, Config
from gpt.distributed import any_rank, from_main, world_size
from gpt.errors import UsageError
from gpt.evaluation.loss import evaluate
from gpt.text.batches import EVAL_CHARACTERS
from gpt.text.vocabulary import Ids
from gpt.training.ensemble import Update
from gpt.training.schedule import (
    phase_plans,
    short_part,
    times_due,
    window_length,
    with_plan,
)

log = logging.getLogger(__name__)

MARGIN = 0.01  # of the time, which is left free
AFTERWARDS_S = 3.0  # for what follows training: a picture, the sample that the command prints
CHECKED_EVERY = 0.02  # of the time: how often a plan is compared with the pace
TOLERANCE = 0.03  # of the time that is left, by which a plan may miss the end,
LEAST_TOLERANCE = 0.005  # and of all of it
NEWEST = 1 / 3  # weight of what was measured since the last check
EVALUATED = 0.05  # of the time at most, unless train.eval_characters says on how much
FEWEST_EVAL_CHARACTERS = 10_000
SHORTEST_STEP_S = 1e-6
SLACK = 1.2  # times the time that is missing is advised: the next start may take longer
PROBED_S, PROBES = 0.3, 9  # seconds and times, at most, that one kind of work is tried before a run

# kinds of work, beside a step by the T of its windows
EVALUATION, CHARACTER, PICTURE = "evaluation", "character", "picture"


class Pace:
    """Seconds that each kind of work takes here, by what was measured last more than before.

    The kinds are a step (by the T of its windows), an evaluated CHARACTER, what comes with each
    EVALUATION (a sample, a checkpoint), and a PICTURE, which comes now and then.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[int | str, float] = {}
        self.probed: dict[int, float] = {}  # of a step's backward pass alone
        self._recent: dict[int | str, tuple[float, int]] = {}  # seconds, times
        self._since = clock()

    def start(self) -> None:
        """What is measured next begins now."""
        self._since = self.clock()

    def lap(self, work: int | str, times: int = 1) -> None:
        """What was done since the last lap was this work, so many times."""
        before, self._since = self._since, self.clock()
        seconds, count = self._recent.get(work, (0.0, 0))
        self._recent[work] = seconds + self._since - before, count + times

    def settle(self) -> None:
        """Take the laps since the last time into the averages."""
        for work, (seconds, times) in self._recent.items():
            if times:
                mean = seconds / times
                before = self.seconds.get(work, mean)
                self.seconds[work] = before + NEWEST * (mean - before)
        self._recent.clear()

    def step_s(self, T: int) -> float:
        """Seconds of a step with windows of T; where none was made yet, in proportion to others."""
        made = [other for other in self.probed if other in self.seconds]
        ratio = self.seconds[made[-1]] / self.probed[made[-1]] if made else 1.0
        return self.seconds.get(T, self.probed.get(T, 0.0) * ratio)

    def probe(self, update: Update, val: Ids, config: Config) -> None:
        """Try backward passes and a short evaluation, which leave everything as it was."""
        for step in (config.train.steps, 0):  # long windows, then short ones
            T = window_length(step, config)
            if T not in self.probed:
                self.probed[T] = self._seconds_of(partial(update.probe, step))
        some = val[: max(EVAL_CHARACTERS, config.model.T) * torch.get_num_threads() + 1]
        score = partial(evaluate, update.model, some)
        self.seconds[CHARACTER] = self._seconds_of(score) / (len(some) - 1) / world_size()

    def _seconds_of(self, work: Callable[[], object]) -> float:
        """The mean of several times but the first, which takes longer; only that if all is slow."""
        times: list[float] = []
        while len(times) < PROBES and not any_rank(sum(times) >= PROBED_S):
            self.start()
            work()
            times.append(self.clock() - self._since)
        return sum(times[1:] or times) / len(times[1:] or times)


class TimeBudget:
    """The time that `train.minutes` leaves, and the steps that fit; without it, nothing is planned.

    `clock` returns the seconds since the command began; `elapsed_before` is the training time, in
    seconds, of the commands that it resumes. A given `pace` was measured already.
    """

    def __init__(
        self,
        config: Config,
        update: Update,
        val: Ids,
        clock: Callable[[], float],
        elapsed_before: float = 0.0,
        pace: Pace | None = None,
    ) -> None:
        self.limit_s = 60 * (config.train.minutes or math.inf)
        self.val_characters, self.elapsed_before = len(val) - 1, elapsed_before
        self.given_s = self.limit_s - elapsed_before  # of this command
        self.pace = pace or Pace(clock)
        if pace is None and config.train.minutes is not None:
            self.pace.probe(update, val, config)
        self.next_check_s = self.used_s + CHECKED_EVERY * self.given_s / 2

    def check_soon(self, step: int, config: Config) -> None:
        """Compare a plan that was made for other minutes with the pace before it ends."""
        fixed_s, step_s = self._costs(step, config, wholes=0)
        planned_s = fixed_s + (config.train.steps - step) * step_s
        self.next_check_s = self.used_s + CHECKED_EVERY / 2 * min(self.given_s, planned_s)

    @property
    def used_s(self) -> float:
        """Seconds, over all resumes."""
        return self.elapsed_before + self.pace.clock()

    @property
    def left_s(self) -> float:
        """Seconds that training has left."""
        return self.limit_s - MARGIN * self.given_s - AFTERWARDS_S - self.used_s

    @property
    def evaluated_part(self) -> float:
        """How much of the time one evaluation takes, of the whole val split."""
        return self._evaluation_s(self.val_characters) / self.limit_s

    def first_plan(self, config: Config) -> Config:
        """Return the config of a new run with as many steps as fit, unless they are planned.

        If evaluations would take too much of the time, they are on a part of the val split.

        Raises:
            UsageError: there is no time for a step.
        """
        if config.train.minutes is None or config.train.plans:
            return config
        config = self._with_short_evaluations(config)
        self._check_fits(0, config)
        steps, warmup = self._end(0, config), config.train.warmup_steps
        if "warmup_steps" in config.train.model_fields_set and steps < warmup:  # else it follows
            log.warning(
                "train.warmup_steps %d: about %d steps fit into train.minutes, so the learning "
                "rate will not reach its peak; set fewer warmup steps, or more minutes",
                *(warmup, steps),
            )
            steps = warmup
        return load_config(config, [f"train.steps={steps}", f"train.plans=[[0, {steps}]]"])

    def extend(self, step: int, config: Config) -> Config:
        """Return the config of a finished run that trains on from `step` for the time given.

        Without `train.rewarm_steps`, that is the run's warmup, or a tenth of the steps if shorter.

        Raises:
            UsageError: there is no time for a step.
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
        missing_s = step_s + after_s - AFTERWARDS_S - self.left_s
        if missing_s <= 0:
            return
        least = math.ceil(100 * (self.given_s + SLACK * missing_s) / 60) / 100
        raise UsageError(
            f"train.minutes {self.given_s / 60:.2g} is too short for one step. Starting took "
            f"{self.pace.clock():.1f} s, a step takes {_short_s(step_s)}, and the evaluation at "
            f"the end, saving and a sample {after_s:.1f} s. Use --minutes {least:g} or more"
        )

    def new_end(self, step: int, config: Config, wholes: int = 0) -> int | None:
        """The steps of the whole run that fit, if those that are planned miss the end; else None.

        `wholes`: how often the whole val split is scored at the end, if a part is on the way.
        """
        if math.isinf(self.limit_s) or step >= config.train.steps:
            return None
        return from_main(self._new_end, step, config, wholes)  # by the clock of one

    def _new_end(self, step: int, config: Config, wholes: int) -> int | None:
        if self.used_s < self.next_check_s:
            return None
        self.next_check_s = self.used_s + CHECKED_EVERY * self.given_s
        self.pace.settle()
        fixed_s, step_s = self._costs(step, config, wholes)
        late_s = fixed_s + (config.train.steps - step) * step_s - self.left_s
        end = self._end(step, config, wholes)
        tolerance_s = max(TOLERANCE * self.left_s, LEAST_TOLERANCE * self.given_s)
        return end if abs(late_s) > tolerance_s and end != config.train.steps else None

    def _end(self, step: int, config: Config, wholes: int = 1) -> int:
        """The step at which the time will be over; one more at least."""
        fixed_s, step_s = self._costs(step, config, wholes)
        steps = int((self.left_s - fixed_s) / max(step_s, SHORTEST_STEP_S))
        return max(step + 1, min(step + steps, config.train.max_steps or LARGEST))

    def _costs(self, step: int, config: Config, wholes: int) -> tuple[float, float]:
        """Seconds of what comes whatever the number of steps, and of each step."""
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
        """Seconds of a step, on average over the rest of the run."""
        short = short_part(step, config.train)
        first = config.train.first_window or config.model.T
        return short * self.pace.step_s(first) + (1 - short) * self.pace.step_s(config.model.T)

    def _evaluation_s(self, characters: int) -> float:
        """Seconds of an evaluation on so many characters, and of what comes with it."""
        seconds = self.pace.seconds
        score_s = min(characters, self.val_characters) * seconds.get(CHARACTER, 0.0)
        return seconds.get(EVALUATION, 0.0) + score_s

    def _with_short_evaluations(self, config: Config) -> Config:
        """Evaluations on a part of the val split if they would take too much of the time."""
        if config.train.eval_characters:
            return config
        steps = max(1, int(self.left_s / max(self._step_s(0, config), SHORTEST_STEP_S)))
        train = config.train.model_copy(update={"steps": steps})
        on_the_way = times_due(train.eval_every, train) - 1  # before the last, which is on all
        affordable = EVALUATED * self.limit_s / self._evaluation_s(self.val_characters)
        if on_the_way <= affordable:
            return config
        part = int(affordable / 2 / on_the_way * self.val_characters)
        return load_config(config, [f"train.eval_characters={max(FEWEST_EVAL_CHARACTERS, part)}"])


def _short_s(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.2g} ms"
