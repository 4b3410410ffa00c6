"""Measure how hard a text is to predict: train a small model, the pilot, and score it.

law.py predicts the val loss of a larger run on this text from the pilot's results.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpt.config.schema import Config
from gpt.device import computing_with, select_device
from gpt.distributed.ranks import SINGLE
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import make_model, members_of
from gpt.recipe.repetition import MAX_SCORED_IDS, context_of, repeated_loss, repeated_part
from gpt.recipe.settings import Choice, settings_for
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids
from gpt.training.build_step import build_step
from gpt.training.memory_estimate import check_training_memory

PILOT_LAYERS, PILOT_C = 2, 64  # layers and channels
MIN_PILOT_CHARACTERS, MAX_PILOT_CHARACTERS = 100_000, 800_000  # fewest and most, to train on
PILOT_CHARACTERS_PER_MINUTE = 400_000  # largest number for each minute of the whole command
MAX_PILOT_PASSES = 4  # passes over the text; a pilot that overfits says little
FIRST_PART = 4  # the pilot is evaluated after 1 / FIRST_PART of its steps, and at the end
LAST_STEPS = 20  # number of last steps whose mean loss is the train loss


@dataclass(frozen=True)
class Difficulty:
    """Results of the pilot, a small test model. Losses are val losses in nats per id."""

    train_ids: int  # number of ids of the train split
    V: int  # size of the vocabulary
    pilot_loss: float  # at the end of training
    pilot_gain: float  # fall of the loss in the last 3/4 of the steps, without `pilot_repeated`
    pilot_gap: float  # `pilot_loss` minus the train loss
    pilot_characters: int  # number of characters that the pilot was trained on
    repeated_part: float = 0.0  # fraction of val ids that repeat earlier ones, if measured
    pilot_repeated: float = 0.0  # the part of `pilot_loss` that comes from repeated ids


def pilot_config(characters: int, T: int, *, repeats: bool) -> Config:
    """Return the config of a pilot that is trained on `characters` ids; see `settings_for`."""
    return settings_for(Choice(PILOT_LAYERS, PILOT_C, characters), T, repeats=repeats)


def measure_difficulty(
    corpus: Corpus,
    T: int,
    base: Config,
    minutes: float,
    before_each: Callable[[], object] = lambda: None,
    val: Ids | None = None,
    *,
    repeats: bool = False,
    max_characters: float = math.inf,
) -> Difficulty:
    """Train the pilot on a text, and measure its losses.

    Args:
        corpus: the text.
        T: the attention window in ids.
        base: the config that sets the device and the threads.
        minutes: the time for the whole command. It limits the pilot's characters.
        before_each: called before each step. An exception that it raises ends the pilot.
        val: the ids to score; by default, those of the val split.
        repeats: whether the text repeats itself. Then the pilot gets heads that can copy.
        max_characters: the most characters to train on; at least MIN_PILOT_CHARACTERS are used.
    """
    most = min(MAX_PILOT_CHARACTERS, PILOT_CHARACTERS_PER_MINUTE * minutes, max_characters)
    most = min(most, MAX_PILOT_PASSES * len(corpus.train))
    characters = max(FIRST_PART * T, round(max(MIN_PILOT_CHARACTERS, most)))
    config = pilot_config(characters, T, repeats=repeats).changed(train={"compile": "off"})
    device = select_device(base.device)
    val = corpus.val if val is None else val
    context, V, steps = context_of(corpus, T), len(corpus.vocabulary), config.train.steps
    check_training_memory(config, V, device)
    with computing_with(base.threads):
        model = make_model(config.model, V, config.seed).to(device)
        update = build_step(config, model, device, SINGLE, corpus.train, corpus.vocabulary)
        results, val_losses = [], []
        for step in range(steps):
            before_each()
            results.append(update(step))
            if step + 1 in (steps // FIRST_PART, steps):
                loss = evaluate(model, val, corpus.vocabulary, characters=MAX_SCORED_IDS)
                pilot = members_of(model)[0]
                repeated = repeated_loss(pilot, val, corpus.vocabulary, context) if repeats else 0.0
                val_losses.append((loss, repeated))
        train_losses = [loss for [[loss], _] in update.read(results[-LAST_STEPS:])]
    (first, repeated_first), (last, repeated_last) = val_losses
    return Difficulty(
        train_ids=len(corpus.train),
        V=V,
        pilot_loss=last,
        pilot_gain=(first - repeated_first) - (last - repeated_last),
        pilot_gap=last - sum(train_losses) / len(train_losses),
        pilot_characters=characters,
        repeated_part=repeated_part(val, T, context) if repeats else 0.0,
        pilot_repeated=repeated_last,
    )
