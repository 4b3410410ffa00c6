"""Texts to fit the law on, texts to test the law on, and texts of the recipe's table."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from gpt.config.schema import DataConfig
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.sources import open_source


@dataclass(frozen=True)
class Text:
    """A file, or a named text.

    Attributes:
        source: name of a file or of a text; with `files`, a folder of the installed torch.
        bytes: length of the beginning to use; 0: all.
        words: replace this many most frequent words by one character each, and drop the others.
            This gives a large vocabulary with the frequencies of a language.
        files: glob of the files to join.
    """

    source: str
    bytes: int = 0
    words: int = 0
    files: str = ""


TEXTS = {
    "tinyshakespeare-20kB": Text("tinyshakespeare.txt", 20_000),
    "tinyshakespeare-200kB": Text("tinyshakespeare.txt", 200_000),
    "tinyshakespeare": Text("tinyshakespeare.txt"),
    "names": Text("names.txt"),
    "wikitext2-valid": Text("wikitext2-valid.txt"),
    "python-docs": Text("python-docs"),
    "torch-python": Text("nn", files="*.py"),
    "torch-headers": Text("include/c10", files="*.h"),
    "torch-all-python": Text(".", files="*.py"),
    "torch-all-headers": Text("include", files="*.h"),
    "gutenberg12-2MB": Text("gutenberg12.txt", 2_000_000),
    "gutenberg12": Text("gutenberg12.txt"),
    "gutenberg12-words": Text("gutenberg12.txt", 4_000_000, words=3000),
    "gutenberg12-rare-words": Text("gutenberg12.txt", 500_000, words=4500),
    "neko": Text("neko.txt"),
    "udhr": Text("udhr-mixed.txt"),
    "wikitext2-test": Text("wikitext2-test.txt"),
    "python-source": Text("python-source"),
}
HELD_OUT = ("neko", "udhr", "wikitext2-test", "python-source")


def source_of(name: str, folder: Path, scratch: Path) -> str:
    """Return the TEXT for `gpt train`; write it to `scratch` if it is not a file of `folder`."""
    text, path = TEXTS[name], scratch / f"{name}.txt"
    if text.files:
        files = sorted((Path(torch.__file__).parent / text.source).rglob(text.files))
        path.write_bytes(b"\n".join(file.read_bytes() for file in files))
        return str(path)
    if not text.source.endswith(".txt"):
        return text.source
    if not text.bytes:
        return str(folder / text.source)
    part = (folder / text.source).read_bytes()[: text.bytes].decode("utf-8", "ignore")
    if text.words:
        words = re.findall(r"\w+|[^\w\s]", part.lower())
        common = [word for word, _ in Counter(words).most_common(text.words)]
        ids = {word: chr(0x4E00 + i) for i, word in enumerate(common)}
        part = "".join(ids[word] for word in words if word in ids)
    path.write_text(part, "utf-8")
    return str(path)


def corpus_of(source: str) -> Corpus:
    """Read a text as `gpt train` does."""
    data = DataConfig(source=source)
    return load_corpus(open_source(source, data), data)
