"""Choose whether the ids of a text are its characters or its bytes."""

import numpy as np

from gpt.text.corpus import Corpus

MANY_IDS = 1000  # a text with a smaller vocabulary is read as characters
PARTS = 20  # parts of the train split, each of which is compared with those before it
# if on average more than this fraction of a part's characters did not occur before it, read bytes
MAX_NEW_FRACTION = 0.02
MAX_BYTES_PER_CHARACTER = 1.1  # with at most as many, read bytes


def reads_better_as_bytes(corpus: Corpus) -> bool:
    """Return whether a model of bytes predicts a text better than a model of its characters.

    Bytes are better for a text of many distinct characters in two cases:

    - New characters keep occurring. Some characters of val are not in train, but their bytes are.
    - Nearly all characters have one byte. A model of 256 ids is then smaller and faster.
    """
    if len(corpus.vocabulary) < MANY_IDS:
        return False
    bytes_per_character = corpus.val_bytes / corpus.val_characters
    if bytes_per_character <= MAX_BYTES_PER_CHARACTER:
        return True
    occurred, new_fractions = np.zeros(len(corpus.vocabulary), bool), []
    for part in np.array_split(corpus.train, PARTS):
        new_fractions.append(1 - occurred[part].mean() if len(part) else 0.0)
        occurred[part] = True
    return bool(np.mean(new_fractions[PARTS // 2 :]) > MAX_NEW_FRACTION)
