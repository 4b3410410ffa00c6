"""Measure how much of a model's samples is copied from its train split (arXiv:2111.09509).

The measure is the share of substrings of COPY_IDS ids that also occur in the train split. Text that
people wrote can share substrings with train, too, so the evaluated text is measured for comparison.

Substrings are compared by hashes of 64 bits. If 10,000 substrings of samples are looked up in a
text of 10^9 ids, the probability that any two different ones have the same hash is about 10^-6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt.errors import UsageError, arguments
from gpt.evaluation.characters import spread_slices
from gpt.evaluation.scored_text import ScoredText
from gpt.evaluation.text_report import lines_in
from gpt.text.vocabulary import Ids, Vocabulary

SAMPLES = 16  # number of samples that are searched for copies
SEARCHED_CHARACTERS = 512  # length of each sample
COPY_IDS = 32  # number of ids in each compared substring; a power of two
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class MemorisationReport:
    """Fractions of lines, and of substrings of COPY_IDS ids, that the train split contains."""

    copied: float  # fraction of the samples' substrings that occur in train
    in_text: float  # fraction of the evaluated text's substrings that occur in train
    copied_lines: float  # fraction of the samples' lines that are lines of train
    lines_in_text: float  # fraction of the evaluated text's lines that are lines of train
    length: int = COPY_IDS  # number of ids in each substring


def measure_memorisation(text: ScoredText, samples: Sequence[Ids]) -> MemorisationReport:
    """Measure how much of `samples`, and of the evaluated `text`, occurs in `text.train`.

    If `text` is longer than all samples together, only evenly spread parts of it are measured.
    Each sample must have at least COPY_IDS ids. `text.train` must not be None.
    """
    train = text.train
    assert train is not None
    if len(text.ids) < COPY_IDS:
        option = arguments("memorisation")
        raise UsageError(
            f"{option}: expected at least {COPY_IDS} {text.vocabulary.unit}s in {text.name}, got "
            f"{len(text.ids)}; leave out {option}, or use a longer text"
        )
    length = max(map(len, samples))
    slices = spread_slices(len(text.ids), length * len(samples), length)
    parts = [text.ids[part] for part in slices if part.stop - part.start >= COPY_IDS]
    shares = [copied_share(train, pieces) for pieces in (samples, parts)]
    lines = [copied_lines(train, pieces, text.vocabulary) for pieces in (samples, parts)]
    return MemorisationReport(shares[0], shares[1], lines[0], lines[1])


def copied_share(train: Ids, pieces: Sequence[Ids]) -> float:
    """Return the fraction of the substrings of COPY_IDS ids in `pieces` that occur in `train`."""
    hashes = np.concatenate([_hashes(piece) for piece in pieces])
    occurs = np.zeros(len(hashes), bool)
    for part in spread_slices(len(train)):
        searched = train[part.start : part.stop + COPY_IDS - 1]
        occurs |= np.isin(hashes, _hashes(searched))
    return float(occurs.mean())


def copied_lines(train: Ids, pieces: Sequence[Ids], vocabulary: Vocabulary) -> float:
    """Return the fraction of the lines in `pieces` that are lines of `train`; 0 without lines.

    Empty lines, and the first and last line of each piece, which can be incomplete, do not count.
    """
    texts = map(vocabulary.decode, pieces)
    lines = [line for text in texts for line in text.split("\n")[1:-1] if line]
    found = lines_in(train, vocabulary, {*lines})
    return sum(line in found for line in lines) / max(len(lines), 1)


def _hashes(ids: Ids) -> NDArray[np.uint64]:
    """Return a hash of each substring of COPY_IDS ids, (len(ids) - COPY_IDS + 1,)."""
    hashes, length = (ids.astype(np.uint64) + np.uint64(1)) * HASH_FACTOR, 1
    while length < COPY_IDS:  # combine the hashes of the two halves of a substring
        first, second = hashes[:-length], hashes[length:]
        hashes = (first ^ first >> np.uint64(29)) * HASH_FACTOR + second
        length *= 2
    return hashes
