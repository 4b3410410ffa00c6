"""How hard a text is to predict, as a small model and n-gram models say in a few seconds."""

from dataclasses import dataclass

from gpt.config.schema import Config
from gpt.device import computing_with, generator, select_device
from gpt.evaluation.loss import evaluate
from gpt.evaluation.ngrams import KneserNey, count_ngrams, ngram_loss
from gpt.evaluation.spread import spread_slices
from gpt.model.transformer import GPT
from gpt.recipe.settings import Choice, settings_for
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids
from gpt.training.step import TrainStep

PILOT = Choice(n_layer=2, C=64, characters=100_000)
PILOT_SCORED = 100_000  # characters of val, evenly spread
LONGEST_NGRAM = 5
COUNTED_IDS, SCORED_IDS = 2_000_000, 200_000  # of train and val at most, evenly spread
PART_IDS = 10_000  # of train and val, at a time
LARGEST_NUMBER = 2**64  # that an n-gram is counted as


@dataclass(frozen=True)
class Difficulty:
    """A text, to the law of `law.py`.

    `pilot_loss` is the val loss of the PILOT; `ngram_loss` that of a Kneser-Ney model of the train
    split, of 5-grams (of shorter ones, if there are too many distinct ids), and `trigram_loss` that
    of trigrams.
    """

    train_ids: int
    V: int
    ngram_loss: float
    trigram_loss: float
    pilot_loss: float


def measure_difficulty(corpus: Corpus, T: int, base: Config) -> Difficulty:
    """Train the PILOT on windows of T, as `base` computes; count n-grams; score some of val."""
    V = len(corpus.vocabulary)
    longest = max(n for n in range(1, LONGEST_NGRAM + 1) if n == 1 or V**n < LARGEST_NUMBER)
    train, val = _parts(corpus.train, COUNTED_IDS), _parts(corpus.val, SCORED_IDS)
    losses = [
        ngram_loss(KneserNey(count_ngrams(train, n, V)), count_ngrams(val, n, V))
        for n in sorted({min(3, longest), longest})
    ]
    pilot = pilot_loss(corpus, T, base)
    return Difficulty(len(corpus.train), V, losses[-1], losses[0], pilot)


def pilot_loss(corpus: Corpus, T: int, base: Config) -> float:
    """Nats per character of the val split, after a training that takes two seconds of a core."""
    config, device = settings_for(PILOT, T), select_device(base.device)
    with computing_with(base.threads):
        draws = generator(config.seed, "init", 0)
        model = GPT(config.model, len(corpus.vocabulary), draws).to(device)
        update = TrainStep(model, corpus.train, config, device)
        for step in range(config.train.steps):
            update(step)
        return evaluate(model, corpus.val, characters=PILOT_SCORED)


def _parts(ids: Ids, most: int) -> list[Ids]:
    """At most so many ids, in parts that are evenly spread; of a short text all, in one part."""
    if len(ids) <= most:
        return [ids]
    return [ids[part] for part in spread_slices(len(ids), most, PART_IDS)]
