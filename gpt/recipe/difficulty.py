"""How hard a text is to predict: what a small model learns of it in a moment."""

from dataclasses import dataclass

from gpt.config.schema import Config
from gpt.device import computing_with, select_device
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import make_model
from gpt.recipe.settings import Choice, settings_for
from gpt.text.corpus import Corpus
from gpt.training.ensemble import make_step
from gpt.training.memory import check_training_memory

PILOT = Choice(n_layer=2, C=64, characters=100_000)
FIRST_PART = 4  # of the pilot, as a part of all its steps
SCORED = 60_000  # characters of val, evenly spread


@dataclass(frozen=True)
class Difficulty:
    """A text, to the law of `law.py`.

    `pilot_loss` is the val loss of the PILOT, and `pilot_gain` by how much that is below its val
    loss after the first quarter of its steps.
    """

    train_ids: int
    V: int
    pilot_loss: float
    pilot_gain: float


def measure_difficulty(corpus: Corpus, T: int, base: Config) -> Difficulty:
    """Train the PILOT on windows of T, as `base` computes: about three seconds of a core.

    Raises OutOfMemory if there is none for it, as for a vocabulary of a million characters.
    """
    config, device = settings_for(PILOT, T), select_device(base.device)
    check_training_memory(config, len(corpus.vocabulary), device)
    with computing_with(base.threads):
        model = make_model(config.model, len(corpus.vocabulary), config.seed).to(device)
        update = make_step(model, corpus.train, config, device, corpus.vocabulary)
        losses = []
        for step in range(config.train.steps):
            update(step)
            if step + 1 in (config.train.steps // FIRST_PART, config.train.steps):
                losses.append(evaluate(model, corpus.val, corpus.vocabulary, characters=SCORED))
    first, last = losses
    return Difficulty(len(corpus.train), len(corpus.vocabulary), last, first - last)
