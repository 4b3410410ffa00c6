"""Measure how fast models of some sizes train on this machine, and choose a config by table.py.

Also measure how much of the text repeats earlier text: a model can learn to copy such text.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from gpt.config.load import load_config
from gpt.config.schema import Config, explicit
from gpt.config.section import MAX_COUNT
from gpt.device import computing_with, free_memory, select_device
from gpt.distributed import SINGLE, Ranks
from gpt.errors import ConfigError, Interrupted, counted
from gpt.evaluation.windows import scored_windows
from gpt.model.ensemble import make_model
from gpt.model.shapes import parameter_count
from gpt.model.transformer import LARGE_VOCABULARY
from gpt.recipe import table
from gpt.recipe.table import SIZES, Choice, Size, context_length, step_characters
from gpt.terminal import phase
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids
from gpt.training.members import build_step
from gpt.training.memory_estimate import check_training_memory, fits, with_fewest_micro_batches
from gpt.training.schedule import Schedule
from gpt.training.stopwatch import CHARACTER, PROBE_S, Seconds, Stopwatch
from gpt.training.time_budget import TimeBudget

log = logging.getLogger(__name__)

PROBE_PART = 0.05  # largest fraction of the command's time for all measurements together
USUAL_PROBES = 12  # for each of 4 sizes: a step with long windows, one with short ones, and scoring
# Step time of K members that train at once, divided by K x the step time of one, by device type.
MEMBERS_TIME = {"cpu": 0.9, "cuda": 0.6}
WHOLE_PART = 0.25  # largest fraction of train.minutes for scoring all of val once
REDUCED_VAL = 0.2  # if val is made smaller: the fraction of WHOLE_PART that scoring it takes
SAMPLE_LENGTH = 100  # characters of a sample during training
MANY_IDS = 1000  # a text with fewer distinct characters is not read as bytes
MAX_BYTES_PER_CHARACTER = 1.1  # largest mean size in UTF-8 for which a text is read as bytes

MATCHED_CHARACTERS = 4  # an id is repeated only if at least this many characters before it are
CHANCE_WINDOWS = 64  # a match is so long that at most 1 of 64 windows repeats it by chance
MIN_ENTROPY = 1e-3  # nats; avoids a division by 0 for a text of one character
MAX_SCORED_IDS = 60_000  # largest number of ids, evenly spread over val, to check for repetitions
# Fraction of repeated ids above which a text repeats itself. Prose has 0.00 to 0.16, documentation
# and code have 0.28 to 0.38.
MUCH_REPEATED = 0.2


def choose_config(
    corpus: Corpus,
    base: Config,
    minutes: float,
    clock: Callable[[], float],
    should_stop: Callable[[], bool] = lambda: False,
    ranks: Ranks = SINGLE,
) -> tuple[Config, Seconds | None]:
    """Choose size, T, batch, rates, members and token dropout by table.py; log the reason.

    Return the config, and the expected seconds of a step and of scoring a character (None with
    several ranks). Explicit settings of `base` are kept, except train.steps. `minutes` is the time
    for the whole command; `clock` returns the seconds since it began. Each of the `ranks` measures
    its share of a batch. Raise Interrupted if `should_stop` returns True before a measurement.
    """
    base = load_config(base, [("train.minutes", minutes)])
    corpus.check_fits(_window_length(corpus, base, SIZES[0]), base.data)
    chooser = _Chooser(corpus, base, clock, should_stop, ranks)
    with phase("measuring how fast models of several sizes train"):
        config, choice, probed = chooser.choose()
    model = config.model
    members = f"{model.ensemble} members of " if model.ensemble > 1 else ""
    parameters = parameter_count(model, len(corpus.vocabulary))
    log.info(
        f"model: {members}{counted(model.n_layer, 'layer')}, C {model.C}, "
        f"{counted(model.n_head, 'head')}, T {model.T}; {counted(parameters, 'parameter')}"
    )
    given = model.ensemble if "ensemble" in base.model.model_fields_set else None
    log.info(choice.sentence(len(corpus.train), corpus.vocabulary.unit, given))
    return config, probed if ranks.size == 1 else None


@dataclass
class _Chooser:
    """Measures sizes and chooses one; for the fields see `choose_config`."""

    corpus: Corpus
    base: Config
    clock: Callable[[], float]
    should_stop: Callable[[], bool]
    ranks: Ranks
    measured: dict[Size, tuple[Config, Seconds]] = field(default_factory=dict)  # see `measure_size`

    def __post_init__(self) -> None:
        self.device = select_device(self.base.device)
        given = explicit(self.base)
        self.kept = {key: value for key, value in given.items() if key != "train.steps"}
        self.train_ids = len(self.corpus.train)
        self.val_ids = len(self.corpus.val) - 1  # the first id is not scored
        V = len(self.corpus.vocabulary)
        self.fits = partial(fits, vocabulary_size=V, device=self.device, ranks=self.ranks)
        with phase("measuring how much the text repeats itself"):
            self.repeats = False
            if not {"n_head", "head_size", "key_offset"} & self.base.model.model_fields_set:
                T = _window_length(self.corpus, self.base, SIZES[0])
                repeated = repeated_part(self.corpus.val, T, match_length(self.corpus, T))
                self.repeats = repeated > MUCH_REPEATED
        needs_larger = self.repeats or V >= LARGE_VOCABULARY
        self.min_seen = (
            table.FEWER_SEEN_PER_PARAMETER if needs_larger else table.MIN_SEEN_PER_PARAMETER
        )

    def choose(self) -> tuple[Config, Choice, Seconds]:
        """Measure larger and larger sizes until one is too slow; choose the size before it.

        Return the config, its Choice, and the expected seconds per step and per scored character.
        """
        sizes = self._allowed_sizes()
        size, characters = table.largest_size(
            sizes, self.measure_size, self.train_ids, self.min_seen
        )
        max_members = self.kept.get("model.ensemble", table.MAX_MEMBERS.get(self.device.type, 1))
        choice = table.choose_members(size, characters, self.train_ids, max_members)
        config = self._config(choice)
        if "train.accumulation" not in self.kept:
            config = with_fewest_micro_batches(config, self.fits)
        probed = self._expected_seconds(config, size)
        if fraction := self._smaller_val_fraction(config, Stopwatch(self.clock, probed)):
            config = load_config(config, [("data.val_fraction", fraction)])
        return config, choice, probed

    def measure_size(self, size: Size) -> float:
        """Measure a model of `size`; return how many characters it would see in the run's time.

        From the second call on, return 0 if the model would not fit into memory.
        """
        config = self._config(self._shortest_run(size)).changed(model={"ensemble": 1})
        if self.measured and not self.fits(config):
            return 0.0
        stopwatch = self._time_temporary_model(config)
        self.measured[size] = config, stopwatch.probed
        if "train.max_steps" not in self.kept:
            config = config.changed(train={"max_steps": None})
        val_ids = round(self._val_part(config, stopwatch) * self.val_ids)
        budget = TimeBudget(config.train.minutes, val_ids, stopwatch)
        config = budget.limit_evaluations(config)
        steps = budget.total_steps(config.train, Schedule(config))
        return steps * config.train.batch_size * config.model.T

    def _val_part(self, config: Config, stopwatch: Stopwatch) -> float:
        """Return the fraction of val to keep: 1 if the config sets val, or scoring val is fast."""
        budget = TimeBudget(config.train.minutes, self.val_ids, stopwatch)
        whole_s, affordable_s = budget.score_s(self.val_ids), WHOLE_PART * budget.limit_s
        is_given = {"val_fraction", "val_source", "split"} & config.data.model_fields_set
        return 1.0 if is_given or whole_s <= affordable_s else REDUCED_VAL * affordable_s / whole_s

    def _smaller_val_fraction(self, config: Config, stopwatch: Stopwatch) -> float | None:
        """Return the `data.val_fraction` to use if scoring val takes too long, else None."""
        if (part := self._val_part(config, stopwatch)) == 1:
            return None
        corpus = self.corpus
        least = 2 * (config.model.T + 2)  # twice the minimum: rounding may halve the fraction
        fraction = max(part * corpus.val_characters, least) / corpus.characters
        digit = 10.0 ** math.floor(math.log10(fraction))
        fraction = float(f"{math.floor(fraction / digit) * digit:.1g}")
        return fraction if fraction * corpus.characters < corpus.val_characters else None

    def _allowed_sizes(self) -> list[Size]:
        """Return the sizes that `base` allows; raise ConfigError if it allows none."""
        model, errors = self.base.model, list[ConfigError]()
        given = {key: getattr(model, key) for key in {"n_layer", "C"} & model.model_fields_set}
        sizes = []
        for size in dict.fromkeys(size._replace(**given) for size in SIZES):
            try:
                self._config(self._shortest_run(size))
                sizes.append(size)
            except ConfigError as error:  # such as a number of heads that does not divide C
                errors.append(error)
        if not sizes:
            raise errors[0]
        return sizes

    def _shortest_run(self, size: Size) -> Choice:
        """Return the shortest run for which table.py can prefer `size` to a smaller size.

        On an accelerator, return a member's run if that is shorter: its steps are smaller, and
        small steps take more time per character there.
        """
        characters = round(self.min_seen * size.parameters)
        useful = round(table.useful_passes(self.train_ids)[0] * self.train_ids)
        return Choice(size, characters if self.device.type == "cpu" else min(characters, useful))

    def _config(self, choice: Choice) -> Config:
        """Return the config for `choice`; settings that the user gave take precedence."""
        T = _window_length(self.corpus, self.base, choice.size)
        batch_size = self.kept.get("train.batch_size")
        changes = table.settings(choice, T, batch_size, repeats=self.repeats)
        in_step = step_characters(choice.characters, T, batch_size)
        useful_passes, _ = table.useful_passes(self.train_ids)
        max_characters = table.MAX_USEFUL * useful_passes * self.train_ids
        changes |= {
            "train.minutes": self.base.train.minutes,
            "train.sample_length": SAMPLE_LENGTH,
            "train.max_steps": min(max(1, round(max_characters / in_step)), MAX_COUNT),
        }
        if "train.warmup_steps" in self.kept:
            changes["train.steps"] = max(changes["train.steps"], self.kept["train.warmup_steps"])
        if "model.n_head" in self.kept:
            changes["model.head_size"] = None  # null means C / n_head
        return load_config(Config(), [*changes.items(), *self.kept.items()])

    def _time_temporary_model(self, config: Config) -> Stopwatch:
        """Return a stopwatch that has measured a step and an evaluation of a temporary model."""
        if self.should_stop():
            raise Interrupted("stopped before training began; nothing was written")
        share = math.ceil(config.train.batch_size / self.ranks.size)
        config = config.changed(train={"batch_size": share, "compile": "off"})
        corpus, V, stopwatch = self.corpus, len(self.corpus.vocabulary), Stopwatch(self.clock)
        seconds = min(PROBE_S, 60 * (config.train.minutes or 0) * PROBE_PART / USUAL_PROBES)
        with computing_with(config.threads):
            check_training_memory(config, V, self.device)
            model = make_model(config.model, V, config.seed).to(self.device)
            train_step = build_step(config, model, self.device, SINGLE, corpus.train)
            stopwatch.probe(train_step, train_step, config, corpus.val, SINGLE, seconds)
        del model, train_step
        free_memory(self.device)
        return stopwatch

    def _expected_seconds(self, config: Config, size: Size) -> Seconds:
        """Estimate an ensemble's seconds of a step and a scored character by those of a member."""
        one_config, one = self.measured[size]
        K = config.model.ensemble
        on_cuda, threads = self.device.type == "cuda", torch.get_num_threads()
        at_once = config.train.accumulation == 1 if on_cuda else threads > 1
        members_time = K * MEMBERS_TIME.get(self.device.type, 1.0) if K > 1 and at_once else K
        step_factor = members_time * (config.train.batch_size / one_config.train.batch_size)
        steps = {work: step_factor * s for work, s in one.items() if work != CHARACTER}
        return steps | {CHARACTER: K * one[CHARACTER]}


def reads_better_as_bytes(corpus: Corpus) -> bool:
    """Return whether a model of bytes is likely to predict the text better than one of characters.

    Bytes are better for a text of many distinct characters if nearly all characters have one byte.
    A model of 256 ids is then smaller and faster.
    """
    bytes_per_character = corpus.val_bytes / corpus.val_characters
    return len(corpus.vocabulary) >= MANY_IDS and bytes_per_character <= MAX_BYTES_PER_CHARACTER


def _window_length(corpus: Corpus, base: Config, size: Size) -> int:
    """Return the user's `model.T`; if unset, a T that suits the text and the size."""
    if "T" in base.model.model_fields_set:
        return base.model.T
    return context_length(min(len(corpus.train), len(corpus.val)), size)


def match_length(corpus: Corpus, T: int) -> int:
    """Return the `length` for `repeated_part`: how many ids in a row rarely recur by chance.

    In a window of `T` ids, n given ids occur again by chance with a probability of about
    T / exp(n H), where H is the entropy of an id in nats. The result is the smallest n for which
    this probability is at most 1 / CHANCE_WINDOWS, or the number of ids in MATCHED_CHARACTERS
    characters, if that is larger. The result is at most T / 2.
    """
    per_character = len(corpus.val) / corpus.val_characters
    ids = torch.cat([y.flatten() for _, y in scored_windows(corpus.val, T, MAX_SCORED_IDS)])
    p = ids.bincount().double() / len(ids)  # (V,)
    entropy = float(torch.special.entr(p).sum())
    min_length = math.log(CHANCE_WINDOWS * T) / max(entropy, MIN_ENTROPY)
    max_length = max(1, T // 2)
    return min(max(round(MATCHED_CHARACTERS * per_character), math.ceil(min_length)), max_length)


def repeated_part(ids: Ids, T: int, length: int) -> float:
    """Return the fraction of `ids` that are repeated within their window of `T` ids.

    An id is repeated if the `length` ids before it also occur earlier in the window, and the last
    time were followed by the same id. An induction head predicts such ids (arXiv:2209.11895).
    """
    found = total = 0
    for x, y in scored_windows(ids, T, MAX_SCORED_IDS):
        total += y.numel()
        for inputs, targets in zip(x.tolist(), y.tolist(), strict=True):
            followed: dict[tuple[int, ...], int] = {}
            for t in range(length - 1, len(inputs)):
                last = tuple(inputs[t + 1 - length : t + 1])
                found += followed.get(last) == targets[t]
                followed[last] = targets[t]
    return found / total
