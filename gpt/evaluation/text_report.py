"""Describe a text before training on it: numbers for a table, a page or JSON.

PyTorch is not imported. Slow measurements of a large text use a sample, whose size is reported.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gpt.config.schema import DataConfig
from gpt.errors import counted
from gpt.evaluation.baselines import (
    NGRAM_NAMES,
    Compression,
    NgramBaseline,
    compress,
    compression_sample,
    ngram_baseline,
)
from gpt.evaluation.characters import CountedText, Finding, rare_characters
from gpt.evaluation.duplicates import find_duplicates
from gpt.evaluation.suspicious import DETECTORS, Suspicion, find_suspicious
from gpt.status import phase
from gpt.text.corpus import MIN_SPLIT_CHARACTERS, Corpus
from gpt.text.documents import Skipped, Source, joined_name

MAX_PASSAGES = 20  # longest duplicate passages that are returned
DUPLICATE_SHARE_TO_WARN = 0.01  # fraction of the val split
UNSEEN_SHARE_TO_WARN = 0.001  # fraction of the val split
MAX_PASSAGE_EXCERPT = 200  # characters of a duplicate passage that are returned


@dataclass(frozen=True)
class TextSize:
    """Size of the text, and of its ids.

    `V`, `train` and `val` count ids, each of which is one of `unit`. `unknown` is the number of
    distinct characters that share one id.
    """

    files: int
    skipped: list[Skipped]
    bytes: int
    characters: int
    lines: int
    distinct: int
    unit: Literal["characters", "bytes"]
    V: int
    unknown: int
    train: int
    val: int
    val_characters: int


@dataclass(frozen=True)
class DuplicatePassage:
    """A passage of val that also occurs in train; lines are counted in train and val joined."""

    characters: int
    line: int
    train_line: int
    excerpt: str


@dataclass(frozen=True)
class Duplication:
    """Fraction of the `scanned` characters of val that also occur in train.

    `passages` were found; `longest` holds the first MAX_PASSAGES by length.
    """

    share: float
    scanned: int
    passages: int
    longest: list[DuplicatePassage]


@dataclass(frozen=True)
class TextReport:
    """Description of a text. Characters are counted whatever the vocabulary is."""

    text: str
    size: TextSize
    entropy: float  # bits per character
    frequencies: dict[str, int]  # count of each character
    rare: int  # number of rare characters
    rarest: list[Finding]
    only_in_val: dict[str, int]  # count of each character that train lacks
    suspicious: list[Suspicion]
    ngrams: list[NgramBaseline]
    compression: Compression
    duplicates: Duplication
    warnings: list[str]  # what to change before training


def describe_text(
    sources: Sequence[Source], data: DataConfig, corpus: Corpus, text: Corpus
) -> TextReport:
    """Describe a text.

    Args:
        sources: the text, and the text of val if it is a separate one.
        data: the settings that the sources are read with.
        corpus: the ids that a model would be trained on.
        text: the same text with one id per character; `corpus` may have bytes or an unknown id.
    """
    name = joined_name([source.name for source in sources])
    with phase(f"{name}: counting characters"):
        count = CountedText(text.ids, text.vocabulary.characters)
        rare, rarest = rare_characters(count)
    with phase(f"{name}: looking for damaged characters"):
        suspicious = find_suspicious(count)
    with phase(f"{name}: counting n-grams"):
        ngrams = [ngram_baseline(corpus, n) for n in NGRAM_NAMES]
    with phase(f"{name}: looking for passages of val that also occur in train"):
        found = find_duplicates(text.train, text.val, count.characters)
        longest = sorted(found.passages, key=lambda passage: passage.start - passage.end)
        passages = [
            DuplicatePassage(
                passage.end - passage.start,
                count.line_of(text.train_ids + passage.start),
                count.line_of(passage.train_start),
                count.text(
                    text.train_ids + passage.start,
                    text.train_ids + min(passage.end, passage.start + MAX_PASSAGE_EXCERPT),
                ),
            )
            for passage in longest[:MAX_PASSAGES]
        ]
        duplicates = Duplication(found.share, found.scanned, len(longest), passages)
    with phase(f"{name}: compressing"):
        sample = compression_sample(text.ids, (count.bytes, len(text.ids)))
        compression = compress(text.vocabulary.decode(sample))
    size = TextSize(
        files=sum(len(source.files) for source in sources),
        skipped=[skipped for source in sources for skipped in source.skipped],
        bytes=count.bytes,
        characters=len(count.ids),
        lines=count.line_of(len(count.ids) - 1),
        distinct=len(count.characters),
        unit="bytes" if corpus.vocabulary.is_bytes else "characters",
        V=len(corpus.vocabulary),
        unknown=corpus.vocabulary.unknown,
        train=len(corpus.train),
        val=len(corpus.val),
        val_characters=corpus.val_characters,
    )
    val = CountedText(text.val, count.characters)
    train_counts = dict(zip(count.characters, (count.counts - val.counts).tolist(), strict=True))
    only_in_val = {c: n for c, n in val.frequencies.items() if n and not train_counts[c]}
    return TextReport(
        text=name,
        size=size,
        entropy=count.entropy,
        frequencies=count.frequencies,
        rare=rare,
        rarest=rarest,
        only_in_val=only_in_val,
        suspicious=suspicious,
        ngrams=[baseline for baseline in ngrams if baseline.val_ids],
        compression=compression,
        duplicates=duplicates,
        warnings=[*_warnings(data, size, only_in_val, suspicious, duplicates)],
    )


def _warnings(
    data: DataConfig,
    size: TextSize,
    only_in_val: dict[str, int],
    suspicious: list[Suspicion],
    duplicates: Duplication,
) -> Iterator[str]:
    """Yield a sentence for each problem, with what to do about it."""
    if min(size.train, size.val) < MIN_SPLIT_CHARACTERS:
        yield f"{size.characters:,} characters are too few to learn from; use several thousand"
        return
    if duplicates.share >= DUPLICATE_SHARE_TO_WARN:
        yield (
            f"{100 * duplicates.share:.1f} % of the val text also occurs in train, so the val loss "
            f"will look better than on new text; remove the duplicates, or set another text as "
            f"data.val_source"
        )
    unseen = sum(only_in_val.values()) / size.val_characters
    predictable = data.vocabulary == "bytes" or data.max_vocabulary is not None
    if unseen >= UNSEEN_SHARE_TO_WARN and not predictable:
        ways = ["a longer text"]
        if size.files > 1 and data.val_source is None and data.split == "tail":
            ways.insert(0, "data.split=documents")
        if data.vocabulary == "characters":
            ways.append("data.max_vocabulary, which gives rare characters one common id")
        yield (
            f"{100 * unseen:.1f} % of the val text are characters that do not occur in train and "
            f"cannot be predicted ({len(only_in_val):,} distinct); use {', or '.join(ways)}"
        )
    for each in suspicious:
        yield f"{each.kind} ({counted(each.count, 'place')}): {DETECTORS[each.kind][1]}"
