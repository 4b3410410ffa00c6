"""What other settings of `data` would make of a text: vocabulary, length, unknown characters."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpt.config.schema import DataConfig
from gpt.evaluation.characters import RARE
from gpt.text.documents import Source
from gpt.text.preparation import Part
from gpt.text.rules import normalized
from gpt.text.vocabulary import CharacterCounts, Vocabulary, code_points

SAMPLE_BYTES = 2**23
VALUES = {  # in the order of the settings; of max_vocabulary, see _alternatives
    "newlines": ("lf", "keep"),
    "normalize": ("none", "NFC", "NFD", "NFKC"),
    "lowercase": (False, True),
    "vocabulary": ("characters", "bytes"),
}
NO_LIMIT = {"max_vocabulary": None}
RAW = {"newlines": "keep", "normalize": "none", "lowercase": False}


@dataclass(frozen=True)
class Option:
    """What one changed setting would make of the sample: V, its length in ids, unknown ids of it.

    `setting` is `data.lowercase=true`, or empty for the settings as they are.
    """

    setting: str
    V: int
    length: int
    unknown: int


def raw_sample(sources: Sequence[Source], data: DataConfig, size: int) -> str:
    """About SAMPLE_BYTES of the sources as they are read, before any rule, evenly spread.

    size: bytes of all of them.
    """
    share, raw = min(1.0, SAMPLE_BYTES / max(size, 1)), data.model_copy(update=RAW)
    return "".join(
        chunk[: math.ceil(share * len(chunk))].decode(errors="ignore")  # of one cut in two
        for source in sources
        for chunk in Part(source, raw).chunks()
    )


def compare_options(sample: str, data: DataConfig, given: Vocabulary | None) -> list[Option]:
    """The settings as they are, then each other value of one of them.

    given: the vocabulary of the run that `data.vocabulary` names, if it does.
    """
    as_set = _option("", sample, data, given)
    return [as_set, *(_option(*other) for other in _alternatives(sample, data, given))]


def _alternatives(
    sample: str, data: DataConfig, given: Vocabulary | None
) -> Iterator[tuple[str, str, DataConfig, Vocabulary | None]]:
    for key, values in VALUES.items():
        for value in values:
            if getattr(data, key) != value:
                update = {key: value} | (NO_LIMIT if key == "vocabulary" else {})
                kept = None if key == "vocabulary" else given
                yield _setting(key, value), sample, data.model_copy(update=update), kept
    if data.max_vocabulary is not None:
        yield _setting("max_vocabulary", None), sample, data.model_copy(update=NO_LIMIT), given
    elif data.vocabulary == "characters":
        counts = _counted(sample, data, exact=True).counts
        most = 1 + int(np.count_nonzero(counts >= RARE))  # the others share one id
        if 1 < most < np.count_nonzero(counts):
            limited = data.model_copy(update={"max_vocabulary": most})
            yield _setting("max_vocabulary", most), sample, limited, None


def _setting(key: str, value: object) -> str:
    return f"data.{key}={value if isinstance(value, str) else json.dumps(value)}"


def _option(setting: str, sample: str, data: DataConfig, given: Vocabulary | None) -> Option:
    if data.vocabulary == "bytes":
        return Option(setting, 256, len(normalized(sample, data).encode()), 0)
    limited = given is not None or data.max_vocabulary is not None
    counted = _counted(sample, data, exact=limited)
    vocabulary = given or counted.vocabulary(data.max_vocabulary)
    known = int(counted.counts[code_points(vocabulary.characters)].sum())
    return Option(setting, len(vocabulary), counted.total, counted.total - known if limited else 0)


def _counted(sample: str, data: DataConfig, *, exact: bool) -> CharacterCounts:
    counted = CharacterCounts(exact=exact)
    counted.add(normalized(sample, data).encode())
    return counted
