"""Measure how long each kind of work takes, and how many characters a second training sees."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import partial

import torch

from gpt.config.schema import Config
from gpt.distributed import Ranks
from gpt.evaluation.loss import evaluate, timed_ids
from gpt.text.vocabulary import Ids
from gpt.training.members import AnyStep
from gpt.training.schedule import Schedule

NEWEST_WEIGHT = 1 / 3  # weight of the newest measurement in the running mean
SAMPLING_S = 0.2  # assumed seconds for a sample and a checkpoint, before they are measured
PROBE_S, MAX_PROBES = 0.3, 9  # limits for measuring one kind of work: seconds, repetitions
MIN_STEP_S = 1e-6  # seconds; avoids a division by 0

SAMPLING, CHARACTER = "sampling", "character"  # kinds of work; see `Stopwatch`
Seconds = Mapping[int | str, float]
"""Seconds of each kind of work."""


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
        self._new_steps = self._running = 0  # steps since the last `pace`; with unread results
        self._new_seconds = 0.0  # seconds of `self._new_steps`

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

    @contextmanager
    def step(self, T: int, unread: Sized) -> Iterator[None]:
        """Time a step with windows of `T` ids, which the `with` block begins.

        A device may compute the step after the block. Therefore, the time of several steps is
        counted together, when a block ends and `unread` is empty. It is also counted if the block
        raises an exception, so that a rollback loses no time.
        """
        if not self._running:
            self.lap(T, 0)  # adds the time since the last lap, but counts no step
        self._running += 1
        try:
            yield
        finally:
            self._new_steps += 1
            if not unread:
                self._new_seconds += self.lap(T, self._running)
                self._running = 0

    def pace(self, characters: int) -> float:
        """Return the characters per second of all steps since the last call.

        A step has `characters` characters. Evaluations, samples and checkpoints do not count.
        """
        pace = self._new_steps * characters / max(self._new_seconds, MIN_STEP_S)
        self._new_steps, self._new_seconds = 0, 0.0
        return round(pace, 1)

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
        train_step: AnyStep,
        config: Config,
        val: Ids,
        ranks: Ranks,
        seconds: float = PROBE_S,
    ) -> None:
        """Measure the seconds of a step, and of scoring a character. All ranks must call this.

        `step` is `train_step.probe` or, if the weights may change, `train_step`, whose model scores
        characters of `val`. Measure each kind of work for about `seconds`.
        """

        def finish_step(number: int) -> None:
            step(number)
            if train_step.device.type in ("cuda", "mps"):
                torch.accelerator.synchronize(train_step.device)

        schedule = Schedule(config)
        for number in schedule.steps_of_each_shape():
            T = schedule.shape(number)[1]
            if T not in self.probed:
                for _ in range(train_step.warmup - 1):  # `time` omits another step
                    step(number)
                self.probed[T] = self.time(partial(finish_step, number), ranks, seconds)
        part = val[: timed_ids(config.model.T, train_step.device) + 1]
        score_s = self.time(partial(evaluate, train_step.model, part), ranks, seconds)
        self.probed[CHARACTER] = score_s / (len(part) - 1) / ranks.size

    def time(self, work: Callable[[], object], ranks: Ranks, seconds: float = PROBE_S) -> float:
        """Return the mean seconds of calls of `work`; omit the first, slower one if possible."""
        times: list[float] = []
        while len(times) < MAX_PROBES and not ranks.any(sum(times) >= seconds):
            self.start()
            work()
            times.append(self.clock() - self._since)
        return sum(times[1:] or times) / len(times[1:] or times)
