"""Choose whether the ids of a text are its characters or its bytes."""

from gpt.text.corpus import Corpus

MANY_IDS = 1000  # a text with a smaller vocabulary is read as characters
MAX_BYTES_PER_CHARACTER = 1.1  # with at most as many, read bytes


def reads_better_as_bytes(corpus: Corpus) -> bool:
    """Return whether a model of bytes predicts a text better than a model of its characters.

    Bytes are better for a text of many distinct characters if nearly all characters have one byte.
    A model of 256 ids is then smaller and faster.
    """
    bytes_per_character = corpus.val_bytes / corpus.val_characters
    return len(corpus.vocabulary) >= MANY_IDS and bytes_per_character <= MAX_BYTES_PER_CHARACTER
