"""Divide a text into documents, and hold some of them out for val."""

from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from gpt.config.schema import DataConfig
from gpt.seeds import uniforms
from gpt.text.documents import Document, Source
from gpt.text.normalizer import Normalizer

MIN_FRACTION = 1e-12  # of a text; a smaller part is rounded to nothing
MAX_VAL_RATIO = 1.5  # largest ratio of val's size to the wanted size, if val is whole documents


def train_characters(characters: int, val_fraction: float) -> int:
    """Return how many of the `characters` of a text are in the train split."""
    return int((1 - val_fraction) * characters)


def least_characters(T: int, val_fraction: float) -> int | None:
    """Return the smallest length of a text whose train and val have more than `T` characters each.

    Return None if one of the fractions is below MIN_FRACTION.
    """
    if (smaller := min(val_fraction, 1 - val_fraction)) < MIN_FRACTION:
        return None
    lengths = ((n, train_characters(n, val_fraction)) for n in count(int(T / smaller)))
    return next(n for n, train in lengths if min(train, n - train) > T)


def divided(file: Document, normalizer: Normalizer, documents: str) -> Iterator[tuple[bytes, bool]]:
    """Divide a normalised file or record into `documents`: itself, or its lines with their ends.

    Yields:
        A fragment of a document, and whether it is the last fragment of that document.
    """
    is_open = documents == "files"  # whether the document in progress has not ended
    for chunk in file.chunks() if file.raw else normalizer(file.chunks()):
        if documents == "files":
            yield chunk, False
        else:
            for line in chunk.splitlines(keepends=True):
                is_open = not line.endswith(b"\n")
                yield line, not is_open
    if is_open:
        yield b"", True


def document_lengths(source: Source, data: DataConfig) -> list[int]:
    """Return the number of characters of each document, as `data.documents` defines them."""
    lengths, length, normalizer = [], 0, Normalizer()
    for file in source.documents():
        for fragment, ends in divided(file, normalizer, data.documents):
            length += len(fragment.decode(errors="replace"))  # may be binary data
            if ends:
                lengths.append(length)
                length = 0
    return lengths


def held_out(lengths: list[int], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Choose random documents for val, at least one; return whether each is chosen.

    `lengths` are in characters. Val is to have about a `fraction` of all characters.
    """
    wanted, held = fraction * sum(lengths), 0
    chosen = np.zeros(len(lengths), bool)
    for index in uniforms(seed, "held-out documents", 0).permutation(len(lengths)):
        if held >= wanted:
            break
        if lengths[index] and held + lengths[index] <= MAX_VAL_RATIO * wanted:
            chosen[index] = True
            held += lengths[index]
    if not held:  # all documents are too long or empty: take the shortest with text
        chosen[int(np.argmin([length or np.inf for length in lengths]))] = True
    return chosen
