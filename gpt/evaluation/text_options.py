"""The effect of other `data` settings on a text: vocabulary size, length, unknown characters."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpt.config.schema import DataConfig
from gpt.evaluation.characters import RARE_COUNT
from gpt.text.documents import Source
from gpt.text.normalizer import normalized
from gpt.text.preparation import Part
from gpt.text.vocabulary import CharacterCounts, Vocabulary, code_points

MAX_SAMPLE_BYTES = 2**23  # bytes of a text that the settings are compared on
ALTERNATIVES = {  # compared values of each setting; for max_vocabulary see compare_options
    "newlines": ("lf", "keep"),
    "normalize": ("none", "NFC", "NFD", "NFKC"),
    "lowercase": (False, True),
    "vocabulary": ("characters", "bytes"),
}
UNCHANGED = {"newlines": "keep", "normalize": "none", "lowercase": False}


@dataclass(frozen=True)
class Option:
    """Vocabulary size, length in ids and unknown ids of the sample, with one setting changed.

    `setting` is the change, such as `data.lowercase=true`; "" stands for the current settings.
    """

    setting: str
    V: int
    length: int
    unknown: int


def raw_sample(sources: Sequence[Source], data: DataConfig, size: int) -> str:
    """Return about MAX_SAMPLE_BYTES of `sources`, evenly spread, before normalisation.

    `size` is the number of bytes of all sources.
    """
    share = min(1.0, MAX_SAMPLE_BYTES / max(size, 1))
    raw = data.model_copy(update=UNCHANGED)
    return "".join(
        chunk[: math.ceil(share * len(chunk))].decode(errors="ignore")  # may end in a character
        for source in sources
        for chunk in Part(source, raw).chunks()
    )


def compare_options(sample: str, data: DataConfig, given: Vocabulary | None) -> list[Option]:
    """Measure the current settings, and each other value of one of them.

    `given` is the vocabulary of the run that `data.vocabulary` names, if it names one.
    """
    changes: list[tuple[str, object]] = [
        (key, value)
        for key, values in ALTERNATIVES.items()
        for value in values
        if getattr(data, key) != value
    ]
    if data.max_vocabulary is not None:
        changes.append(("max_vocabulary", None))
    elif data.vocabulary == "characters":
        counts = _count(sample, data, exact=True).counts
        limit = 1 + int(np.count_nonzero(counts >= RARE_COUNT))  # rare characters share one id
        if 1 < limit < np.count_nonzero(counts):
            changes.append(("max_vocabulary", limit))
    options = [_measure("", sample, data, given)]
    for key, value in changes:
        update = {key: value} | ({"max_vocabulary": None} if key == "vocabulary" else {})
        setting = f"data.{key}={value if isinstance(value, str) else json.dumps(value)}"
        vocabulary = None if key == "vocabulary" else given
        options.append(_measure(setting, sample, data.model_copy(update=update), vocabulary))
    return options


def _measure(setting: str, sample: str, data: DataConfig, given: Vocabulary | None) -> Option:
    """Return the effect of `data` on `sample`."""
    if data.vocabulary == "bytes":
        return Option(setting, 256, len(normalized(sample, data).encode()), 0)
    limited = given is not None or data.max_vocabulary is not None
    counted = _count(sample, data, exact=limited)
    vocabulary = given or counted.vocabulary(data.max_vocabulary)
    known = int(counted.counts[code_points(vocabulary.characters)].sum())
    return Option(setting, len(vocabulary), counted.total, counted.total - known if limited else 0)


def _count(sample: str, data: DataConfig, *, exact: bool) -> CharacterCounts:
    counted = CharacterCounts(exact=exact)
    counted.add(normalized(sample, data).encode())
    return counted
