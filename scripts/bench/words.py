"""Words in samples, beside text that people wrote.

Words are compared in lower case. Japanese has no spaces, so a word is a run of kanji, hiragana or
katakana. All values are percentages:

    words      words that occur in the train split; misspelt words rarely do
    pairs      distinct pairs of consecutive words, of all pairs; few if samples are monotonous
    triples    distinct triples of consecutive words, of all triples
    repeats    substrings of 32 characters that occur earlier in the same sample, such as lines of
               dashes
"""

import re
from itertools import product
from pathlib import Path

from gpt import api
from gpt.reading.sources import open_source
from gpt.sampling.stopping import collect
from gpt.text.corpus import load_corpus

SAMPLES, SAMPLE_CHARACTERS = 60, 2000
SUBSTRING_CHARACTERS = 32  # length of repeats
TEMPERATURES = [0.6, 0.7, 0.8, 0.9, 1.0]
MIN_PS = [0.0, 0.005, 0.02, 0.05, 0.1]
WORD = re.compile(
    r"[\u4e00-\u9fff]+|[\u3040-\u309f]+|[\u30a0-\u30ff]+"  # kanji, hiragana, katakana
    r"|[^\W\d_]+(?:['\u2019][^\W\d_]+)*"  # letters of other scripts, as in don't
)


def words(run: Path, text: Path) -> dict[str, dict[str, float]]:
    """Describe the val split of `text`, and samples of `run` by temperature and min-p.

    `run` has been trained on `text`, a file or a named source. At most 60 samples of 2,000
    characters are drawn, or as many characters as the val split has.
    """
    model = api.load(run, device="cpu")
    corpus = load_corpus(open_source(str(text)), model.config.data, vocabulary=model.vocabulary)
    train, val = (model.vocabulary.decode(ids) for ids in (corpus.train, corpus.val))
    known = set(words_of(train))
    starts = range(0, len(val) - SAMPLE_CHARACTERS + 1, SAMPLE_CHARACTERS)[:SAMPLES]
    pieces = [val[start : start + SAMPLE_CHARACTERS] for start in starts]
    table = {"val": shares(pieces, known)}
    for temperature, min_p in product(TEMPERATURES, MIN_PS):
        count = len(pieces)  # the same for both, because more text has fewer distinct pairs
        rules = {"temperature": temperature, "min_p": min_p}
        chunks = model.sample("", num_samples=count, length=SAMPLE_CHARACTERS, seed=1, rules=rules)
        samples = [sample.text for sample in collect(chunks, [""] * count)]
        table[f"temperature {temperature}, min-p {min_p}"] = shares(samples, known)
    return table


def shares(pieces: list[str], known: set[str]) -> dict[str, float]:
    """Return the percentages; `known` are the words of the train split."""
    lists = [words_of(piece)[1:-1] for piece in pieces]  # the first and the last may be cut
    found = [word for words in lists for word in words]
    values = {
        "words": sum(word in known for word in found) / len(found),
        "pairs": share_of_distinct(lists, 2),
        "triples": share_of_distinct(lists, 3),
        "repeats": share_of_repeats(pieces),
    }
    return {name: round(100 * share, 1) for name, share in values.items()}


def words_of(text: str) -> list[str]:
    """Return the words of `text` in lower case."""
    return WORD.findall(text.lower())


def share_of_distinct(lists: list[list[str]], n: int) -> float:
    """Return the share of distinct sequences of `n` words among all in `lists`."""
    ngrams = [tuple(words[i : i + n]) for words in lists for i in range(len(words) - n + 1)]
    return len(set(ngrams)) / len(ngrams)


def share_of_repeats(pieces: list[str]) -> float:
    """Return the share of substrings that occur earlier in the same piece."""
    n = SUBSTRING_CHARACTERS
    lists = [[piece[i : i + n] for i in range(len(piece) - n + 1)] for piece in pieces]
    return 1 - sum(len(set(parts)) for parts in lists) / sum(map(len, lists))
