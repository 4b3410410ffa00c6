"""Divide a text into a train split and a val split.

- By default, the last `data.val_fraction` of the characters are val.
- With `data.split=documents`, val is whole documents, which the seed selects.
- With `data.val_source`, the whole text is train, and a separate text is val.
"""

from itertools import count

import numpy as np
from numpy.typing import NDArray

from gpt.config.data_config import DataConfig
from gpt.errors import TextError, setting_arguments
from gpt.seeds import random_stream
from gpt.text.documents import Source, document_lengths

MAX_VAL_RATIO = 1.5  # largest ratio of val's size to the wanted size, if val is whole documents


def train_characters(characters: int, val_fraction: float) -> int:
    """Return how many of the `characters` of a text are in the train split."""
    return int((1 - val_fraction) * characters)


def least_characters(T: int, val_fraction: float) -> int:
    """Return how many characters a text needs so that train and val each have more than `T`."""
    least = max(T / val_fraction, (T + 1) / (1 - val_fraction))  # the result, except for rounding
    lengths = ((n, train_characters(n, val_fraction)) for n in count(int(least)))
    return next(n for n, train in lengths if min(train, n - train) > T)


def held_out(source: Source, data: DataConfig, seed: int) -> NDArray[np.bool_]:
    """Choose random documents for val, at least one; return a bool for each document of `source`.

    The chosen documents have about `data.val_fraction` of all characters. If two documents or more
    have text, train keeps at least one with text. Raise TextError if there are fewer than two.
    """
    lengths = document_lengths(source, data)  # in characters
    if len(lengths) < 2:
        tail = setting_arguments("data.split=tail")
        advice = f"a text of one line cannot be divided into documents: use {tail}"
        if data.documents == "files":
            lines = setting_arguments("data.documents=lines")
            advice = f"use {lines}, so each line is a document, or {tail}"
        raise TextError(
            f"{source.name}: data.split=documents holds out whole documents: expected at least "
            f"2, got {len(lengths)}; {advice}"
        )
    total, held = sum(lengths), 0
    wanted = data.val_fraction * total
    chosen = np.zeros(len(lengths), bool)
    for index in random_stream(seed, "held-out documents", 0).permutation(len(lengths)):
        if held >= wanted:
            break
        with_this = held + lengths[index]
        if held < with_this < total and with_this <= MAX_VAL_RATIO * wanted:
            chosen[index] = True
            held = with_this
    if not held:  # each document is too long or empty: choose the shortest one that is not empty
        chosen[int(np.argmin([length or np.inf for length in lengths]))] = True
    return chosen
