"""How hard a text is to predict: what a small model, the pilot, learns of it in a moment."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpt.config.schema import Config
from gpt.device import computing_with, select_device
from gpt.distributed.ranks import SINGLE
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import make_model, members_of
from gpt.recipe.repetition import SCORED, context_of, repeated_loss, repeated_part
from gpt.recipe.settings import Choice, settings_for
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids
from gpt.training.build_step import build_step
from gpt.training.memory_estimate import check_training_memory

LAYERS, C = 2, 64
FEWEST_CHARACTERS, MOST_CHARACTERS = 100_000, 800_000  # that the pilot sees
CHARACTERS_A_MINUTE = 400_000  # of the time that there is
MOST_PASSES = 4  # over the text: one that overfits says little
FIRST_PART = 4  # of the pilot, as a part of all its steps
PILOT_EVALUATIONS = 2  # after that part and at the end
LAST_STEPS = 20  # whose train loss counts


@dataclass(frozen=True)
class Difficulty:
    """A text, to the law of `law.py`: val losses of the pilot, in nats per id.

    Attributes:
        pilot_loss: at its end.
        pilot_gain: by how much that of ids which are not repeated is below the one after the first
            quarter of its steps.
        pilot_gap: by how much `pilot_loss` is above the train loss.
        pilot_characters: what it sees.
        repeated_part: of val, if the text repeats itself, see repetition.py; else 0.
        pilot_repeated: what that part of the ids adds to `pilot_loss`.
    """

    train_ids: int
    V: int
    pilot_loss: float
    pilot_gain: float
    pilot_gap: float
    pilot_characters: int
    repeated_part: float = 0.0
    pilot_repeated: float = 0.0


def pilot_config(characters: int, T: int, *, repeats: bool) -> Config:
    """The config of a pilot that sees so many characters."""
    return settings_for(Choice(LAYERS, C, characters), T, repeats=repeats)


def measure_difficulty(
    corpus: Corpus,
    T: int,
    base: Config,
    minutes: float,
    before_each: Callable[[], object] = lambda: None,
    val: Ids | None = None,
    *,
    repeats: bool = False,
    affordable: float = math.inf,
) -> Difficulty:
    """Train the pilot on windows of T, as `base` computes, in a small part of these minutes.

    Where they train slowly, it is to see no more characters than are `affordable`, but for
    FEWEST_CHARACTERS. `before_each` is called before each step; what it raises ends the pilot.
    Losses are those of `val`, by default the corpus's. If the text `repeats` itself, the pilot is
    one for such texts, see `settings_for`.

    Raises OutOfMemory if there is none for it, as for a vocabulary of a million characters.
    """
    most = min(MOST_CHARACTERS, CHARACTERS_A_MINUTE * minutes, affordable)
    characters = max(FEWEST_CHARACTERS, min(most, MOST_PASSES * len(corpus.train)))
    characters = max(FIRST_PART * T, round(characters))
    config = pilot_config(characters, T, repeats=repeats)
    device = select_device(base.device)
    val = corpus.val if val is None else val
    context = context_of(corpus, T)
    check_training_memory(config, len(corpus.vocabulary), device)
    with computing_with(base.threads):
        model = make_model(config.model, len(corpus.vocabulary), config.seed).to(device)
        update = build_step(config, model, device, SINGLE, corpus.train, corpus.vocabulary)
        results, val_losses = [], []
        steps = config.train.steps
        for step in range(steps):
            before_each()
            results.append(update(step))
            if step + 1 in (steps // FIRST_PART, steps):
                val_loss = evaluate(model, val, corpus.vocabulary, characters=SCORED)
                pilot = members_of(model)[0]
                repeated = repeated_loss(pilot, val, corpus.vocabulary, context) if repeats else 0.0
                val_losses.append((val_loss, repeated))
        train_losses = [loss for [[loss], _] in update.read(results[-LAST_STEPS:])]
    (first, repeated_first), (last, repeated_last) = val_losses
    return Difficulty(
        train_ids=len(corpus.train),
        V=len(corpus.vocabulary),
        pilot_loss=last,
        pilot_gain=(first - repeated_first) - (last - repeated_last),
        pilot_gap=last - sum(train_losses) / len(train_losses),
        pilot_characters=characters,
        repeated_part=repeated_part(val, T, context) if repeats else 0.0,
        pilot_repeated=repeated_last,
    )
