"""How many steps fit into `train.minutes`: planned at first, and again when the pace changes."""

import logging
import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import torch

from gpt.config.load import load_config
from gpt.config.schema import LARGEST, Config
from gpt.device import computing_with, select_device
from gpt.distributed import any_rank, from_main, world_size
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import make_model
from gpt.text.batches import EVAL_CHARACTERS
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids
from gpt.training.ensemble import Update, make_step
from gpt.training.memory import check_training_memory
from gpt.training.schedule import SHORT_PART, part_done, times_due, window_length
from gpt.training.teacher import load_teacher

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
    """What is left of `train.minutes`, and the steps that fit; without it, nothing is planned.

    `clock` gives the seconds since the command began; `elapsed_before` are those of training
    before that, by the commands that it resumes.
    """

    def __init__(
        self,
        config: Config,
        update: Update,
        val: Ids,
        clock: Callable[[], float],
        elapsed_before: float = 0.0,
    ) -> None:
        self.limit_s = 60 * (config.train.minutes or math.inf)
        self.val_characters, self.elapsed_before = len(val) - 1, elapsed_before
        self.pace = Pace(clock)
        if config.train.minutes is not None:
            self.pace.probe(update, val, config)
        self.next_check_s = self.used_s + CHECKED_EVERY * self.limit_s / 2

    def check_soon(self, step: int, config: Config) -> None:
        """Compare a plan that was made for other minutes with the pace before it ends."""
        fixed_s, step_s = self._costs(step, config, wholes=0)
        planned_s = fixed_s + (config.train.steps - step) * step_s
        self.next_check_s = self.used_s + CHECKED_EVERY / 2 * min(self.limit_s, planned_s)

    @property
    def used_s(self) -> float:
        """Seconds, over all resumes."""
        return self.elapsed_before + self.pace.clock()

    @property
    def left_s(self) -> float:
        """Seconds that training has left."""
        return (1 - MARGIN) * self.limit_s - AFTERWARDS_S - self.used_s

    @property
    def evaluated_part(self) -> float:
        """How much of the time one evaluation takes, of the whole val split."""
        return self._evaluation_s(self.val_characters) / self.limit_s

    def first_plan(self, config: Config) -> Config:
        """The config of a new run with as many steps as fit, unless they are planned already.

        If evaluations would take too much of the time, they are on a part of the val split.
        """
        if config.train.minutes is None or config.train.plans:
            return config
        config = self._with_short_evaluations(config)
        steps, warmup = self._end(0, config), config.train.warmup_steps
        if "warmup_steps" in config.train.model_fields_set and steps < warmup:  # else it follows
            log.warning(
                "train.warmup_steps %d: about %d steps fit into train.minutes, so the learning "
                "rate will not reach its peak; set fewer warmup steps, or more minutes",
                *(warmup, steps),
            )
            steps = warmup
        return load_config(config, [f"train.steps={steps}", f"train.plans=[[0, {steps}]]"])

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
        self.next_check_s = self.used_s + CHECKED_EVERY * self.limit_s
        self.pace.settle()
        fixed_s, step_s = self._costs(step, config, wholes)
        late_s = fixed_s + (config.train.steps - step) * step_s - self.left_s
        end = self._end(step, config, wholes)
        tolerance_s = max(TOLERANCE * self.left_s, LEAST_TOLERANCE * self.limit_s)
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
        return fixed_s + (times_due(every, train, max(0, step - 1)) - 1) * evaluation_s, step_s

    def _step_s(self, step: int, config: Config) -> float:
        """Seconds of a step, on average over the rest of the run."""
        done = part_done(step, config.train)
        short = float(max(SHORT_PART - done, Fraction()) / (1 - done)) if done < 1 else 0.0
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


def first_plan(config: Config, corpus: Corpus, clock: Callable[[], float]) -> Config:
    """The config that a run would begin with, see TimeBudget; measured on a throwaway model."""
    if config.train.minutes is None:
        return config
    device = select_device(config.device)
    with computing_with(config.threads, deterministic=config.deterministic):
        teacher = load_teacher(config, corpus.vocabulary, device)
        check_training_memory(config, len(corpus.vocabulary), device, teacher)
        model = make_model(config.model, len(corpus.vocabulary), config.seed).to(device)
        update = make_step(model, corpus.train, config, device, corpus.vocabulary, teacher)
        return TimeBudget(config, update, corpus.val, clock).first_plan(config)
