"""Of all configs that a text and a time allow, the one with the lowest predicted val loss."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from gpt.config.load import load_config
from gpt.config.schema import MAX_COUNT, Config, explicit
from gpt.config.yaml import as_flow
from gpt.device import computing_with, select_device
from gpt.errors import ConfigError, OutOfMemory
from gpt.memory import free_bytes, gigabytes
from gpt.recipe.difficulty import Difficulty
from gpt.recipe.law import predict
from gpt.recipe.settings import Choice, settings_for, step_characters, steps_in
from gpt.recipe.speed import MEMBERS, Pace, Speed, with_members
from gpt.text.corpus import Corpus
from gpt.training.memory_estimate import check_training_memory, training_bytes

LAYERS = (2, 3, 4, 6, 8, 12)
CHANNELS_PER_LAYER = 32  # at least, where both are open: the law knows no deeper models
CHANNELS = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768)
TOKEN_DROPOUTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
LENGTHS = tuple(round(1e4 * 1.2**i) for i in range(120))  # in characters, of runs that end early
BETWEEN_EVALUATIONS_S = 24  # at least: with what comes with it, one takes up to a second
EVALUATIONS = (2, 4, 5, 10)  # of a run: each, of which 100 % is a multiple, at equal distances
EVALUATED = 0.03  # of the time, before the last evaluation
LAST_EVALUATED = 0.25  # of the time at most: beyond, less of the text becomes val,
LESS_EVALUATED = 0.05  # so that it takes this part
AROUND_EVALUATION_S = 0.4  # sample, attention maps, checkpoint
AFTERWARDS_S = 3.0  # pictures at the end, and the command's own sample
NEARLY = 1.003  # times the lowest predicted loss is as good, where a longer run would overfit
FEWEST_STEPS = 9  # of a run: the law knows none as short
LEAST_TRAINED = 0.1  # of the time, however little is left
SAMPLE_LENGTH = 100
USED_MEMORY = 0.8  # of what is free, at most
DECIDED_BY_TIME = ("train.steps",)


@dataclass(frozen=True)
class Run:
    """A choice, and what a run by it is predicted to reach and to take.

    One that `ends_early` leaves time unused.
    """

    val_loss: float
    choice: Choice
    pace: Pace
    seconds: float
    ends_early: bool


class Chooser:
    """All configs that leave what `base` sets as it is, and what they are predicted to reach.

    If the text `repeats` itself, see `settings_for`, those have offset keys that can, unless `base`
    says otherwise. `offsets_keys` is whether any does.
    """

    def __init__(
        self,
        corpus: Corpus,
        speed: Speed,
        base: Config,
        T: int,
        minutes: float,
        repeats: bool,
    ) -> None:
        self.minutes = minutes
        often = 60 * minutes / BETWEEN_EVALUATIONS_S
        if {"stop_at_val_loss", "patience"} & base.train.model_fields_set:
            often = math.inf  # they look at every evaluation
        self.evaluations = max(n for n in EVALUATIONS if n <= max(often, EVALUATIONS[0]))
        self.corpus, self.speed, self.base, self.T = corpus, speed, base, T
        self.kept = [
            f"{key}={as_flow(value)}"
            for key, value in explicit(base).items()
            if key not in DECIDED_BY_TIME
        ]
        self.device = select_device(base.device)
        on_cuda = self.device.type == "cuda"
        self.free = torch.cuda.mem_get_info(self.device)[0] if on_cuda else free_bytes()
        train = base.train
        self.batch_size = train.batch_size if "batch_size" in train.model_fields_set else None
        self.offsets_keys = repeats
        self.shapes = self._shapes()
        if repeats and not any(config.model.key_offset for config, _ in self.shapes):
            self.offsets_keys = False
            self.shapes = self._shapes()

    def near(self, choice: Choice) -> Config:
        """The config of such a choice; or of that of its open shapes which is most like it."""

        def unlike(shape: Choice) -> float:
            depth, width = shape.n_layer / choice.n_layer, shape.C / choice.C
            return abs(math.log(depth)) + abs(math.log(width))

        nearest = min((shape for _, shape in self.shapes), key=unlike)
        return self.config(replace(choice, n_layer=nearest.n_layer, C=nearest.C))

    def memory_bytes(self, config: Config) -> float:
        """What training by this config takes."""
        with computing_with(self.base.threads):
            return sum(training_bytes(config, self.speed.V, self.device).values())

    def has_room(self, config: Config) -> bool:
        """Whether there is memory for training by this config."""
        return self.memory_bytes(config) <= USED_MEMORY * self.free

    def val_fraction(self, seconds: float, config: Config) -> float | None:
        """How much of the text the last evaluation, of such a model, is to score.

        None: val as it is, in time.
        """
        ids, characters = len(self.corpus.val), self.corpus.val_characters
        each_s = self.speed.predict(config).evaluation_s
        fixed = {"val_fraction", "val_source", "split"} & self.base.data.model_fields_set
        if fixed or ids * each_s <= LAST_EVALUATED * seconds:
            return None
        least = 2 * (self.T + 2)  # of which rounding leaves half or more
        affordable = int(LESS_EVALUATED * seconds / each_s * characters / ids)
        fraction = _rounded_down(max(least, affordable) / self.corpus.characters)
        return fraction if fraction * self.corpus.characters < characters else None

    def best(self, text: Difficulty, seconds: float, scored: int) -> Run:
        """Return the run with the lowest predicted loss that takes at most `seconds`.

        If that run ends early, as a longer one would overfit, the shortest of those whose loss is
        within NEARLY counts as equal, and the lowest loss is predicted: more time is never
        predicted to be worse. If no run of FEWEST_STEPS fits, return the one that takes the least.

        Args:
            text: what the pilot learnt of the text.
            seconds: the time left.
            scored: ids of the last evaluation.

        Raises:
            OutOfMemory: no model has room.
        """
        with computing_with(self.base.threads):  # once: it takes a moment
            shapes = [shape for shape in self.shapes if self.has_room(shape[0])]
            if not shapes:
                check_training_memory(self.shapes[0][0], text.V, self.device)
                raise OutOfMemory(
                    f"expected memory for a small model, got {gigabytes(self.free)} that are free; "
                    f"end other programs, or set a smaller model.T"
                )
        runs = [run for shape in shapes for run in self._runs(*shape, text, scored, seconds)]
        fitting = [
            run
            for run in runs
            if run.seconds <= seconds and self._steps(run.choice.characters) >= FEWEST_STEPS
        ]
        if not fitting:
            return min(runs, key=lambda run: run.seconds)
        run = min(fitting, key=lambda run: run.val_loss)
        if not run.ends_early:
            return run
        enough = NEARLY * run.val_loss  # a smaller model, or a shorter run, overfits less
        equal = [each for each in fitting if each.val_loss <= enough]
        lowest = min(_lowest_loss(each.choice, text) for each in equal)
        return replace(min(equal, key=lambda each: each.seconds), val_loss=lowest)

    def config(self, choice: Choice, val_fraction: float | None = None) -> Config:
        """The settings of a choice, but for those that `base` sets. Raises ConfigError.

        If a `val_fraction` is given, val is to be this part of the text.
        """
        try:
            return self._config(choice, val_fraction, self.offsets_keys)
        except ConfigError:
            if not self.offsets_keys:
                raise
        return self._config(choice, val_fraction, False)  # its keys may have no half to offset

    def _config(self, choice: Choice, val_fraction: float | None, repeats: bool) -> Config:
        config = settings_for(choice, self.T, self.batch_size, repeats=repeats)
        changes: dict[str, Any] = {
            "train.minutes": self.minutes,
            "train.sample_length": SAMPLE_LENGTH,
            "train.eval_every": f"{100 // self.evaluations} %",
        }
        if "warmup_steps" in self.base.train.model_fields_set:
            changes["train.steps"] = max(config.train.steps, self.base.train.warmup_steps)
        if "n_head" in self.base.model.model_fields_set:
            changes["model.head_size"] = None  # as of any text
        if val_fraction is not None:
            changes["data.val_fraction"] = val_fraction
        chosen = [f"{key}={as_flow(value)}" for key, value in changes.items()]
        return load_config(config, [*chosen, *self.kept])

    def _shapes(self) -> list[tuple[Config, Choice]]:
        """Layers and channels, of those that are left open, and the members of an ensemble.

        Raises ConfigError if what `base` sets fits none of them.
        """
        shapes: list[tuple[Config, Choice]] = []
        refused: ConfigError | None = None
        is_open = not {"n_layer", "C"} & self.base.model.model_fields_set
        for n_layer, C in product(self._open("n_layer", LAYERS), self._open("C", CHANNELS)):
            if is_open and n_layer * CHANNELS_PER_LAYER > C:
                continue
            choice = Choice(n_layer, C, len(self.corpus.train))
            try:
                config = self.config(choice)
            except ConfigError as error:  # as of a number of heads that divides some C alone
                refused = error
                continue
            for members in self._open("ensemble", MEMBERS):
                shapes.append((with_members(config, members), replace(choice, members=members)))
        if refused and not shapes:
            raise refused
        return shapes

    def _open(self, key: str, choices: tuple[Any, ...]) -> tuple[Any, ...]:
        """What `base` sets, or else all choices."""
        model = self.base.model
        return (getattr(model, key),) if key in model.model_fields_set else choices

    def _runs(
        self, config: Config, shape: Choice, text: Difficulty, scored: int, seconds: float
    ) -> Iterator[Run]:
        """The best runs of a shape, each with so much token dropout."""
        pace = self.speed.predict(config)
        fixed_s = AFTERWARDS_S + scored * pace.evaluation_s + self.evaluations * AROUND_EVALUATION_S
        training_s = max((1 - EVALUATED) * seconds - fixed_s, LEAST_TRAINED * seconds)
        most = max(1, int(training_s / pace.train_s))
        max_steps = self.base.train.max_steps or MAX_COUNT
        while self._steps(most) > max_steps:
            most = max_steps * step_characters(most, self.T, self.batch_size)
        for dropout in self._open("character_dropout", TOKEN_DROPOUTS):
            choice = replace(shape, characters=most, token_dropout=dropout)
            loss, choice = _shortened(choice, text)
            early = choice.characters < most
            used_s = fixed_s + choice.characters * pace.train_s
            used_s = used_s / (1 - EVALUATED) if early else used_s + EVALUATED * seconds
            yield Run(loss, choice, pace, used_s, ends_early=early)

    def _steps(self, characters: int) -> int:
        return steps_in(characters, self.T, self.batch_size)


def longest(choice: Choice, text: Difficulty) -> int:
    """The characters of such a run beyond which the predicted loss rises, as it overfits."""
    return _shortened(replace(choice, characters=LENGTHS[-1]), text)[1].characters


def _shortened(choice: Choice, text: Difficulty) -> tuple[float, Choice]:
    """The choice with the lowest predicted loss that sees at most as many characters.

    If the lowest is that of a shorter one, the shortest of those that are nearly as low.
    """
    whole = lowest = loss = predict(choice, text)
    for characters in reversed(LENGTHS[: bisect_left(LENGTHS, choice.characters)]):
        shorter = replace(choice, characters=characters)
        of_shorter = predict(shorter, text)
        if of_shorter >= (NEARLY * lowest if lowest < whole else lowest):
            break
        loss, choice, lowest = of_shorter, shorter, min(lowest, of_shorter)
    return loss, choice


def _lowest_loss(choice: Choice, text: Difficulty) -> float:
    """Return the lowest predicted loss of lengths between those of LENGTHS around the choice's."""
    lengths = (round(choice.characters * 1.2 ** (i / 8)) for i in range(-8, 9))
    return min(predict(replace(choice, characters=length), text) for length in lengths)


def _rounded_down(number: float) -> float:
    """To one digit."""
    digit = 10.0 ** math.floor(math.log10(number))
    return float(f"{math.floor(number / digit) * digit:.1g}")
