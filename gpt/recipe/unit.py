"""Choose whether the ids of a text are its characters or its bytes."""

import numpy as np

from gpt.counts.experts import MANY_IDS
from gpt.text.corpus import Corpus

PARTS = 20  # parts of the train split, each of which is compared with those before it
MAX_NEW_FRACTION = 0.02  # largest mean fraction of characters in a part that are new in the text
MAX_BYTES_PER_CHARACTER = 1.1  # a text with fewer has hardly more bytes than characters


def reads_better_as_bytes(corpus: Corpus) -> bool:
    """Return whether a model of bytes predicts a text better than a model of its characters.

    A model of bytes is better for a text of many distinct characters in two cases:

    - New characters keep occurring, so the val split has characters that are not in the train
      split. Nearly all of their bytes are in the train split.
    - Nearly all characters have one byte. With 256 ids instead of many, n-grams of longer contexts
      can be counted.
    """
    if len(corpus.vocabulary) < MANY_IDS:
        return False
    bytes_per_character = corpus.val_bytes / corpus.val_characters
    return bytes_per_character <= MAX_BYTES_PER_CHARACTER or new_fraction(corpus) > MAX_NEW_FRACTION


def new_fraction(corpus: Corpus) -> float:
    """Return which fraction of the characters in a part of the train split is new in that part.

    The train split is cut into `PARTS` equal parts. A character is new in a part if it does not
    occur in any part before. The result is the mean over the parts in the second half of the split.
    """
    known = np.zeros(len(corpus.vocabulary), bool)
    fractions = []
    for part in np.array_split(corpus.train, PARTS):
        fractions.append(1 - known[part].mean() if len(part) else 0.0)
        known[part] = True
    return float(np.mean(fractions[PARTS // 2 :]))
