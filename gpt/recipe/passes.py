"""Limit the steps of fine-tuning before it overfits."""

from gpt.config.schema import Config
from gpt.recipe.chooser import longest
from gpt.recipe.difficulty import MOST_CHARACTERS, MOST_PASSES, Difficulty
from gpt.recipe.law import USUAL_GAIN, USUAL_GAP
from gpt.recipe.settings import Choice
from gpt.text.corpus import Corpus

USUAL_LOSS = 1.8  # nats per character: val loss of the pilot on prose


def most_steps(config: Config, corpus: Corpus) -> int:
    """Return the number of steps after which a new model of this shape is predicted to overfit.

    The text is assumed to be typical prose, so that no pilot is needed.
    """
    model, characters = config.model, len(corpus.train)
    pilot = min(MOST_CHARACTERS, MOST_PASSES * characters)
    text = Difficulty(characters, len(corpus.vocabulary), USUAL_LOSS, USUAL_GAIN, USUAL_GAP, pilot)
    choice = Choice(model.n_layer, model.C, characters, model.character_dropout, model.ensemble)
    return max(1, longest(choice, text) // (config.train.batch_size * model.T))
