"""Choose the config with the lowest predicted val loss for a text and a training time."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from gpt.config.load import load_config
from gpt.config.schema import MAX_COUNT, Config, explicit
from gpt.device import computing_with, select_device
from gpt.distributed.ranks import SINGLE, Ranks
from gpt.errors import ConfigError
from gpt.memory import free_bytes
from gpt.recipe.difficulty import Difficulty
from gpt.recipe.law import is_trusted, predict
from gpt.recipe.repetition import repeats_much
from gpt.recipe.settings import (
    LARGE_CONTEXT,
    LARGE_PARAMETERS,
    LONGEST_CONTEXT,
    TRAIN_COUNTS,
    Choice,
    context_length,
    settings_for,
    step_characters,
    steps_in,
    with_counts,
)
from gpt.recipe.speed import LARGE_ENSEMBLES, MEMBERS, Pace, Speed, with_members
from gpt.status import phase
from gpt.text.corpus import Corpus
from gpt.text.splits import train_characters
from gpt.training.memory_estimate import HOST_PARTS, training_bytes

LAYERS = (2, 3, 4, 6, 8, 12)  # numbers of layers to choose from
MIN_CHANNELS_PER_LAYER = 32  # if neither is set: the law was not fitted on deeper models
CHANNELS = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768)
CHARACTER_DROPOUTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
LENGTHS = tuple(round(1e4 * 1.2**i) for i in range(120))  # possible lengths of a run, in characters
MIN_EVALUATION_DISTANCE_S = 50  # fewest seconds between evaluations, which take a few seconds
EVALUATIONS = (2, 4, 5, 10)  # possible numbers of evaluations: divisors of 100 %
EVALUATION_FRACTION = 0.03  # fraction of the time for the evaluations before the last
MAX_LAST_EVALUATION = 0.25  # largest fraction of the time for the last, before val is made smaller
REDUCED_LAST_EVALUATION = 0.05  # the same for a val split that was made smaller
EVALUATION_OVERHEAD_S = 0.4  # seconds for the sample and the checkpoint of each
# Costs of counts on one thread, measured on an AMD EPYC with AVX-512. Predicting an id takes
# COUNTS_S + V * COUNTS_VOCABULARY_S, where V is the vocabulary size.
GATE_S = 2.0  # seconds to fit the gate
COUNTS_S, COUNTS_VOCABULARY_S = 1.4e-5, 2.2e-8  # seconds
END_S = 3.0  # seconds after training: pictures, and the command's own sample
MIN_STEPS = 9  # fewest steps of a run; the law was not fitted on shorter runs
MIN_TRAINING_FRACTION = 0.1  # smallest fraction of the remaining time for training
SAMPLE_LENGTH = 100  # characters of the sample at each evaluation
MAX_MEMORY_FRACTION = 0.8  # largest fraction of the free memory for training


@dataclass(frozen=True)
class PredictedRun:
    """A possible run and its predicted result.

    Attributes:
        val_loss: the predicted val loss, in nats per id.
        choice: shape, length and dropout of the run.
        seconds: the time that the run takes.
        ends_early: whether the run leaves time unused, because a longer one would overfit.
    """

    val_loss: float
    choice: Choice
    seconds: float
    ends_early: bool


class Chooser:
    """Chooses a config by its predicted val loss, and keeps the explicit settings of `base`.

    Args:
        corpus: the text.
        speed: the pace (seconds per character) of models on this machine.
        base: the config whose explicit settings are kept.
        minutes: the time of the whole command.
        repeats: whether the text repeats itself, so that heads should learn to copy; measured if
            None. Not used if `base` sets the heads or `model.key_offset`.
        ranks: the processes that train one model. They divide each batch and each evaluation.
    """

    def __init__(
        self,
        corpus: Corpus,
        speed: Speed,
        base: Config,
        minutes: float,
        repeats: bool | None,
        ranks: Ranks = SINGLE,
    ) -> None:
        self.corpus, self.speed, self.base, self.minutes = corpus, speed, base, minutes
        self.ranks, train = ranks, base.train
        self.shortest_split = min(len(corpus.train), len(corpus.val))
        exportable = base.model.exportable
        self.has_counts = not exportable and bool(self._options("counts", (TRAIN_COUNTS,))[0])
        self.T = self._attention_window(LONGEST_CONTEXT)  # attention window of most networks
        self.large_T = self._attention_window(LARGE_CONTEXT)  # the same for large networks
        corpus.check_fits(self.T)
        if repeats is None:
            with phase("measuring how much the text repeats itself"):
                repeats = repeats_much(corpus, self.T)
        often = 60 * minutes / MIN_EVALUATION_DISTANCE_S
        if {"stop_at_val_loss", "patience"} & train.model_fields_set:
            often = math.inf  # these need evaluations
        self.evaluations = max(n for n in EVALUATIONS if n <= max(often, EVALUATIONS[0]))
        self.kept = {key: value for key, value in explicit(base).items() if key != "train.steps"}
        self.device = select_device(base.device)
        if self.device.type == "cuda":
            self.free = torch.cuda.mem_get_info(self.device)[0]  # bytes
        else:
            self.free = free_bytes() // ranks.local_size
        self.batch_size = train.batch_size if "batch_size" in train.model_fields_set else None
        heads = {"n_head", "head_size", "key_offset"}
        self.offsets_keys = repeats and not exportable and not heads & base.model.model_fields_set
        of_vocabulary = COUNTS_VOCABULARY_S * len(corpus.vocabulary)
        threads = base.threads if isinstance(base.threads, int) else torch.get_num_threads()
        self.counts_s = self.has_counts * (COUNTS_S + of_vocabulary) / (threads * ranks.size)
        self.shapes = self._shapes()

    def near(self, choice: Choice) -> Config:
        """Return a config with the number of layers and channels in `choice`, or the nearest.

        Some numbers are not allowed, such as all but one if the user has set `model.n_layer`.
        """
        nearest = min(
            (shape for _, shape in self.shapes),
            key=lambda shape: (abs(shape.n_layer - choice.n_layer), abs(shape.C - choice.C)),
        )
        return self.config(replace(choice, n_layer=nearest.n_layer, C=nearest.C))

    def part_to_measure(self, config: Config) -> Config:
        """Return `config` with one ensemble member, and one process's share of the batch."""
        share = -(-config.train.batch_size // self.ranks.size)
        train = config.train.model_copy(update={"batch_size": share})
        return with_members(config.model_copy(update={"train": train}), 1)

    def val_fraction(self, seconds: float, config: Config) -> float | None:
        """Return a smaller `data.val_fraction` if scoring all of val takes too long, else None.

        At the end of a run with `config`, all of val is scored. This takes too long if it needs
        more than MAX_LAST_EVALUATION of the remaining time, `seconds`. If the user has set how val
        is split off, return None.
        """
        ids, characters = len(self.corpus.val), self.corpus.val_characters
        id_s = self._pace(config).evaluation_s + self.counts_s
        fixed = {"val_fraction", "val_source", "split"} & self.base.data.model_fields_set
        if fixed or ids * id_s <= MAX_LAST_EVALUATION * seconds:
            return None
        # T, if it is not set, is at most half of a split; rounding down leaves at least half
        smallest = 2 * (self._options("T", (2 * self.large_T,))[0] + 2)
        affordable = int(REDUCED_LAST_EVALUATION * seconds / id_s * characters / ids)
        fraction = max(smallest, affordable) / self.corpus.characters
        digit = 10.0 ** math.floor(math.log10(fraction))
        fraction = float(f"{math.floor(fraction / digit) * digit:.1g}")
        return fraction if fraction * self.corpus.characters < characters else None

    def val_characters(self, val_fraction: float | None) -> int:
        """Return the length of the val split, in characters, if `data.val_fraction` had this value.

        If `val_fraction` is None, return the length of the current val split.
        """
        if val_fraction is None:
            return self.corpus.val_characters
        return self.corpus.characters - train_characters(self.corpus.characters, val_fraction)

    def best(self, text: Difficulty, seconds: float, scored: int) -> PredictedRun:
        """Return the run with the lowest predicted val loss that takes at most `seconds`.

        If no run of at least MIN_STEPS steps fits into the time, return the quickest run.

        Args:
            text: the results of the pilot, a small model trained on the text.
            seconds: the time that remains.
            scored: the number of ids that the last evaluation scores.
        """
        with computing_with(self.base.threads):
            shapes = [shape for shape in self.shapes if self._fits(self._divided(shape[0]))]
        shapes = shapes or self.shapes[:1]  # training refuses the smallest with a message
        runs = [run for shape in shapes for run in self._runs(*shape, text, scored, seconds)]
        fitting = [
            run for run in runs if run.seconds <= seconds and self._steps(run.choice) >= MIN_STEPS
        ]
        if not fitting:
            return min(runs, key=lambda run: run.seconds)
        trusted = [run for run in fitting if is_trusted(run.choice, text)]
        return min(trusted or fitting, key=lambda run: run.val_loss)

    def config(self, choice: Choice, val_fraction: float | None = None) -> Config:
        """Return the config of a run with the size and training length of `choice`.

        Explicit settings of `base` are kept. If `val_fraction` is given, it replaces
        `data.val_fraction`.

        Raises:
            ConfigError: the settings of `base` do not fit the shape of `choice`.
        """
        T = self._window_of(choice)
        config = settings_for(choice, T, self.batch_size, repeats=self.offsets_keys)
        if self.has_counts:
            val_ids = len(self.corpus.last(self.val_characters(val_fraction)))
            shortest_split = min(self.shortest_split, val_ids)
            config = with_counts(config, shortest_split, len(self.corpus.vocabulary))
        changes: dict[str, Any] = {
            "train.minutes": self.minutes,
            "train.sample_length": SAMPLE_LENGTH,
            "train.eval_every": f"{100 // self.evaluations} %",
        }
        if "warmup_steps" in self.base.train.model_fields_set:
            changes["train.steps"] = max(config.train.steps, self.base.train.warmup_steps)
        if "n_head" in self.base.model.model_fields_set:
            changes["model.head_size"] = None  # C / n_head
        if val_fraction is not None:
            changes["data.val_fraction"] = val_fraction
        return self._divided(load_config(config, [*changes.items(), *self.kept.items()]))

    def _divided(self, config: Config) -> Config:
        """Return `config` with as few micro-batches per step as the free memory allows.

        Return `config` unchanged if `base` sets `train.accumulation`, or if even micro-batches of
        one window need too much memory. On a CPU, return `config` unchanged, too, because a CPU
        computes a few windows at a time, whatever the batch size.
        """
        if self.device.type == "cpu" or "accumulation" in self.base.train.model_fields_set:
            return config
        B = config.train.batch_size
        for count in (n for n in range(1, B + 1) if B % n == 0):
            train = config.train.model_copy(update={"accumulation": count})
            divided = config.model_copy(update={"train": train})
            if self._fits(divided):
                return config if count == 1 else divided
        return config

    def _fits(self, config: Config) -> bool:
        """Return whether training takes at most MAX_MEMORY_FRACTION of the free memory."""
        needed = training_bytes(config, self.speed.V, self.device, ranks=self.ranks)
        on_host = HOST_PARTS if self.device.type == "cuda" else ()
        on_device = sum(needed[name] for name in needed if name not in on_host)
        return on_device <= MAX_MEMORY_FRACTION * self.free

    def _shapes(self) -> list[tuple[Config, Choice]]:
        """Return each possible model: combinations of layers, channels and ensemble members.

        Each is returned as its config and its Choice. The length of their runs is not chosen yet.
        """
        shapes: list[tuple[Config, Choice]] = []
        refused: ConfigError | None = None
        both_open = not {"n_layer", "C"} & self.base.model.model_fields_set
        for n_layer, C in product(self._options("n_layer", LAYERS), self._options("C", CHANNELS)):
            if both_open and n_layer * MIN_CHANNELS_PER_LAYER > C:
                continue
            choice = Choice(n_layer, C, len(self.corpus.train))
            try:
                config = self.config(choice)
            except ConfigError as error:  # such as a number of heads that does not divide C
                refused = error
                continue
            sizes = MEMBERS + LARGE_ENSEMBLES * self.speed.launches_kernels
            sizes = (1,) if self.base.model.exportable else sizes
            for members in self._options("ensemble", sizes):
                shapes.append((with_members(config, members), replace(choice, members=members)))
        if refused and not shapes:
            raise refused
        return shapes

    def _options(self, key: str, options: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return `options` for model setting `key`, or only the value that `self.base` sets."""
        model = self.base.model
        return (getattr(model, key),) if key in model.model_fields_set else options

    def _attention_window(self, limit: int) -> int:
        """Return the attention window in ids: the one that the user has set, or at most `limit`."""
        context = context_length(self.shortest_split, limit)
        T = self._options("T", (context,))[0]
        context = min(T, context) if self.has_counts else T
        window: int = self._options("attention_window", (context,))[0]
        return window

    def _window_of(self, choice: Choice) -> int:
        """Return the attention window in ids: longer if the model of `choice` is large."""
        return self.large_T if choice.parameters(self.speed.V) >= LARGE_PARAMETERS else self.T

    def _steps(self, choice: Choice) -> int:
        return steps_in(choice.characters, self._window_of(choice), self.batch_size)

    def _pace(self, config: Config) -> Pace:
        """Return the predicted pace (seconds per character) of `config` on all ranks together."""
        members, size = config.model.ensemble, self.ranks.size
        pace = self.speed.predict(with_members(self.part_to_measure(config), members))
        return Pace(pace.train_s / size, pace.evaluation_s / size)

    def _runs(
        self, config: Config, shape: Choice, text: Difficulty, scored: int, seconds: float
    ) -> Iterator[PredictedRun]:
        """Yield a run for each possible value of `character_dropout`, with the best length.

        The best length is the one, within the time, that has the lowest predicted val loss.

        Args:
            config: the config of the model.
            shape: the layers, channels and ensemble members of the model.
            text: the results of the pilot, a small model trained on the text.
            scored: the number of ids that the last evaluation scores.
            seconds: the time that remains.
        """
        pace = self._pace(config)
        each_s = EVALUATION_OVERHEAD_S + self.has_counts * GATE_S
        fixed_s = END_S + scored * (pace.evaluation_s + self.counts_s)
        fixed_s += (self.evaluations + self.has_counts) * each_s  # with counts, step 0 is one, too
        training_s = (1 - EVALUATION_FRACTION) * seconds - fixed_s
        training_s = max(training_s, MIN_TRAINING_FRACTION * seconds)
        longest = max(1, int(training_s / pace.train_s))
        max_steps = self.base.train.max_steps or MAX_COUNT
        T = self._window_of(shape)
        while steps_in(longest, T, self.batch_size) > max_steps:
            longest = max_steps * step_characters(longest, T, self.batch_size)
        for dropout in self._options("character_dropout", CHARACTER_DROPOUTS):
            choice = replace(shape, characters=longest, token_dropout=dropout)
            loss, choice = _shortened(choice, text)
            ends_early = choice.characters < longest
            run_s = (fixed_s + choice.characters * pace.train_s) / (1 - EVALUATION_FRACTION)
            yield PredictedRun(loss, choice, run_s, ends_early)


def longest_run(choice: Choice, text: Difficulty) -> int:
    """Return the characters per member beyond which overfitting raises the predicted val loss.

    `choice` is the model. `text` has the results of the pilot, a small model trained on the text.
    """
    return _shortened(replace(choice, characters=LENGTHS[-1]), text)[1].characters


def _shortened(choice: Choice, text: Difficulty) -> tuple[float, Choice]:
    """Shorten the run `choice` as long as this lowers its predicted val loss (less overfitting).

    Return the predicted loss, in nats per id, and the shortened run.
    """
    loss = predict(choice, text)
    for characters in reversed(LENGTHS[: bisect_left(LENGTHS, choice.characters)]):
        shorter = replace(choice, characters=characters)
        shorter_loss = predict(shorter, text)
        if shorter_loss >= loss:
            break
        loss, choice = shorter_loss, shorter
    return loss, choice
