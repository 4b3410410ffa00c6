"""A text to evaluate a model on, as ids of the model's vocabulary."""

import hashlib
import tempfile
from dataclasses import dataclass

import numpy as np

from gpt.errors import TextError
from gpt.evaluation.characters import spread_slices
from gpt.evaluation.loss import Units, scored_val, val_units
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids, Vocabulary


@dataclass(frozen=True)
class ScoredText:
    """A text whose characters, except the first one, are scored.

    Characters outside the vocabulary are left out.
    """

    name: str
    ids: Ids  # the first id is only context
    vocabulary: Vocabulary
    units: Units  # numbers of scored ids, and of their characters and bytes
    outside: int  # number of characters outside the vocabulary
    train: Ids | None  # the run's train split; None if its text is missing

    def sha256(self) -> str:
        """Return a hash of the scored characters, the same whether ids are characters or bytes."""
        digest = hashlib.sha256()
        for part in spread_slices(len(self.ids) - 1):
            digest.update(self.vocabulary.utf8(self.ids[1:][part]))
        return digest.hexdigest()


def val_text(corpus: Corpus) -> ScoredText:
    """Return the val split of a run's text."""
    vocabulary, ids = corpus.vocabulary, scored_val(corpus)
    name = f"val split of {corpus.name}"
    return ScoredText(name, ids, vocabulary, val_units(corpus), 0, corpus.train)


def other_text(corpus: Corpus, vocabulary: Vocabulary, train: Ids | None) -> ScoredText:
    """Return the whole text of `corpus`, encoded by the vocabulary of the model.

    The ids of `corpus` are bytes if those of `vocabulary` are; otherwise, characters. `train` are
    the ids of the run's train split; None if its text is missing.

    Raises:
        TextError: fewer than two characters of the text are in the vocabulary.
    """
    outside = 0
    if vocabulary.is_bytes:
        # the context of the second character is the last byte of the first one
        last = int(np.argmax([*vocabulary.begins(corpus.ids[1:5]), True]))
        ids, characters = corpus.ids[last:], corpus.characters - 1
        size = len(ids) - 1
    else:
        ids, size = _translated(corpus, vocabulary)
        characters, outside = len(ids) - 1, len(corpus.ids) - len(ids)
    if characters < 1:
        raise TextError(
            f"{corpus.name}: expected at least 2 characters of the model's vocabulary, got "
            f"{characters + 1}; evaluate another text"
        )
    units = Units(len(ids) - 1, characters, size)
    return ScoredText(corpus.name, ids, vocabulary, units, outside, train)


def _translated(corpus: Corpus, vocabulary: Vocabulary) -> tuple[Ids, int]:
    """Encode the characters of `corpus` by `vocabulary`, in a temporary file.

    Return the ids, and the number of UTF-8 bytes of all encoded characters except the first.
    """
    characters = corpus.vocabulary.characters
    left_out = set(vocabulary.outside(characters))
    kept = np.array([c not in left_out for c in characters])
    sizes = np.array([len(c.encode()) for c in characters])
    table = np.zeros(len(characters), vocabulary.dtype)
    table[kept] = vocabulary.encode("".join(c for c in characters if c not in left_out))
    size = first_size = 0
    with tempfile.TemporaryFile() as file:
        for part in spread_slices(len(corpus.ids)):
            ids = corpus.ids[part]
            ids = ids[kept[ids]]
            first_size = first_size or int(sizes[ids[:1]].sum())
            size += int(sizes[ids].sum())
            file.write(table[ids].data)
        file.flush()
        if not size:
            return table[:0], 0
        return np.memmap(file, table.dtype, mode="r"), size - first_size
