"""Measure a text before training on it, and collect the numbers in a report, without PyTorch."""

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from gpt.config.schema import DataConfig
from gpt.errors import counted, listed
from gpt.evaluation.characters import (
    DETECTORS,
    CountedText,
    Finding,
    Suspicion,
    find_suspicious,
    rare_characters,
)
from gpt.status import phase
from gpt.text.corpus import USUAL_MIN_CONTEXT, Corpus
from gpt.text.documents import Skipped, Source
from gpt.text.vocabulary import Ids, Vocabulary

LONG_LINE_CHARACTERS = 60  # length from which a line hardly occurs twice by chance
MAX_SCANNED_IDS = 2**22  # if val has more ids, only lines of its beginning are searched in train
TRAIN_PART_IDS = 2**20  # number of ids of train that are decoded at once
# fractions of val's characters in lines that also occur in train: in long lines, in any lines
LONG_SHARE_TO_WARN, SHARE_TO_WARN = 0.01, 0.25
UNSEEN_SHARE_TO_WARN = 0.001  # fraction of val's characters that do not occur in train


@dataclass(frozen=True)
class Duplicates:
    """Lines that are not empty and occur both in train and in the scanned beginning of val."""

    share: float  # fraction of the scanned characters of val, without line ends, in such lines
    long_share: float  # the same for lines of at least LONG_LINE_CHARACTERS
    scanned: int  # number of scanned characters
    longest: str  # the longest line


@dataclass(frozen=True)
class TextSize:
    """Sizes of a text."""

    files: int
    skipped: list[Skipped]
    bytes: int
    characters: int
    lines: int
    distinct: int  # number of distinct characters
    unit: Literal["characters", "bytes"]  # the kind of an id
    V: int  # vocabulary size
    train: int  # number of ids in the train split
    val: int  # number of ids in the val split
    val_characters: int


@dataclass(frozen=True)
class TextReport:
    """Description of a text. Counts are of characters, even if the vocabulary is bytes."""

    text: str
    size: TextSize
    rare: int  # number of rare characters
    rarest: list[Finding]
    only_in_val: str  # the characters of val that train does not have
    suspicious: list[Suspicion]
    duplicates: Duplicates
    warnings: list[str]  # problems, and what to do about them before training


def describe_text(
    sources: Sequence[Source], data: DataConfig, corpus: Corpus, text: Corpus
) -> TextReport:
    """Measure a text, and return the report.

    Args:
        sources: the text and, if `data.val_source` is set, the val text.
        data: the settings with which the text was read.
        corpus: the text in the ids on which a model would be trained, which may be bytes.
        text: the same text with one id for each distinct character.
    """
    name = listed([source.name for source in sources], 1)
    with phase(f"{name}: counting characters"):
        count = CountedText(text.ids, text.vocabulary.characters)
        val = CountedText(text.val, count.characters)
        rare, rarest = rare_characters(count)
    with phase(f"{name}: looking for damaged characters"):
        suspicious = find_suspicious(count)
    with phase(f"{name}: looking for lines of val that also occur in train"):
        duplicates = find_duplicates(text)
    size = TextSize(
        files=sum(len(source.files) for source in sources),
        skipped=[skipped for source in sources for skipped in source.skipped],
        bytes=count.bytes,
        characters=len(count.ids),
        lines=count.line_of(len(count.ids) - 1),
        distinct=len(count.characters),
        unit="bytes" if corpus.vocabulary.is_bytes else "characters",
        V=len(corpus.vocabulary),
        train=len(corpus.train),
        val=len(corpus.val),
        val_characters=corpus.val_characters,
    )
    is_unseen = (val.counts > 0) & (val.counts == count.counts)
    only_in_val = "".join(
        c for c, unseen in zip(count.characters, is_unseen, strict=True) if unseen
    )
    unseen_share = float(val.counts[is_unseen].sum()) / max(size.val_characters, 1)
    return TextReport(
        text=name,
        size=size,
        rare=rare,
        rarest=rarest,
        only_in_val=only_in_val,
        suspicious=suspicious,
        duplicates=duplicates,
        warnings=[*_warnings(data, size, unseen_share, suspicious, duplicates)],
    )


def find_duplicates(text: Corpus) -> Duplicates:
    """Find the lines that occur both in val and in train."""
    val = text.val[:MAX_SCANNED_IDS]
    lines = Counter(filter(None, text.vocabulary.decode(val).split("\n")))
    found = lines_in(text.train, text.vocabulary, lines.keys())
    in_lines = sum(len(line) * count for line, count in lines.items())
    long = {line for line in found if len(line) >= LONG_LINE_CHARACTERS}
    share, long_share = (
        sum(len(line) * lines[line] for line in each) / max(1, in_lines) for each in (found, long)
    )
    return Duplicates(share, long_share, len(val), max(sorted(found), key=len, default=""))


def lines_in(ids: Ids, vocabulary: Vocabulary, lines: AbstractSet[str]) -> set[str]:
    """Return those of `lines` that are lines of the text `ids`."""
    longest, last, found = max(map(len, lines), default=0), "", set[str]()
    for start in range(0, len(ids) if lines else 0, TRAIN_PART_IDS):
        part = vocabulary.decode(ids[start : start + TRAIN_PART_IDS])
        *whole, last = (last + part).split("\n")
        found |= lines & {*whole}
        last = last[: longest + 1]  # one character more than `longest` suffices for a mismatch
    return found | (lines & {last})


def _warnings(
    data: DataConfig,
    size: TextSize,
    unseen_share: float,
    suspicious: list[Suspicion],
    duplicates: Duplicates,
) -> Iterator[str]:
    """Yield a sentence for each problem of the text: what it is, and what to do about it."""
    if min(size.train, size.val) <= USUAL_MIN_CONTEXT:
        yield f"{size.characters:,} characters are too few to train on; use several thousand"
        return
    if duplicates.long_share >= LONG_SHARE_TO_WARN or duplicates.share >= SHARE_TO_WARN:
        yield (
            f"{100 * duplicates.share:.1f} % of the val text also occurs in train, so the val loss "
            f"will look better than on new text; remove the duplicates, or set another text as "
            f"data.val_source"
        )
    if unseen_share >= UNSEEN_SHARE_TO_WARN and data.vocabulary != "bytes":
        yield (
            f"{100 * unseen_share:.1f} % of the val text are characters that do not occur in train "
            f"and cannot be predicted; use a longer text, data.split=lines, or "
            f"data.vocabulary=bytes"
        )
    for each in suspicious:
        yield f"{each.kind} ({counted(each.count, 'place')}): {DETECTORS[each.kind][1]}"
