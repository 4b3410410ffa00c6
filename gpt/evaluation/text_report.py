"""What is in a text, before anyone trains on it: numbers for a table, a page or JSON.

Loads no torch. What would take long on a large text is of a sample, whose size is told.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpt.config.schema import DataConfig
from gpt.errors import counted
from gpt.evaluation.characters import CountedText, Finding, rare_characters
from gpt.evaluation.compression import COMPRESSED_PART, SAMPLE_BYTES, Compression, compress
from gpt.evaluation.duplicates import find_duplicates
from gpt.evaluation.ngrams import KneserNey, ngram_loss, sampled_ngrams
from gpt.evaluation.spread import spread_slices
from gpt.evaluation.suspicious import MOJIBAKE, REPLACED, Suspicion, find_suspicious
from gpt.evaluation.text_options import Option, compare_options, raw_sample
from gpt.status import phase
from gpt.text.corpus import SHORTEST_SPLIT, Corpus
from gpt.text.documents import Skipped, Source, joined_name

ORDERS = {2: "bigram", 3: "trigram"}
LISTED_PASSAGES = 20
MANY_DUPLICATES, MANY_UNSEEN = 0.01, 0.001  # of the val split
ADVICE = {  # for what is almost always damage
    REPLACED: "some program could not decode the text; convert the original again",
    MOJIBAKE: "the text was decoded in another encoding than its own; convert the original again",
    "unassigned": "not characters of this Python's Unicode; the text may be damaged",
}
EXCERPT_CHARACTERS = 200


@dataclass(frozen=True)
class Size:
    """The text, and as a model sees it: V, train and val are in ids, `unit`s each.

    `unknown` distinct characters share one id.
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
class NgramLoss:
    """What a smoothed n-gram model of the train split reaches on the val split: see KneserNey.

    `loss` is in nats per id, as `val_loss` is. So many ids of train were counted, of val scored.
    """

    model: str
    loss: float
    nats_per_character: float
    bits_per_character: float
    train_ids: int
    val_ids: int


@dataclass(frozen=True)
class DuplicatePassage:
    """So many characters of val from this line on, which train has, too.

    Lines are counted over the text as it is split: train, then val.
    """

    characters: int
    line: int
    train_line: int
    excerpt: str


@dataclass(frozen=True)
class Duplication:
    """The share of `scanned` characters of val that train has, too; the longest passages."""

    share: float
    scanned: int
    passages: int
    longest: list[DuplicatePassage]


@dataclass(frozen=True)
class TextReport:
    """What is in a text; of the characters, whatever the vocabulary is.

    `entropy` is in bits per character, `frequencies` counts each, `only_in_val` those
    that train lacks. `options` are of a sample of `options_characters`.
    `warnings` say what to do before training.
    """

    text: str
    size: Size
    entropy: float
    frequencies: dict[str, int]
    rare: int
    rarest: list[Finding]
    only_in_val: dict[str, int]
    suspicious: list[Suspicion]
    ngrams: list[NgramLoss]
    compression: Compression
    duplicates: Duplication
    options: list[Option]
    options_characters: int
    warnings: list[str]


def describe_text(
    sources: Sequence[Source], data: DataConfig, corpus: Corpus, text: Corpus
) -> TextReport:
    """Everything about a text.

    Args:
        sources: the text, and that of val, if it has one of its own.
        data: how they are read.
        corpus: what a model would be trained on.
        text: the same in characters, if that is in bytes or has an unknown id.
    """
    name = joined_name([source.name for source in sources])
    given = None if data.vocabulary in ("characters", "bytes") else corpus.vocabulary
    with ThreadPoolExecutor(1) as pool:
        with phase(f"{name}: counting characters"):
            counted = CountedText(text.ids, text.vocabulary.characters)
            compression = pool.submit(compress, _compressed_sample(counted))  # beside all else
            rare, rarest = rare_characters(counted)
        with phase(f"{name}: looking for damaged characters"):
            suspicious = find_suspicious(counted)
        with phase(f"{name}: counting n-grams"):
            ngrams = [_ngram_loss(corpus, n) for n in ORDERS]
        with phase(f"{name}: looking for passages of val that stand in train, too"):
            duplicates = _duplication(counted, text)
        with phase(f"{name}: comparing settings"):
            sample = raw_sample(sources, data, counted.bytes)
            options = compare_options(sample, data, given)
        with phase(f"{name}: compressing"):
            compressed = compression.result()
    size, only_in_val = _size(sources, counted, corpus), _only_in_val(counted, text)
    return TextReport(
        text=name,
        size=size,
        entropy=counted.entropy,
        frequencies=counted.frequencies,
        rare=rare,
        rarest=rarest,
        only_in_val=only_in_val,
        suspicious=suspicious,
        ngrams=[loss for loss in ngrams if loss.val_ids],
        compression=compressed,
        duplicates=duplicates,
        options=options,
        options_characters=len(sample),
        warnings=[*_warnings(data, size, only_in_val, suspicious, duplicates)],
    )


def _size(sources: Sequence[Source], counted: CountedText, corpus: Corpus) -> Size:
    return Size(
        files=sum(len(source.files) for source in sources),
        skipped=[skipped for source in sources for skipped in source.skipped],
        bytes=counted.bytes,
        characters=len(counted.ids),
        lines=counted.lines,
        distinct=len(counted.characters),
        unit="bytes" if corpus.vocabulary.is_bytes else "characters",
        V=len(corpus.vocabulary),
        unknown=corpus.vocabulary.unknown,
        train=len(corpus.train),
        val=len(corpus.val),
        val_characters=corpus.val_characters,
    )


def _compressed_sample(counted: CountedText) -> str:
    """About SAMPLE_BYTES of the text, evenly spread."""
    n = len(counted.ids)
    most = max(1, min(n, n * SAMPLE_BYTES // counted.bytes))
    parts = spread_slices(n, most, COMPRESSED_PART)
    return "".join(counted.text(part.start, part.stop) for part in parts)


def _only_in_val(counted: CountedText, text: Corpus) -> dict[str, int]:
    in_val = CountedText(text.val, counted.characters).counts
    only = np.flatnonzero((in_val == counted.counts) & (in_val > 0))
    order = only[np.argsort(-in_val[only], kind="stable")].tolist()
    return {counted.characters[i]: int(in_val[i]) for i in order}


def _ngram_loss(corpus: Corpus, n: int) -> NgramLoss:
    """Of splits too short for an n-gram NaN."""
    V = len(corpus.vocabulary)
    train, val = (sampled_ngrams(split, n, V) for split in (corpus.train, corpus.val))
    loss = ngram_loss(KneserNey(train), val, corpus.vocabulary.unknown)
    nats = loss * len(corpus.val) / max(corpus.val_characters, 1)
    counted, scored = (int(counts.counts.sum()) for counts in (train, val))
    return NgramLoss(ORDERS[n], loss, nats, nats / math.log(2), counted, scored)


def _duplication(counted: CountedText, text: Corpus) -> Duplication:
    found = find_duplicates(text.train, text.val, counted.characters)
    longest = sorted(found.passages, key=lambda passage: passage.start - passage.end)
    return Duplication(
        found.share,
        found.scanned,
        len(found.passages),
        [
            DuplicatePassage(
                end - start,
                counted.line_of(text.train_ids + start),
                counted.line_of(train_start),
                counted.text(*(text.train_ids + at for at in (start, end)))[:EXCERPT_CHARACTERS],
            )
            for start, end, train_start in longest[:LISTED_PASSAGES]
        ],
    )


def _warnings(
    data: DataConfig,
    size: Size,
    only_in_val: dict[str, int],
    suspicious: list[Suspicion],
    duplicates: Duplication,
) -> Iterator[str]:
    if min(size.train, size.val) < SHORTEST_SPLIT:
        yield f"{size.characters:,} characters are too few to learn from; some thousands are needed"
        return
    if duplicates.share >= MANY_DUPLICATES:
        yield (
            f"{100 * duplicates.share:.1f} % of the val text also occurs in train, so the val loss "
            f"will look better than on new text; remove the duplicates, or name another text as "
            f"data.val_source"
        )
    unseen = sum(only_in_val.values()) / size.val_characters
    can_predict = data.vocabulary == "bytes" or data.max_vocabulary is not None
    if unseen >= MANY_UNSEEN and not can_predict:
        ways = ["a longer text"]
        if size.files > 1 and data.val_source is None and data.split == "tail":
            ways.insert(0, "data.split=documents")
        if data.vocabulary == "characters":
            ways.append("data.max_vocabulary, by which rare characters share one id")
        yield (
            f"{100 * unseen:.1f} % of val are characters that train lacks, which no model can "
            f"predict: {counted(len(only_in_val), 'distinct one')}; use {', or '.join(ways)}"
        )
    for suspicion in suspicious:
        if advice := ADVICE.get(suspicion.kind):
            yield f"{suspicion.kind}, in {counted(suspicion.count, 'place')}: {advice}"
