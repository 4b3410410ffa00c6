"""Plan a run: find the config with the lowest predicted val loss on a text in a given time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gpt.config.load import load_config
from gpt.config.schema import MAX_COUNT, Config
from gpt.device import select_device
from gpt.distributed.ranks import SINGLE, Ranks
from gpt.errors import Interrupted, counted
from gpt.model.shapes import parameter_count
from gpt.model.transformer import LARGE_VOCABULARY
from gpt.recipe.chooser import Chooser, best_length
from gpt.recipe.difficulty import MAX_PILOT_CHARACTERS, Difficulty, measure_difficulty, pilot_config
from gpt.recipe.law import is_extrapolated, uncertainty, why_unknown
from gpt.recipe.repetition import MAX_SCORED_IDS
from gpt.recipe.settings import Choice
from gpt.recipe.speed import Pace, Speed, measure_paces, threads_of_members
from gpt.status import phase
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids

# (layers, channels) of the models that are measured first, and a guess of their characters/s, which
# sets their batch size. The keys are whether they use an accelerator, where `Speed` fits 3 costs.
FIRST_MEASURED = {False: ((2, 64), (2, 128)), True: ((2, 128), (2, 512), (8, 512))}
FIRST_PACE = {False: 20_000, True: 2_000_000}
LONGEST_GUESS = 10**11  # largest guess of a run's characters; batches grow no further
MAX_ELAPSED_FRACTION = 0.5  # fraction of the time after which no further config is measured
PILOT_FRACTION = 0.05  # largest fraction of the remaining time for the pilot
LONG_PILOT_FRACTION = 0.15  # the same for repetitive or large texts, and large vocabularies
LARGE_TEXT = 4_000_000  # ids of the train split from which a text is large
MAX_SPEED_UP = 10  # largest speed-up over the measured pace to allow for
FREE_FRACTION = 0.02  # fraction of the time that is kept free
MIN_PLAN_FRACTION = 0.1  # smallest fraction of the time to plan for, after slow measurements


@dataclass(frozen=True)
class Plan:
    """A config, and the predicted val loss of a run with it.

    If evaluating the whole val split would take too long, `config` has a smaller
    `data.val_fraction` than the corpus. The caller must then split the corpus again.
    """

    config: Config  # with `train.max_steps` if unexpectedly fast training could overfit
    val_loss: float  # nats per character
    uncertainty: float  # standard deviation of `val_loss`, in nats per character
    extrapolated: bool  # whether the run is unlike those that the law was fitted on
    unknown: str | None  # why the val loss cannot be predicted (then ignore `val_loss`), or None
    parameters: int
    unit: str  # the name of an id of the text, "character" or "byte"
    passes: float  # over the train split
    seconds: float  # duration of the whole command
    ends_early: bool  # whether it leaves time unused, because a longer run would overfit

    def describe(self) -> list[str]:
        """Return lines of text: model, training, and predicted val loss."""
        model, train = self.config.model, self.config.train
        dropout = model.character_dropout
        regularised = f", token dropout {dropout:g}" if dropout else ""
        members = f"{model.ensemble} members of " if model.ensemble > 1 else ""
        early = "; a longer run would overfit" if self.ends_early else ""
        passes = f"{self.passes:.2g}"
        in_step = train.batch_size * model.T
        lines = [
            f"model: {members}{counted(model.n_layer, 'layer')}, C {model.C}, "
            f"{counted(model.n_head, 'head')}, T {model.T}; "
            f"{counted(self.parameters, 'parameter')}",
            f"training: steps of {counted(in_step, self.unit)}, about {passes} "
            f"{'pass' if passes == '1' else 'passes'} over the text{regularised}{early}",
        ]
        if self.unknown:
            return [*lines, f"no prediction: {self.unknown}"]
        loss = f"{self.val_loss:.2f} ± {self.uncertainty:.2f} nats per character"
        other = ", extrapolated from runs of other sizes" if self.extrapolated else ""
        return [*lines, f"predicted val loss: {loss}{other}"]


def plan(
    corpus: Corpus,
    minutes: float,
    base: Config | None = None,
    *,
    elapsed_s: float = 0.0,
    difficulty: Difficulty | None = None,
    speed: Speed | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    ranks: Ranks = SINGLE,
) -> Plan:
    """Return the config with the lowest predicted val loss on a text in the given time.

    `minutes` includes the time to measure the speed of a few configs and to train the pilot, a
    small model that measures the text.

    Args:
        corpus: the text.
        minutes: the time for the whole command.
        base: a config whose explicit settings are kept, except train.steps.
        elapsed_s: the seconds of `minutes` that have passed already.
        difficulty: how hard the text is to predict; measured by default.
        speed: how fast models train on this machine; measured by default.
        should_stop: called before each step; if it returns True, Interrupted is raised.
        ranks: the processes that will train together. This process plans for all of them.
    """

    def check_stop() -> None:
        if should_stop():
            raise Interrupted("stopped before training began; nothing is written")

    began, base = time.perf_counter(), base or Config()
    limit_s = (1 - FREE_FRACTION) * 60 * minutes
    is_measured = speed is None
    speed = speed or Speed(
        len(corpus.vocabulary),
        partial(measure_paces, corpus=corpus, before_each=check_stop),
        threads_of_members(base, ranks),
        launches_kernels=select_device(base.device).type != "cpu",
    )

    def used_s() -> float:
        return elapsed_s + (time.perf_counter() - began if is_measured else 0.0)

    def remaining_s() -> float:
        return max(limit_s - used_s(), MIN_PLAN_FRACTION * limit_s)

    repeats = None if difficulty is None else difficulty.repeated_part > 0
    chooser = Chooser(corpus, speed, base, minutes, repeats, ranks)
    largest, pilot_pace = _measure_first(chooser, limit_s)
    val_fraction = chooser.val_fraction(remaining_s(), largest)
    val_characters = chooser.val_characters(val_fraction)
    val = corpus.last(val_characters)  # whose loss is predicted
    if difficulty is None:
        difficulty = _measure_text(chooser, val, pilot_pace, remaining_s(), check_stop)
    first = FIRST_MEASURED[speed.launches_kernels]
    while True:
        with phase("choosing the model and its settings"):
            run = chooser.best(difficulty, remaining_s(), len(val))
            config = chooser.config(run.choice, val_fraction)
        is_late = used_s() > MAX_ELAPSED_FRACTION * limit_s
        part = chooser.on_one_process(config)
        if is_late or speed.has_measured(part) or len(speed.measured) > len(first):
            break
        with phase("measuring the training speed of the chosen model"):
            speed.add(part)

    ids_per_character, train = len(val) / val_characters, config.train
    in_step = train.batch_size * config.model.T
    best_steps = max(train.steps, best_length(run.choice, difficulty) // in_step)
    if best_steps < min(MAX_SPEED_UP * train.steps, train.max_steps or MAX_COUNT):
        config = load_config(config, [("train.max_steps", best_steps)])
    unknown = why_unknown(run.choice, difficulty, corpus.vocabulary.unit)
    if config.model.ngram == 1:
        unknown = "the formula was fitted to models with n-gram embeddings"
    deviation = uncertainty(run.val_loss, run.choice, difficulty)
    return Plan(
        config=config,
        val_loss=ids_per_character * run.val_loss,
        uncertainty=ids_per_character * deviation,
        extrapolated=is_extrapolated(run.val_loss, run.choice, difficulty),
        unknown=unknown,
        parameters=parameter_count(config.model, difficulty.V),
        unit=corpus.vocabulary.unit,
        passes=train.steps * in_step / len(corpus.train),
        seconds=used_s() + run.seconds,
        ends_early=run.ends_early,
    )


def _measure_first(chooser: Chooser, limit_s: float) -> tuple[Config, Pace]:
    """Measure the speed of some models; return the config of the largest, and the pilot's pace."""
    speed, base = chooser.speed, chooser.base
    characters = min(round(FIRST_PACE[speed.launches_kernels] * limit_s), LONGEST_GUESS)
    shapes = FIRST_MEASURED[speed.launches_kernels]
    configs = [chooser.near(Choice(*shape, characters)) for shape in shapes]
    parts = dict.fromkeys(map(chooser.on_one_process, configs))  # equal if `base` sets the shape
    pilot = pilot_config(MAX_PILOT_CHARACTERS, chooser.T, repeats=chooser.offsets_keys)
    pilot = pilot.model_copy(update={"device": base.device, "threads": base.threads})
    with phase("measuring the training speed"):
        speed.add(*parts)
        [pace] = speed.measure([pilot])
    return configs[-1], pace


def _measure_text(
    chooser: Chooser,
    val: Ids,
    pace: Pace,
    remaining_s: float,
    check_stop: Callable[[], None],
) -> Difficulty:
    """Train the pilot, a small model, and return its results.

    Args:
        chooser: contains the text, and the time for the whole command.
        val: the ids of the val split to predict.
        pace: the speed of the pilot.
        remaining_s: remaining seconds of the whole command. Measurements take a part of them.
        check_stop: called before each step of the pilot.
    """
    corpus, repeats = chooser.corpus, chooser.offsets_keys
    scorings = 4 if repeats else 2  # two evaluations; each scores repeated ids separately
    evaluation_s = scorings * min(MAX_SCORED_IDS, len(val)) * pace.evaluation_s
    is_large = chooser.speed.V >= LARGE_VOCABULARY or len(corpus.train) >= LARGE_TEXT
    fraction = LONG_PILOT_FRACTION if repeats or is_large else PILOT_FRACTION
    max_characters = (fraction * remaining_s - evaluation_s) / pace.train_s
    with phase("training a small test model, to see how hard the text is to predict"):
        return measure_difficulty(
            corpus,
            chooser.T,
            chooser.base,
            chooser.minutes,
            check_stop,
            val,
            repeats=repeats,
            max_characters=max_characters,
        )
