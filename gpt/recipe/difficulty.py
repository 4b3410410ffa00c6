"""How hard a text is to predict: what a small model, the pilot, learns of it in a moment."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpt.config.schema import Config
from gpt.device import computing_with, select_device
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import make_model
from gpt.recipe.settings import Choice, settings_for, step_characters
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids
from gpt.training.ensemble import make_step
from gpt.training.memory import check_training_memory

LAYERS, C = 2, 64
STEPS = 195  # at most
STEP_CHARACTERS = 512  # of a step; in two minutes and more, MOST_OFTEN times as many
OFTEN_A_MINUTE, MOST_OFTEN = 4, 8
MOST_PASSES = 4  # over the text: one that overfits says little
FIRST_PART = 4  # of the pilot, as a part of all its steps
LAST_STEPS = 20  # whose train loss counts
SCORED = 60_000  # characters of val, evenly spread


@dataclass(frozen=True)
class Difficulty:
    """A text, to the law of `law.py`: val losses of the pilot, in nats per id.

    Attributes:
        pilot_loss: at its end.
        pilot_gain: by how much that is below the one after the first quarter of its steps.
        pilot_gap: by how much it is above the train loss.
        pilot_characters: what a run by `settings_for` sees to learn as much. The pilot's steps may
            be larger, which takes less time but more characters.
    """

    train_ids: int
    V: int
    pilot_loss: float
    pilot_gain: float
    pilot_gap: float
    pilot_characters: int


def measure_difficulty(
    corpus: Corpus,
    T: int,
    base: Config,
    minutes: float,
    before_each: Callable[[], object] = lambda: None,
    val: Ids | None = None,
) -> Difficulty:
    """Train the pilot on windows of T, as `base` computes, in a small part of these minutes.

    From two minutes on, it takes about seven seconds of two cores that multiply bfloat16.
    `before_each` is called before each step; what it raises ends the pilot. Losses are those of
    `val`, by default the corpus's.

    Raises OutOfMemory if there is none for it, as for a vocabulary of a million characters.
    """
    often = min(MOST_OFTEN, OFTEN_A_MINUTE * minutes)
    often = min(often, MOST_PASSES * len(corpus.train) / (STEPS * STEP_CHARACTERS))
    config, device = pilot_config(T, max(1, int(often))), select_device(base.device)
    val = corpus.val if val is None else val
    check_training_memory(config, len(corpus.vocabulary), device)
    with computing_with(base.threads):
        model = make_model(config.model, len(corpus.vocabulary), config.seed).to(device)
        update = make_step(model, corpus.train, config, device, corpus.vocabulary)
        results, val_losses = [], []
        steps, in_step = config.train.steps, config.train.batch_size * T
        for step in range(steps):
            before_each()
            results.append(update(step))
            if step + 1 in (steps // FIRST_PART, steps):
                val_loss = evaluate(model, val, corpus.vocabulary, characters=SCORED)
                val_losses.append(val_loss)
        train_losses = [loss for [[loss], _] in update.read(results[-LAST_STEPS:])]
    better_spent = math.sqrt(step_characters(steps * in_step, T) / in_step)
    first, last = val_losses
    return Difficulty(
        train_ids=len(corpus.train),
        V=len(corpus.vocabulary),
        pilot_loss=last,
        pilot_gain=first - last,
        pilot_gap=last - sum(train_losses) / len(train_losses),
        pilot_characters=round(steps * in_step * min(1.0, better_spent)),
    )


def pilot_config(T: int, often: int) -> Config:
    """That of a pilot which sees so many times STEP_CHARACTERS in a step.

    Where a window is longer, it sees one in a step, and makes fewer steps.
    """
    batch = max(1, often * STEP_CHARACTERS // T)
    steps = max(FIRST_PART, min(STEPS, STEPS * often * STEP_CHARACTERS // (batch * T)))
    config = settings_for(Choice(LAYERS, C, steps * batch * T), T)
    changes = {"steps": steps, "batch_size": batch, "warmup_steps": min(5, steps)}
    return config.model_copy(update={"train": config.train.model_copy(update=changes)})
