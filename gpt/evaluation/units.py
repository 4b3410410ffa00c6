"""What a loss is the mean of: so that models of characters and of bytes can be compared.

Evaluation scores each id but the first. Of bytes it begins with the last one of the first
character: so it scores each character but the first, whatever the vocabulary.
"""

import math
from dataclasses import dataclass

from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids, Vocabulary


@dataclass(frozen=True)
class Units:
    """The ids that are scored, and the characters and bytes of UTF-8 that they stand for."""

    ids: int
    characters: int
    bytes: int

    def per_character(self, loss: float) -> float:
        """A loss in nats per id, in nats per character."""
        return loss * (self.ids / self.characters)

    def bits_per_byte(self, loss: float) -> float:
        """A loss in nats per id, in bits per byte of UTF-8."""
        return loss * (self.ids / self.bytes) / math.log(2)


def scored_ids(text: str, vocabulary: Vocabulary) -> Ids:
    """The ids of a text to evaluate on: all, but of bytes from the first character's last on."""
    return vocabulary.encode(text)[len(vocabulary.encode(text[:1])) - 1 :]


def units_of(text: str, vocabulary: Vocabulary) -> Units:
    """Those of a text of at least two characters."""
    ids = len(scored_ids(text, vocabulary)) - 1
    return Units(ids, len(text) - 1, len(text[1:].encode()))


def scored_val(corpus: Corpus) -> Ids:
    """The ids of the val split to evaluate on, see `scored_ids`."""
    return corpus.val[corpus.val_first_bytes - 1 :] if corpus.vocabulary.is_bytes else corpus.val


def val_units(corpus: Corpus) -> Units:
    """Those of the val split."""
    ids = len(scored_val(corpus)) - 1
    return Units(ids, corpus.val_characters - 1, corpus.val_bytes - corpus.val_first_bytes)
