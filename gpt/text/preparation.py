"""Convert a text of any size to ids on disk, in two passes and constant memory.

The first pass counts the characters and makes the vocabulary. The second pass writes the ids.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpt.config.data_config import DataConfig
from gpt.errors import TextError
from gpt.files import sync
from gpt.text.cache import quick_sha256
from gpt.text.documents import Normalizer, Source, divided
from gpt.text.split import held_out, train_characters
from gpt.text.vocabulary import BYTES, CODE_POINTS, Vocabulary, code_points, listed_characters

FILE_SEPARATOR, RECORD_SEPARATOR = b"\n\n", b"\n"  # text between two files, or two records
CHUNKS_AHEAD = 4  # number of chunks that `ahead` reads in advance
JOINED_BYTES = 2**18  # small chunks are joined to at least this size, to process them faster
MIN_FIRST_BYTE = -64  # 0xC0 as int8; smaller bytes (0x80 to 0xBF) continue a UTF-8 character


Item = TypeVar("Item")


@dataclass
class Part:
    """The documents of a train split, of a val split, or of a whole text."""

    source: Source
    data: DataConfig  # how documents are divided and joined
    chosen: NDArray[np.bool_] | None = None  # which documents are in this part; None for all
    line_ends: int = 0  # number of line ends changed to LF, set after all chunks have been read

    def chunks(self) -> Iterator[bytes]:
        """Yield the documents of this part, normalised and joined, in chunks of UTF-8.

        Chunks have at least JOINED_BYTES bytes; only the last one may be smaller.
        """
        normalizer, pending, length = Normalizer(), list[bytes](), 0
        for chunk in self._joined(normalizer):
            pending.append(chunk)
            length += len(chunk)
            if length >= JOINED_BYTES:
                yield b"".join(pending)
                pending, length = [], 0
        if length:
            yield b"".join(pending)
        self.line_ends = normalizer.line_ends

    def _joined(self, normalizer: Normalizer) -> Iterator[bytes]:
        """Yield this part's documents; separate files and records, but not the lines of a file."""
        separator = FILE_SEPARATOR if self.data.column is None else RECORD_SEPARATOR
        index, is_first = 0, True
        documents = "files" if self.chosen is None else self.data.documents
        for file in self.source.documents():
            between = b"" if is_first else separator
            for fragment, ends in divided(file, normalizer, documents):
                if self.chosen is not None and index == len(self.chosen):
                    raise ValueError("the text has changed")
                if self.chosen is None or self.chosen[index]:
                    yield between + fragment
                    is_first, between = False, b""
                index += ends


@dataclass(frozen=True)
class Counts:
    """Result of the first pass over a text: its sizes and vocabulary."""

    characters: int
    bytes: int
    train_characters: int
    vocabulary: Vocabulary


@dataclass(frozen=True)
class Task:
    """A text to encode, and all settings that determine its ids: the arguments of `load_corpus`."""

    source: Source
    val_source: Source | None
    data: DataConfig
    vocabulary: Vocabulary | None
    extends: bool
    seed: int

    @property
    def name(self) -> str:
        """The name of the text in messages; it contains the name of a separate val text."""
        return self.source.name + (f" (val: {self.val_source.name})" if self.val_source else "")

    @property
    def sources(self) -> list[Source]:
        """The text, and the val text if a separate one is set."""
        return [self.source] if self.val_source is None else [self.source, self.val_source]

    def key(self) -> str:
        """Return the cache folder's name: a hash of the text's name, path and settings."""
        places = [
            (source.name, [str(path.absolute()) for path in source.files[:1]])
            for source in self.sources
        ]
        given = self.vocabulary
        settings = self.data.model_dump(exclude={"source", "val_source"}) | {
            "seed": self.seed if self.data.split == "documents" else None,
            "vocabulary": self.data.vocabulary if given is None else given.to_json(),
            "extends": self.extends,
        }
        content = json.dumps([places, settings], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def fingerprint(self) -> list[str]:
        """Return a hash of the files of each of `sources`, to detect changes."""
        try:
            return [quick_sha256(source.files) for source in self.sources]
        except OSError as error:
            raise TextError(f"{error.filename}: cannot read the text: {error.strerror}") from None

    def parts(self) -> list[Part]:
        """Return the train and val parts, or a single one if val is the end of the text."""
        if self.data.split == "tail":
            return [Part(source, self.data) for source in self.sources]
        val = held_out(self.source, self.data, self.seed)
        return [Part(self.source, self.data, ~val), Part(self.source, self.data, val)]


def count_text(task: Task, parts: list[Part]) -> Counts:
    """Count characters and bytes in a first pass over the text, and determine the vocabulary.

    Raise TextError if a given vocabulary, which is not to be extended, lacks some characters.
    """
    occurs, characters, size, ends = np.zeros(CODE_POINTS, bool), 0, 0, []
    for part in parts:
        for chunk in ahead(part.chunks()):
            occurs[code_points(chunk.decode(errors="replace"))] = True  # the text may be binary
            characters += character_count(chunk)
            size += len(chunk)
        ends.append(characters)
    fraction = task.data.val_fraction
    train = train_characters(characters, fraction) if len(parts) == 1 else ends[0]
    found = "".join(map(chr, np.flatnonzero(occurs)))
    return Counts(characters, size, train, _vocabulary(task, found))


def _vocabulary(task: Task, found: str) -> Vocabulary:
    """Return the vocabulary to use for a text with the characters `found`."""
    given = task.vocabulary
    if given is None:
        return BYTES if task.data.vocabulary == "bytes" else Vocabulary(found)
    if task.extends:
        return BYTES if given.is_bytes else Vocabulary.of(given.characters + found)
    if outside := given.outside(found):
        raise TextError(
            f"{task.source.name}: {len(outside):,} of its characters are not in the given "
            f"vocabulary: {listed_characters(outside)}; remove them, or use a vocabulary of bytes"
        )
    return given


def write(parts: list[Part], counts: Counts, file: BinaryIO) -> dict[str, str | int]:
    """Run the second pass: write the ids of a text to `file` as .npy, the train split first.

    Returns:
        The fields of `Corpus` for the text's hash and sizes, by name.

    Raises:
        KeyError, ValueError: the text has changed since it was counted.
    """
    vocabulary, digest = counts.vocabulary, hashlib.sha256()
    total = counts.bytes if vocabulary.is_bytes else counts.characters
    header = {"descr": vocabulary.dtype.str, "fortran_order": False, "shape": (total,)}
    np.lib.format.write_array_header_1_0(file, header)
    characters = size = train_bytes = first_bytes = 0
    for part in parts:
        encoded = ((chunk, vocabulary.encode_utf8(chunk)) for chunk in ahead(part.chunks()))
        for chunk, ids in ahead(encoded):
            digest.update(chunk)
            file.write(ids.data)
            added = character_count(chunk) if vocabulary.is_bytes else len(ids)
            before = counts.train_characters - characters
            if 0 <= before <= added:  # val begins in this chunk, or right after it
                train_bytes = size + (offset := byte_offset(chunk, before))
                first_bytes = byte_offset(chunk, before + 1) - offset
            characters += added
            size += len(chunk)
    if (characters, size) != (counts.characters, counts.bytes):
        raise ValueError("the text has changed")
    sync(file)
    train_ids = train_bytes if vocabulary.is_bytes else counts.train_characters
    if len(parts) > 1:  # the same text with a different split needs a different hash
        digest.update(f"split at {train_ids}".encode())
    return {
        "sha256": digest.hexdigest(),
        "train_ids": train_ids,
        "characters": characters,
        "val_characters": characters - counts.train_characters,
        "val_bytes": size - train_bytes,
        "val_first_bytes": first_bytes,
    }


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield `items` in order, while a thread reads the next CHUNKS_AHEAD of them in advance."""
    end = object()
    with ThreadPoolExecutor(1) as thread:
        futures = deque(thread.submit(next, items, end) for _ in range(CHUNKS_AHEAD))
        try:
            while (item := futures.popleft().result()) is not end:
                futures.append(thread.submit(next, items, end))
                yield item  # type: ignore[misc]  # not the sentinel `end`
        finally:
            for future in futures:
                future.cancel()


def character_count(chunk: bytes) -> int:
    """Count the characters in `chunk`: the bytes that begin a character."""
    if chunk.isascii():
        return len(chunk)
    return int(np.count_nonzero(np.frombuffer(chunk, np.int8) >= MIN_FIRST_BYTE))


def byte_offset(chunk: bytes, characters: int) -> int:
    """Return the size in bytes of the first `characters` characters in `chunk`."""
    starts = np.flatnonzero(np.frombuffer(chunk, np.int8) >= MIN_FIRST_BYTE)
    return int(starts[characters]) if characters < len(starts) else len(chunk)
