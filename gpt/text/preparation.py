"""A text of any size as ids on disk, in two passes and constant memory: to count, and to encode.

documents -> normalised chunks of UTF-8 -> (1) characters counted, (2) ids written
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gpt.config.schema import DataConfig
from gpt.errors import TextError
from gpt.files import sync
from gpt.seeds import uniforms
from gpt.text.cache import sampled_sha256
from gpt.text.documents import Source
from gpt.text.pipeline import Behind, ahead
from gpt.text.rules import Normalizer, normalized
from gpt.text.utf8 import byte_offset, character_count
from gpt.text.vocabulary import BYTES, CharacterCounts, Ids, Vocabulary

JOINED_BYTES = 2**18  # of small documents, which are counted and encoded together
LARGEST_VAL = 1.5  # times what was asked for, where whole documents do not fit it better

Progress = Callable[[int], object]
"""Told of bytes that were read."""


@dataclass
class Part:
    """Documents of a source that become the text from which windows are cut.

    `chosen` says which of the documents, as `data.documents` divides the source; None = all.
    """

    source: Source
    data: DataConfig
    chosen: NDArray[np.bool_] | None = None
    line_ends: int = 0  # that were changed, once the chunks have been read

    def chunks(self) -> Iterator[bytes]:
        """Yield the text, normalised, in chunks of strict UTF-8.

        Files and records are joined by the separator. Without `chosen`, `data.documents` makes no
        difference: what it divides is joined as it was.
        """
        normalizer = Normalizer(self.data)
        separator, documents = separator_bytes(self.data), self.data.documents

        def joined() -> Iterator[bytes]:
            index, is_first = 0, True
            for file in self.source.documents():
                between, begins = b"" if is_first else separator, True
                chunks = file.chunks() if file.raw else normalizer(file.chunks())
                if self.chosen is None:
                    yield between
                    yield from chunks
                    is_first = False
                    continue
                for fragment, ends in divided(chunks, documents, separator):
                    if self.chosen[index]:
                        if begins:
                            yield between
                        yield fragment
                        is_first, between = False, b"" if documents == "lines" else separator
                    begins = ends
                    index += ends

        yield from _of_size(joined(), JOINED_BYTES)
        self.line_ends = normalizer.line_ends


def separator_bytes(data: DataConfig) -> bytes:
    """Return what stands between two documents, normalised as they are."""
    return normalized(data.separator, data).encode()


def divided(
    chunks: Iterable[bytes], documents: str, separator: bytes
) -> Iterator[tuple[bytes, bool]]:
    """Divide a file or record into documents.

    Args:
        chunks: its text, in whole characters.
        documents: `data.documents`. A line has its line end, the last one only if there is one;
            the separator belongs to no document.
        separator: what divides it, if `documents` is `separator`.

    Yields:
        A fragment of a document, and whether the document ends with it.
    """
    if documents == "files":
        yield from ((chunk, False) for chunk in chunks)
        yield b"", True
        return
    are_lines = documents == "lines"
    end, line_end = (b"\n", b"\n") if are_lines else (separator, b"")
    pending, is_open = b"", not are_lines
    for chunk in chunks:
        *whole, last = (pending + chunk).split(end)
        yield from ((document + line_end, True) for document in whole)
        cut = max(len(last) - len(end) + 1, 0)  # what follows may be the start of a separator
        while cut < len(last) and last[cut] & 0xC0 == 0x80:  # in the middle of a character
            cut -= 1
        pending = last[cut:]
        if cut:
            yield last[:cut], False
        is_open = not are_lines or bool(last) or (is_open and not whole)
    if is_open:
        yield pending, True


@dataclass(frozen=True)
class Counts:
    """What the first pass finds: of the train part, and of all parts together."""

    characters: int
    bytes: int
    train_characters: int
    vocabulary: Vocabulary


@dataclass(frozen=True)
class Written:
    """What the second pass wrote.

    `sha256` is of the characters that the ids stand for, in UTF-8. `train_ids` is the number of ids
    before the val split, `val_bytes` what its text has in UTF-8, and `val_first_bytes` what the
    first character of it has.
    """

    sha256: str
    train_ids: int
    val_bytes: int
    val_first_bytes: int


@dataclass(frozen=True)
class Task:
    """A text to prepare, and how: all that decides its ids. For the fields see `load_corpus`."""

    source: Source
    val_source: Source | None
    data: DataConfig
    vocabulary: Vocabulary | None
    extends: bool
    seed: int

    def key(self) -> str:
        """The name under which the ids are kept: the same again for the same text, if changed."""
        places = [
            (source.name, [str(path.absolute()) for path in source.files[:1]])
            for source in self.sources
        ]
        return _hash([places, self._rules()])[:32]

    def fingerprint(self) -> str:
        """Changes when the text does, see `sampled_sha256`.

        Raises TextError if the text cannot be read.
        """
        try:
            files = [sampled_sha256(source.files) for source in self.sources]
        except OSError as error:
            raise TextError(f"{error.filename}: cannot read the text: {error.strerror}") from None
        return _hash([files, self._rules()])

    def parts(self) -> list[Part]:
        """One part, to be split; or a train part and a val part.

        Raises TextError if whole documents are to be held out, and there is only one.
        """
        data = self.data
        if data.split == "tail":
            return [Part(source, data) for source in self.sources]
        lengths = document_lengths(Part(self.source, data))
        if len(lengths) < 2:
            raise TextError(
                f"{self.source.name}: data.split documents holds out whole documents: expected at "
                f"least 2, got {len(lengths)}; use data.documents=lines, by which each line is a "
                f"document, or data.split=tail"
            )
        held_out = _held_out(lengths, data.val_fraction, self.seed)
        return [Part(self.source, data, ~held_out), Part(self.source, data, held_out)]

    @property
    def sources(self) -> list[Source]:
        """The text, and that of val if it has one of its own."""
        return [self.source] if self.val_source is None else [self.source, self.val_source]

    def _rules(self) -> dict[str, Any]:
        return self.data.model_dump(exclude={"source", "val_source"}) | {
            "seed": self.seed if self.data.split == "documents" else None,
            "vocabulary": self.data.vocabulary
            if self.vocabulary is None
            else self.vocabulary.to_json(),
            "extends": self.extends,
        }


def count(
    parts: list[Part], vocabulary: Vocabulary | None, extends: bool, progress: Progress
) -> Counts:
    """The first pass: the sizes, and the vocabulary, unless one is given that is not extended.

    Raises TextError if that has no id for some characters of the text.
    """
    data = parts[0].data
    counts, size = CharacterCounts(exact=data.max_vocabulary is not None), 0
    ends = []
    for part in parts:
        for chunk in ahead(part.chunks()):
            counts.add(chunk)
            size += len(chunk)
            progress(len(chunk))
        ends.append(counts.total)
    train = train_characters(counts.total, data.val_fraction) if len(parts) == 1 else ends[0]
    if vocabulary is None and data.vocabulary == "bytes":
        vocabulary = BYTES
    elif vocabulary is None:
        vocabulary = counts.vocabulary(data.max_vocabulary)
    elif extends:
        vocabulary = vocabulary.extended(counts.vocabulary().characters)
    else:
        vocabulary = _given(vocabulary, counts, parts[0].source.name)
    return Counts(counts.total, size, train, vocabulary)


def train_characters(characters: int, val_fraction: float) -> int:
    """How many of a text's characters, the first ones, are train where val is so much of it."""
    return int((1 - val_fraction) * characters)


def write(parts: list[Part], counts: Counts, file: BinaryIO, progress: Progress) -> Written:
    """The second pass: the ids of all parts, as numpy's .npy; the train split first.

    Raises KeyError or ValueError if the text is not the one that was counted.
    """
    vocabulary, digest = counts.vocabulary, hashlib.sha256()
    total = counts.bytes if vocabulary.is_bytes else counts.characters
    header = {"descr": vocabulary.dtype.str, "fortran_order": False, "shape": (total,)}
    np.lib.format.write_array_header_1_0(file, header)

    def keep(chunk: bytes, ids: Ids) -> None:
        digest.update(chunk)
        file.write(ids.data)

    characters = size = train_bytes = first_bytes = 0
    with Behind(keep) as keep_behind:
        for part in parts:
            for chunk in ahead(part.chunks()):
                keep_behind(chunk, ids := vocabulary.encode_utf8(chunk))
                here = character_count(chunk) if vocabulary.is_bytes else len(ids)
                before = counts.train_characters - characters
                if 0 <= before <= here:  # val begins in this chunk, or right after it
                    train_bytes = size + (offset := byte_offset(chunk, before))
                    first_bytes = byte_offset(chunk, before + 1) - offset
                characters += here
                size += len(chunk)
                progress(len(chunk))
    if (characters, size) != (counts.characters, counts.bytes):
        raise ValueError("the text has changed")
    sync(file)
    train_ids = train_bytes if vocabulary.is_bytes else counts.train_characters
    if len(parts) > 1:  # the same characters, split elsewhere, are another text to train on
        digest.update(f"split at {train_ids}".encode())
    return Written(digest.hexdigest(), train_ids, size - train_bytes, first_bytes)


def _given(vocabulary: Vocabulary, counts: CharacterCounts, name: str) -> Vocabulary:
    """That of another run, for this text. Raises TextError if it has no id for some characters."""
    outside = vocabulary.outside(counts.vocabulary().characters)
    if not outside:
        return vocabulary
    if vocabulary.unknown_id is None:
        listed = " ".join(c if c.isprintable() else ascii(c) for c in outside[:20])
        raise TextError(
            f"{name}: {len(outside):,} of its characters are not in the vocabulary that is given: "
            f"{listed}; expected none but those; use a vocabulary with an unknown id "
            f"(data.max_vocabulary), or of bytes"
        )
    return Vocabulary(vocabulary.characters, len(outside))


def _hash(tree: Any) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def document_lengths(part: Part) -> list[int]:
    """Return the characters of each document."""
    lengths, length, separator = [], 0, separator_bytes(part.data)
    for file in part.source.documents():
        chunks = Normalizer(part.data)(file.chunks())
        for fragment, ends in divided(chunks, part.data.documents, separator):
            length += len(fragment.decode())  # faster than character_count for short ones
            if ends:
                lengths.append(length)
                length = 0
    return lengths


def _held_out(lengths: list[int], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Documents chosen by the seed, which together come near that fraction of all characters."""
    wanted, held = fraction * sum(lengths), 0
    held_out = np.zeros(len(lengths), bool)
    for index in uniforms(seed, "held-out documents", 0).permutation(len(lengths)):
        if held >= wanted:
            break
        if lengths[index] and held + lengths[index] <= LARGEST_VAL * wanted:
            held_out[index] = True
            held += lengths[index]
    if not held:  # each is longer than that, or empty
        held_out[int(np.argmin([length or np.inf for length in lengths]))] = True
    return held_out


def _of_size(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The chunks, small ones joined to at least `size` bytes; none empty."""
    waiting, length = [], 0
    for chunk in chunks:
        waiting.append(chunk)
        length += len(chunk)
        if length >= size:
            yield b"".join(waiting)
            waiting, length = [], 0
    if length:
        yield b"".join(waiting)
