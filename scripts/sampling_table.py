#!/usr/bin/env python3
"""Compare samples at several temperatures and min-p with text that people wrote.

    OPENBLAS_NUM_THREADS=1 python scripts/sampling_table.py RUN TEXT [RUN TEXT]...

Each RUN has been trained on the TEXT after it: a file or the name of a built-in text. A row of the
Markdown table describes at most 60 samples of 2,000 characters, or as many characters of the val
split. Words are compared in lower case. Japanese has no spaces, so a word is a run of kanji,
hiragana or katakana. The last five columns are percentages:

    words      words that occur in the train split; misspelt words rarely do
    pairs      distinct pairs of consecutive words, of all pairs; few if samples are monotonous
    triples    distinct triples of consecutive words, of all triples
    copies     substrings of 32 characters that occur in the train split, of those that consist
               of letters for at least a half
    repeats    substrings of 32 characters that occur earlier in the same sample, such as lines of
               dashes
"""

import argparse
import re
from collections.abc import Iterator
from itertools import product

from gpt import api
from gpt.sampling.stopping import collect
from gpt.text.corpus import load_corpus
from gpt.text.sources import open_source

SAMPLES, SAMPLE_CHARACTERS = 60, 2000
SUBSTRING_CHARACTERS = 32  # length of copies and repeats
TEMPERATURES = [0.6, 0.7, 0.8, 0.9, 1.0]
MIN_PS = [0.0, 0.005, 0.02, 0.05, 0.1]
WORD = re.compile(
    r"[\u4e00-\u9fff]+|[\u3040-\u309f]+|[\u30a0-\u30ff]+"  # kanji, hiragana, katakana
    r"|[^\W\d_]+(?:['\u2019][^\W\d_]+)*"  # letters of other scripts, as in don't
)
HEADER = (
    "| text | temperature | min-p | words | pairs | triples | copies | repeats |\n"
    "|---|---|---|---|---|---|---|---|"
)


def print_rows(run: str, text: str, temperatures: list[float], min_ps: list[float]) -> None:
    """Print a row for the val split, and a row for samples at each temperature and min-p."""
    model = api.load(run, device="cpu")
    corpus = load_corpus(open_source(text), model.config.data, vocabulary=model.vocabulary)
    train, val = (model.vocabulary.decode(ids) for ids in (corpus.train, corpus.val))
    known = set(words_of(train))
    starts = range(0, len(val) - SAMPLE_CHARACTERS + 1, SAMPLE_CHARACTERS)[:SAMPLES]
    pieces = [val[start : start + SAMPLE_CHARACTERS] for start in starts]
    print(f"| {corpus.name} | val | | {shares(pieces, train, known)} |", flush=True)
    for temperature, min_p in product(temperatures, min_ps):
        count = len(pieces)  # the same for both, because more text has fewer distinct pairs
        rules = {"temperature": temperature, "min_p": min_p}
        chunks = model.sample("", num_samples=count, length=SAMPLE_CHARACTERS, seed=1, rules=rules)
        samples = [sample.text for sample in collect(chunks, [""] * count)]
        row = shares(samples, train, known)
        print(f"| {corpus.name} | {temperature} | {min_p} | {row} |", flush=True)


def shares(pieces: list[str], train: str, known: set[str]) -> str:
    """Return the last five columns of a row, given the train split and its words, `known`."""
    lists = [words_of(piece)[1:-1] for piece in pieces]  # the first and the last may be cut
    words = [word for words in lists for word in words]
    percentages = [
        100 * sum(word in known for word in words) / len(words),
        100 * share_of_distinct(lists, 2),
        100 * share_of_distinct(lists, 3),
        100 * share_of_copies(pieces, train),
        100 * share_of_repeats(pieces),
    ]
    return " | ".join(f"{percentage:.1f}" for percentage in percentages)


def words_of(text: str) -> list[str]:
    """Return the words of `text` in lower case."""
    return WORD.findall(text.lower())


def share_of_distinct(lists: list[list[str]], n: int) -> float:
    """Return the share of distinct sequences of `n` words among all in `lists`."""
    ngrams = [tuple(words[i : i + n]) for words in lists for i in range(len(words) - n + 1)]
    return len(set(ngrams)) / len(ngrams)


def share_of_copies(pieces: list[str], train: str) -> float:
    """Return the share of substrings of `pieces`, mostly letters, that occur in `train`."""
    prose = [
        substring
        for piece in pieces
        for substring in substrings(piece)
        if sum(map(str.isalpha, substring)) >= SUBSTRING_CHARACTERS / 2
    ]
    copied = set(prose).intersection(substrings(train))
    return sum(substring in copied for substring in prose) / len(prose)


def share_of_repeats(pieces: list[str]) -> float:
    """Return the share of substrings that occur earlier in the same piece."""
    lists = [list(substrings(piece)) for piece in pieces]
    return 1 - sum(len(set(parts)) for parts in lists) / sum(map(len, lists))


def substrings(text: str) -> Iterator[str]:
    """Yield all substrings of SUBSTRING_CHARACTERS characters."""
    for start in range(len(text) - SUBSTRING_CHARACTERS + 1):
        yield text[start : start + SUBSTRING_CHARACTERS]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs_and_texts", nargs="+", metavar="RUN TEXT")
    parser.add_argument("--temperatures", nargs="+", type=float, default=TEMPERATURES)
    parser.add_argument("--min-ps", nargs="+", type=float, default=MIN_PS)
    args = parser.parse_args()
    print(HEADER)
    for run, text in zip(args.runs_and_texts[::2], args.runs_and_texts[1::2], strict=True):
        print_rows(run, text, args.temperatures, args.min_ps)
