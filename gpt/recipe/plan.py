"""The config that is predicted to learn a text best in a given time, and what it promises."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gpt.config.load import load_config
from gpt.config.schema import LARGEST, Config
from gpt.errors import Interrupted, counted
from gpt.model.shapes import parameter_count
from gpt.model.transformer import LARGE_VOCABULARY
from gpt.recipe.chooser import Chooser, longest
from gpt.recipe.difficulty import (
    MOST_CHARACTERS,
    PILOT_EVALUATIONS,
    Difficulty,
    measure_difficulty,
    pilot_config,
)
from gpt.recipe.law import uncertainty, why_unknown
from gpt.recipe.repetition import SCORED, repeats_much
from gpt.recipe.settings import Choice, context_length
from gpt.recipe.speed import MEMBERS, Speed, measure_paces, threads_of_members, with_members
from gpt.status import phase
from gpt.text.corpus import Corpus
from gpt.text.preparation import train_characters

FIRST_MEASURED = ((2, 64), (2, 128))  # layers and channels
FIRST_PACE = 20_000  # characters/s: only a first guess, which decides the batch that is measured
LONGEST_GUESS = 10**11  # characters: from there on, batches are no larger
MOST_MEASURED = 4  # configs
MOST_GONE = 0.5  # of the time, for another config to be measured
PILOT = 0.05  # of the time that is left, at most; and this part of it where a short one says less:
PILOT_LONGER = 0.15  # of code, whose heads have to form, of large vocabularies and LARGE_TEXTs
LARGE_TEXT = 4_000_000  # ids of train, of which a short run sees no more than a part
FASTER = 10  # times as fast as was measured, at most, may training turn out to be
MARGIN = 0.02  # of the time is left free
FEW_AT_ONCE = 2  # members, which are held to gain BESIDE: to measure it takes as long as it saves
LEAST_LEFT = 0.1  # of the time, for a plan, however much is gone


@dataclass(frozen=True)
class Plan:
    """A config, and what a run by it is predicted to reach and to take.

    Attributes:
        val_loss: the predicted val loss, in nats per character.
        uncertainty: the standard deviation of what other runs reached around their prediction.
        unknown: why nothing is predicted, if the law does not apply; then the two do not count.
        unit: the name of an id of the text, "character" or "byte".
        seconds: those of the whole command.
        ends_early: the run is shorter than the time allows, as a longer one would overfit. If
            training turns out to be faster, `train.max_steps` of the config says where.

    If the config's `data.val_fraction` is not the corpus's, evaluating that would take too much of
    the time, and the corpus is to be split again.
    """

    config: Config
    val_loss: float
    uncertainty: float
    unknown: str | None
    parameters: int
    unit: str
    passes: float
    memory_bytes: float
    seconds: float
    ends_early: bool

    def describe(self, *, costs: bool = True) -> list[str]:
        """Return a few lines: what was chosen, what it takes (`costs`), and its predicted loss."""
        model, train = self.config.model, self.config.train
        dropout, mib = model.character_dropout, self.memory_bytes / 2**20
        regularised = f", token dropout {dropout:g}" if dropout else ""
        members = f"{model.ensemble} members of " if model.ensemble > 1 else ""
        early = "; a longer run would overfit" if self.ends_early else ""
        passes = f"{self.passes:.2g}"
        predicted = f"predicted val loss: {self.val_loss:.2f} ± {self.uncertainty:.2f} nats"
        return [
            f"model: {members}{counted(model.n_layer, 'layer')}, C {model.C}, "
            f"{counted(model.n_head, 'head')}, T {model.T}; {counted(self.parameters, 'parameter')}"
            + (f", about {mib:,.0f} MiB of memory" if costs else ""),
            f"training: steps of {counted(train.batch_size * model.T, self.unit)}, about "
            f"{passes} {'pass' if passes == '1' else 'passes'} over the text"
            f"{regularised}{f'; {self.seconds:.0f} s' if costs else ''}{early}",
            f"no prediction: {self.unknown}" if self.unknown else f"{predicted} per character",
        ]


def plan(
    corpus: Corpus,
    minutes: float,
    base: Config | None = None,
    *,
    elapsed_s: float = 0.0,
    text: Difficulty | None = None,
    speed: Speed | None = None,
    repeats: bool | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Plan:
    """The config that is predicted to reach the lowest val loss on a text in so many minutes.

    It measures the pace of a few configs, of the pilot's and of those that the law prefers if none
    that is measured is like them, so the time that it takes counts.

    Args:
        base: what it sets explicitly is kept, but for train.steps, which the minutes decide.
        elapsed_s: seconds of these minutes that are gone.
        text: how hard the text is; measured, if it is not given.
        speed: how fast models train here; measured, if it is not given.
        repeats: whether the text repeats itself; measured, if it is not given.
        should_stop: asked before each step, of the pilot and of what is measured.

    Raises:
        Interrupted: `should_stop` returned True.
        OutOfMemory: there is not enough memory for any model, or for those that are measured.
        TextError, ConfigError: the text has no room for a window of T; or `base` fits no model.
        DeviceError: there is no such device.
    """

    def go_on() -> None:
        if should_stop():
            raise Interrupted("stopped before training began; nothing is written")

    began, base = time.perf_counter(), base or Config()
    T = context_length(min(len(corpus.train), len(corpus.val)))
    T = base.model.T if "T" in base.model.model_fields_set else T
    corpus.check_fits(T)
    if repeats is None:
        with phase("measuring how much the text repeats itself"):
            repeats = repeats_much(corpus, T)
    V = text.V if text else len(corpus.vocabulary)
    is_measured = speed is None
    if speed is None:
        threads = threads_of_members(base)
        fixed = "ensemble" in base.model.model_fields_set
        members = base.model.ensemble if fixed else max(MEMBERS)
        measure = partial(measure_paces, corpus=corpus, before_each=go_on)
        speed = Speed(V, measure, threads, at_once=min(threads, members))
    chooser = Chooser(corpus, speed, base, T, minutes, repeats)
    limit_s = (1 - MARGIN) * 60 * minutes
    characters = min(round(FIRST_PACE * limit_s), LONGEST_GUESS)
    small, usual = (
        with_members(chooser.near(Choice(n_layer, C, characters)), 1)
        for n_layer, C in FIRST_MEASURED
    )
    computing = {"device": base.device, "threads": base.threads}
    pilot = pilot_config(MOST_CHARACTERS, T, repeats=chooser.offsets_keys)
    pilot = pilot.model_copy(update=computing)
    first = [*dict.fromkeys((small, usual))]  # one, if `base` sets the shape
    together = with_members(usual, speed.at_once)
    if speed.at_once > FEW_AT_ONCE and chooser.has_room(together):
        first.append(together)
    with phase("measuring the training speed"):
        of_pilot = speed.learn(*first, others=[] if text else [pilot])

    def gone_s() -> float:
        return elapsed_s + (time.perf_counter() - began if is_measured else 0.0)

    def left_s() -> float:
        return max(limit_s - gone_s(), LEAST_LEFT * limit_s)

    val_fraction, val_characters = chooser.val_fraction(left_s(), usual), corpus.val_characters
    if val_fraction is not None:  # what val will be, and its loss is predicted
        val_characters = corpus.characters - train_characters(corpus.characters, val_fraction)
    val = corpus.last(val_characters)
    if text is None:
        repeats = chooser.offsets_keys
        [pace] = of_pilot
        scorings = PILOT_EVALUATIONS * (2 if repeats else 1)  # what repeats itself is scored apart
        evaluated_s = scorings * min(SCORED, len(val)) * pace.evaluation_s
        is_large = V >= LARGE_VOCABULARY or len(corpus.train) >= LARGE_TEXT
        part = PILOT_LONGER if repeats or is_large else PILOT
        affordable = (part * left_s() - evaluated_s) / pace.train_s
        with phase("training a small test model, to see how hard the text is to predict"):
            text = measure_difficulty(
                corpus, T, base, minutes, go_on, val, repeats=repeats, affordable=affordable
            )
    while True:
        with phase("choosing the model and its settings"):
            run = chooser.best(text, left_s(), len(val))
            config = chooser.config(run.choice, val_fraction)
        is_late = gone_s() > MOST_GONE * limit_s
        if is_late or speed.knows(config) or len(speed.measured) >= MOST_MEASURED:
            break
        with phase("measuring the training speed of the chosen model"):
            speed.learn(with_members(config, 1))
    per_character, train = len(val) / val_characters, config.train
    in_step = train.batch_size * T
    overfits = max(train.steps, longest(run.choice, text) // in_step)
    if overfits < min(FASTER * train.steps, train.max_steps or LARGEST):
        config = load_config(config, [f"train.max_steps={overfits}"])
    return Plan(
        config=config,
        val_loss=per_character * run.val_loss,
        uncertainty=per_character * uncertainty(run.val_loss, run.choice, text),
        unknown=why_unknown(run.choice, text, corpus.vocabulary.unit),
        parameters=parameter_count(config.model, text.V),
        unit=corpus.vocabulary.unit,
        passes=train.steps * in_step / len(corpus.train),
        memory_bytes=chooser.memory_bytes(config),
        seconds=gone_s() + run.seconds,
        ends_early=run.ends_early,
    )
