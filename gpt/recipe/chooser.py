"""Choose the config with the lowest predicted val loss for a text and a training time.

A pace is in seconds per character. The pilot is a small model, trained to measure the text.
"""

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
    Choice,
    context_length,
    settings_for,
    step_characters,
    steps_in,
)
from gpt.recipe.speed import LARGE_ENSEMBLES, MEMBERS, Pace, Speed
from gpt.status import phase
from gpt.text.corpus import Corpus
from gpt.text.splits import train_characters
from gpt.training.memory_estimate import HOST_PARTS, training_bytes

LAYERS = (2, 3, 4, 6, 8, 12)  # numbers of layers to choose from
MIN_CHANNELS_PER_LAYER = 32  # unless C or n_layer is set: the law was not fitted to deeper models
CHANNELS = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768)
CHARACTER_DROPOUTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
LENGTHS = tuple(round(1e4 * 1.2**i) for i in range(120))  # possible lengths of a run, in characters
MIN_EVALUATION_DISTANCE_S = 50  # fewest seconds between evaluations, which take a few seconds
EVALUATIONS = (2, 4, 5, 10)  # possible numbers of evaluations: divisors of 100 %
EVALUATION_FRACTION = 0.03  # fraction of the time for the evaluations before the last
MAX_LAST_EVALUATION = 0.25  # fraction of the time for the last one; above it, val is made smaller
REDUCED_LAST_EVALUATION = 0.05  # fraction of the time for the last one if val was made smaller
EVALUATION_OVERHEAD_S = 0.4  # seconds for the sample and the checkpoint of an evaluation
END_S = 3.0  # seconds after training: pictures, and the command's own sample
MIN_STEPS = 9  # fewest steps of a run; the law was not fitted on shorter runs
MIN_TRAINING_FRACTION = 0.1  # smallest fraction of the remaining time for training
SAMPLE_LENGTH = 100  # characters of the sample at each evaluation
MIN_COMPILED_MINUTES = 5  # in a shorter run, torch.compile takes longer than it saves (H100: 16 s)
MAX_MEMORY_FRACTION = 0.8  # largest fraction of the free memory for training


@dataclass(frozen=True)
class PredictedRun:
    """A possible run and its predicted result."""

    val_loss: float  # predicted, in nats per id
    choice: Choice
    steps: int
    seconds: float
    ends_early: bool  # whether it leaves time unused, because a longer run would overfit


class Chooser:
    """Search for the config with the lowest predicted val loss, given the settings of `base`."""

    def __init__(
        self,
        corpus: Corpus,
        speed: Speed,
        base: Config,
        minutes: float,  # time for the whole command
        repeats: bool | None,  # whether heads should learn to copy; None = measure the text
        ranks: Ranks = SINGLE,  # the processes that share each batch and each evaluation
    ) -> None:
        self.corpus, self.speed, self.base, self.minutes = corpus, speed, base, minutes
        self.ranks, train = ranks, base.train
        self.shortest_split = min(len(corpus.train), len(corpus.val))
        exportable = base.model.exportable
        self.T = self._context(LONGEST_CONTEXT)  # of most models
        self.large_T = self._context(LARGE_CONTEXT)  # of large models
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
        self.free = free_bytes() // ranks.local_size  # bytes
        if self.device.type == "cuda":
            self.free = torch.cuda.mem_get_info(self.device)[0]
        self.batch_size = self.kept.get("train.batch_size")
        heads = {"n_head", "head_size", "key_offset"}
        self.offsets_keys = repeats and not exportable and not heads & base.model.model_fields_set
        self.shapes = self._shapes()

    def near(self, choice: Choice) -> Config:
        """Return the config of `choice` with n_layer and C set to the nearest allowed values."""
        nearest = min(
            (shape for _, shape in self.shapes),
            key=lambda shape: (abs(shape.n_layer - choice.n_layer), abs(shape.C - choice.C)),
        )
        return self.config(replace(choice, n_layer=nearest.n_layer, C=nearest.C))

    def on_one_process(self, config: Config, members: int = 1) -> Config:
        """Return `config` with the batch size of one process, and `members` ensemble members."""
        share = -(-config.train.batch_size // self.ranks.size)
        return config.changed(train={"batch_size": share}, model={"ensemble": members})

    def val_fraction(self, seconds: float, config: Config) -> float | None:
        """Return a smaller `data.val_fraction` if scoring val would take too long; else None.

        The limit is MAX_LAST_EVALUATION times `seconds`, the duration of a run with `config`.
        A val split that the user chose is kept.
        """
        ids, characters = len(self.corpus.val), self.corpus.val_characters
        id_s = self._pace(config).evaluation_s
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
        """Return the number of val characters for `val_fraction`; None keeps the corpus's split."""
        if val_fraction is None:
            return self.corpus.val_characters
        return self.corpus.characters - train_characters(self.corpus.characters, val_fraction)

    def best(self, text: Difficulty, seconds: float, scored: int) -> PredictedRun:
        """Return the run with the lowest predicted val loss that takes at most `seconds`.

        Consider only models that fit into memory, and prefer runs that `is_trusted` accepts. If no
        run of at least MIN_STEPS steps fits into the time, return the quickest run.

        Args:
            text: how hard the text is to predict.
            seconds: the remaining time.
            scored: the number of ids that the last evaluation scores.
        """
        with computing_with(self.base.threads):
            shapes = [shape for shape in self.shapes if self._fits(self._divided(shape[0]))]
        shapes = shapes or self.shapes[:1]  # training will refuse it with a message
        runs = [run for shape in shapes for run in self._runs(*shape, text, scored, seconds)]
        fitting = [run for run in runs if run.seconds <= seconds and run.steps >= MIN_STEPS]
        if not fitting:
            return min(runs, key=lambda run: run.seconds)
        trusted = [run for run in fitting if is_trusted(run.choice, text)]
        return min(trusted or fitting, key=lambda run: run.val_loss)

    def config(self, choice: Choice, val_fraction: float | None = None) -> Config:
        """Return the config of run `choice`; raise ConfigError if `base` forbids its shape."""
        T = self._window_of(choice)
        config = settings_for(choice, T, self.batch_size, repeats=self.offsets_keys)
        changes: dict[str, Any] = {
            "train.minutes": self.minutes,
            "train.sample_length": SAMPLE_LENGTH,
            "train.eval_every": f"{100 // self.evaluations} %",
        }
        if self.device.type == "cuda" and self.minutes < MIN_COMPILED_MINUTES:
            changes["train.compile"] = "off"
        if "train.warmup_steps" in self.kept:
            changes["train.steps"] = max(config.train.steps, self.kept["train.warmup_steps"])
        if self.base.model.exportable:
            changes["model.attention_scale"] = None  # 1, as queries and keys are not normalised
        if "model.n_head" in self.kept:
            changes["model.head_size"] = None  # C / n_head
        if val_fraction is not None:
            changes["data.val_fraction"] = val_fraction
        return self._divided(load_config(config, [*changes.items(), *self.kept.items()]))

    def _divided(self, config: Config) -> Config:
        """Return `config` with the fewest micro-batches that an accelerator's memory allows."""
        if self.device.type == "cpu" or "accumulation" in self.base.train.model_fields_set:
            return config
        B = config.train.batch_size
        for count in (n for n in range(1, B + 1) if B % n == 0):
            divided = config.changed(train={"accumulation": count})
            if self._fits(divided):
                return config if count == 1 else divided
        return config

    def _fits(self, config: Config) -> bool:
        needed = training_bytes(config, self.speed.V, self.device, ranks=self.ranks)
        on_host = HOST_PARTS if self.device.type == "cuda" else ()
        on_device = sum(needed[name] for name in needed if name not in on_host)
        return on_device <= MAX_MEMORY_FRACTION * self.free

    def _shapes(self) -> list[tuple[Config, Choice]]:
        """Return (config, choice) for each allowed combination of n_layer, C and members."""
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
                own = config.changed(model={"ensemble": members})
                shapes.append((own, replace(choice, members=members)))
        if refused and not shapes:
            raise refused
        return shapes

    def _options(self, key: str, options: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return `options`, or only the value of the model setting `key` if `self.base` sets it."""
        model = self.base.model
        return (getattr(model, key),) if key in model.model_fields_set else options

    def _context(self, limit: int) -> int:
        T: int = self._options("T", (context_length(self.shortest_split, limit),))[0]
        return T

    def _window_of(self, choice: Choice) -> int:
        return self.large_T if choice.parameters(self.speed.V) >= LARGE_PARAMETERS else self.T

    def _pace(self, config: Config) -> Pace:
        pace = self.speed.predict(self.on_one_process(config, config.model.ensemble))
        return Pace(pace.train_s / self.ranks.size, pace.evaluation_s / self.ranks.size)

    def _runs(
        self, config: Config, shape: Choice, text: Difficulty, scored: int, seconds: float
    ) -> Iterator[PredictedRun]:
        """Yield the best run of `shape` for each token dropout; for other arguments see `best`."""
        pace = self._pace(config)
        fixed_s = END_S + scored * pace.evaluation_s + self.evaluations * EVALUATION_OVERHEAD_S
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
            steps = steps_in(choice.characters, T, self.batch_size)
            run_s = (fixed_s + choice.characters * pace.train_s) / (1 - EVALUATION_FRACTION)
            yield PredictedRun(loss, choice, steps, run_s, choice.characters < longest)


def best_length(choice: Choice, text: Difficulty) -> int:
    """Return the run length with the lowest predicted val loss, in characters per member."""
    return _shortened(replace(choice, characters=LENGTHS[-1]), text)[1].characters


def _shortened(choice: Choice, text: Difficulty) -> tuple[float, Choice]:
    """Shorten the run while this lowers its predicted val loss; return that loss and the run."""
    loss = predict(choice, text)
    for characters in reversed(LENGTHS[: bisect_left(LENGTHS, choice.characters)]):
        shorter = replace(choice, characters=characters)
        shorter_loss = predict(shorter, text)
        if shorter_loss >= loss:
            break
        loss, choice = shorter_loss, shorter
    return loss, choice
