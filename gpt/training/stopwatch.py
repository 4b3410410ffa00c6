"""Measure how long each kind of work takes: before training, and while it runs."""

from collections.abc import Callable, Mapping
from functools import partial

from gpt.config.schema import Config
from gpt.distributed.ranks import Ranks
from gpt.evaluation.loss import evaluate, timed_ids
from gpt.text.vocabulary import Ids
from gpt.training.build_step import Update
from gpt.training.schedule import Schedule

NEWEST_WEIGHT = 1 / 3  # weight of the newest measurement in the running mean
SAMPLING_S = 0.2  # seconds for a sample and a checkpoint, until they are measured
PROBE_S, MAX_PROBES = 0.3, 9  # measuring a kind of work ends after these seconds or repetitions

# kinds of work, as keys of `Stopwatch.seconds`; the key of a step is the T of its windows
SAMPLING, CHARACTER = "sampling", "character"
Seconds = Mapping[int | str, float]
"""Seconds of each kind of work."""


class Stopwatch:
    """Running means of the seconds that each kind of work takes.

    The kinds are a training step (its key is the window length T), CHARACTER (scoring one
    character of val), and SAMPLING (the sample and the checkpoint after an evaluation).
    `probed` contains the seconds of steps and of a character that were measured before training.
    """

    def __init__(self, clock: Callable[[], float], probed: Seconds | None = None) -> None:
        self.clock = clock
        self.probed = dict(probed or {})
        self.seconds: dict[int | str, float] = {}  # measured in training
        self._recent: dict[int | str, tuple[float, int]] = {}  # (seconds, times) since `settle`
        self._since = clock()

    def start(self) -> None:
        """Start the first lap."""
        self._since = self.clock()

    def lap(self, work: int | str, times: int = 1) -> float:
        """Count the seconds since the last lap as `times` repetitions of `work`; return them."""
        before, self._since = self._since, self.clock()
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

        The estimate is the time before training, times the slowdown of steps of another T since.
        """
        both = [work for work in self.seconds if isinstance(work, int) and work in self.probed]
        slowdown = self.seconds[both[-1]] / self.probed[both[-1]] if both else 1.0
        return self.seconds.get(T, self.probed.get(T, 0.0) * slowdown)

    def other_s(self, work: str) -> float:
        """Return the seconds that `work`, CHARACTER or SAMPLING, takes: measured or a default."""
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

        `step(n)` computes step n without changing weights, as `update.probe` does. The model of
        `update` scores characters of `val`. Measure each kind of work for about `seconds`.
        """
        schedule = Schedule(config)
        for number in schedule.steps_of_each_shape():
            T = schedule.shape(number)[1]
            if T not in self.probed:
                self.probed[T] = self.time(partial(step, number), ranks, seconds)
        part = val[: timed_ids(config.model.T, update.device) + 1]
        score_s = self.time(partial(evaluate, update.model, part), ranks, seconds)
        self.probed[CHARACTER] = score_s / (len(part) - 1) / ranks.size

    def time(self, work: Callable[[], object], ranks: Ranks, seconds: float = PROBE_S) -> float:
        """Return the mean seconds of a few calls of `work`, except the first, slower one."""
        times: list[float] = []
        while len(times) < MAX_PROBES and not ranks.any(sum(times) >= seconds):
            self.start()
            work()
            times.append(self.clock() - self._since)
        return sum(times[1:] or times) / len(times[1:] or times)
