"""Measure a text before training on it, and collect the numbers in a report, without PyTorch."""

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from gpt.errors import counted, listed, setting_arguments
from gpt.evaluation.characters import (
    DETECTORS,
    CountedText,
    Findings,
    find_suspicious,
    rare_characters,
)
from gpt.terminal import phase
from gpt.text.corpus import USUAL_MIN_CONTEXT, Corpus
from gpt.text.documents import Source
from gpt.text.vocabulary import Ids, Vocabulary

LONG_LINE_CHARACTERS = 60  # lines of at least this length rarely occur twice by chance
MAX_SCANNED_IDS = 2**22  # if val has more ids, only its first lines are looked up in train
TRAIN_PART_IDS = 2**20  # number of ids of train that are decoded at once
# Warn if at least this fraction of val is in lines of train: in long lines; in all lines.
LONG_SHARE_TO_WARN, SHARE_TO_WARN = 0.01, 0.25
UNSEEN_SHARE_TO_WARN = 0.001  # warn if train lacks at least this fraction of val's characters


@dataclass(frozen=True)
class TextReport:
    """Description of a text. Counts are of characters, even if the vocabulary is bytes."""

    text: str
    files: int
    characters: int
    lines: int
    distinct: int  # number of distinct characters
    unit: Literal["characters", "bytes"]  # whether an id is a character or a byte
    V: int  # vocabulary size
    train: int  # number of ids in the train split
    val: int  # number of ids in the val split
    only_in_val: str  # the characters of val that train does not have
    duplicate_share: float  # fraction of val's characters in lines that also occur in train
    long_duplicate_share: float  # `duplicate_share`, for lines of LONG_LINE_CHARACTERS or more
    findings: list[Findings]  # rare characters, then suspicious strings
    warnings: list[str]  # problems, and what to do about them before training


def describe_text(sources: Sequence[Source], corpus: Corpus, text: Corpus) -> TextReport:
    """Measure the text in `sources`, which can include a val text, and return the report.

    `corpus` has the ids to train on; `text` is the same text with one id for each character.
    """
    name = listed([source.name for source in sources], 1)
    with phase(f"{name}: counting characters"):
        count = CountedText(text.ids, text.vocabulary)
        val = CountedText(text.val, text.vocabulary)
        rare = rare_characters(count)
    with phase(f"{name}: looking for damaged characters"):
        suspicious = find_suspicious(count)
    with phase(f"{name}: looking for lines of val that also occur in train"):
        share, long_share = find_duplicates(text)
    unseen = ((val.counts > 0) & (val.counts == count.counts)).nonzero()[0]
    unseen_share = float(val.counts[unseen].sum()) / max(len(text.val), 1)
    warnings = [
        f"{each.kind} ({counted(each.count, 'place')}): {DETECTORS[each.kind][1]}"
        for each in suspicious
    ]
    return TextReport(
        text=name,
        files=sum(len(source.files) for source in sources),
        characters=len(count.ids),
        lines=count.line_of(len(count.ids) - 1),
        distinct=len(count.characters),
        unit="bytes" if corpus.vocabulary.is_bytes else "characters",
        V=len(corpus.vocabulary),
        train=len(corpus.train),
        val=len(corpus.val),
        only_in_val=text.vocabulary.decode(unseen),
        duplicate_share=share,
        long_duplicate_share=long_share,
        findings=[rare, *suspicious] if rare.count else suspicious,
        warnings=[*_warnings(corpus, share, long_share, unseen_share), *warnings],
    )


def find_duplicates(text: Corpus) -> tuple[float, float]:
    """Return the fraction of val in lines that train also has, and in such lines that are long.

    The fractions are of the first MAX_SCANNED_IDS characters of val, without line ends. Long lines
    have LONG_LINE_CHARACTERS or more.
    """
    val = text.vocabulary.decode(text.val[:MAX_SCANNED_IDS])
    lines = Counter(filter(None, val.split("\n")))
    found = lines_in(text.train, text.vocabulary, lines.keys())
    long = {line for line in found if len(line) >= LONG_LINE_CHARACTERS}
    share, long_share = (sum(len(line) * lines[line] for line in each) for each in (found, long))
    total = max(1, sum(len(line) * count for line, count in lines.items()))
    return share / total, long_share / total


def lines_in(ids: Ids, vocabulary: Vocabulary, lines: AbstractSet[str]) -> set[str]:
    """Return the `lines` that occur as whole lines in the text `ids`."""
    longest, last, found = max(map(len, lines), default=0), "", set[str]()
    for start in range(0, len(ids) if lines else 0, TRAIN_PART_IDS):
        part = vocabulary.decode(ids[start : start + TRAIN_PART_IDS])
        *whole, last = (last + part).split("\n")
        found |= lines & {*whole}
        last = last[: longest + 1]  # enough to show that a longer line cannot match
    return found | (lines & {last})


def _warnings(
    corpus: Corpus, share: float, long_share: float, unseen_share: float
) -> Iterator[str]:
    """Yield a sentence for each problem of the splits: what it is, and what to do about it."""
    train, val = len(corpus.train), len(corpus.val)
    if min(train, val) <= USUAL_MIN_CONTEXT:
        yield (
            f"train has {train:,} and val {val:,} {corpus.vocabulary.unit}s, too few to train on; "
            f"use several thousand, or another data.val_fraction"
        )
        return
    if long_share >= LONG_SHARE_TO_WARN or share >= SHARE_TO_WARN:
        yield (
            f"{100 * share:.1f} % of the val text also occurs in train, so the val loss will look "
            f"better than on new text; remove the duplicates, or set another text as "
            f"data.val_source"
        )
    if unseen_share >= UNSEEN_SHARE_TO_WARN and not corpus.vocabulary.is_bytes:
        yield (
            f"{100 * unseen_share:.1f} % of the val text are characters that do not occur in train "
            f"and cannot be predicted; use a longer text, another data.split, or "
            f"{setting_arguments('data.vocabulary=bytes')}"
        )
