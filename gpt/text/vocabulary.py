"""The vocabulary: which character, or byte, each id stands for."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpt.errors import CheckpointError
from gpt.text.utf8 import ASCII, CONTINUATION, character_count, non_ascii

CODE_POINTS = 0x110000  # Unicode ends at U+10FFFF
MASKED = -1  # in place of an id: a token whose embedding is zero (dropped out, or padding)
REPLACEMENT = "\ufffd"  # the name of the unknown id
Ids = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]


@dataclass(frozen=True)
class Vocabulary:
    """Maps characters, or the bytes of their UTF-8, to ids 0..V-1 and back.

    Args:
        characters: sorted and distinct; an id is an index into them.
        unknown: how many further characters of the text share one more id, the last, which is
            never sampled; 0 = there is no such id.
        is_bytes: an id is a byte instead; there are 256, and no characters.
    """

    characters: str
    unknown: int = 0
    is_bytes: bool = False

    @classmethod
    def of(cls, text: str) -> "Vocabulary":
        """The sorted distinct characters of the text."""
        return cls("".join(sorted(set(text))))

    def __len__(self) -> int:
        return 256 if self.is_bytes else len(self.characters) + (self.unknown > 0)

    @property
    def unknown_id(self) -> int | None:
        """The id of every character outside, if there is one."""
        return len(self.characters) if self.unknown else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What each id is called where it stands alone: `a`; of bytes beyond ASCII `\\xe3`."""
        if self.is_bytes:
            return tuple(chr(i) if i < 0x80 else f"\\x{i:02x}" for i in range(256))
        return (*self.characters, *[REPLACEMENT][: len(self) - len(self.characters)])

    @property
    def unit(self) -> str:
        """What an id stands for, in messages: a `character` or a `byte`."""
        return "byte" if self.is_bytes else "character"

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The narrowest unsigned integer that holds V ids."""
        return np.min_scalar_type(max(len(self) - 1, 0))

    def encode(self, text: str) -> Ids:
        """Ids of the characters, (len(text),); of bytes, as many as its UTF-8 has.

        Raises KeyError for a character outside, if there is no id for it.
        """
        if self.is_bytes:
            if outside := self.outside(text):
                raise KeyError(outside[0])
            return np.frombuffer(text.encode(), np.uint8)
        ids = self._table[code_points(text)]
        if ids.size and ids.max() >= len(self):
            raise KeyError(text[int(np.argmax(ids >= len(self)))])
        return ids.astype(self.dtype)

    def encode_utf8(self, chunk: bytes) -> Ids:
        """Ids of strict UTF-8, in fewer passes than `encode`: ASCII is never decoded.

        Raises KeyError for a character outside, if there is no id for it.
        """
        if self.is_bytes:
            return np.frombuffer(chunk, np.uint8)
        if len(self) > self._other:
            return self.encode(chunk.decode())
        ids: Ids  # of each character by its first byte
        if self.dtype == np.uint8:
            ids = np.frombuffer(
                chunk.translate(self._first_bytes.tobytes(), CONTINUATION), np.uint8
            )
        else:
            ids = self._first_bytes[np.frombuffer(chunk.translate(None, CONTINUATION), np.uint8)]
        others, places = non_ascii(chunk)
        if others:
            ids = ids.copy()
            ids[places] = self.encode(others.decode())
        if ids.size and ids.max() == self._other:
            return self.encode(chunk.decode())  # says which is outside
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text with these ids; where bytes are no UTF-8, U+FFFD."""
        if self.is_bytes:
            return bytes(ids).decode(errors="replace")
        places = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, np.intp)
        chosen = code_points("".join(self.names))[places]
        return chosen.tobytes().decode("utf-32-le", "surrogatepass")

    def names_of(self, ids: Iterable[int]) -> list[str]:
        """The name of each of these ids."""
        return [self.names[i] for i in ids]

    def outside(self, text: str) -> str:
        """The characters of the text that have no id of their own, each once, in their order."""
        if self.is_bytes:
            return "".join(c for c in dict.fromkeys(text) if "\ud800" <= c <= "\udfff")
        return "".join(c for c in dict.fromkeys(text) if c not in self._known)

    def extended(self, characters: str) -> "Vocabulary":
        """The same with an id for each of these characters as well; bytes have all of them."""
        if self.is_bytes:
            return self
        return Vocabulary("".join(sorted({*self.characters, *characters})), self.unknown)

    def to_json(self) -> str:
        """The content of a checkpoint's vocabulary.json."""
        if self.is_bytes:
            return json.dumps({"bytes": True}) + "\n"
        unknown = {"unknown": self.unknown} if self.unknown else {}
        return json.dumps({"characters": self.characters} | unknown) + "\n"

    @classmethod
    def from_json(cls, content: str) -> "Vocabulary":
        """Raises CheckpointError unless the content is what `to_json` writes."""
        try:
            match json.loads(content):
                case {"bytes": True, **rest} if not rest:
                    return BYTES
                case {"characters": str(characters), "unknown": int(unknown), **rest}:
                    if unknown is True or not 0 < unknown <= CODE_POINTS:
                        raise ValueError
                case {"characters": str(characters), **rest}:
                    unknown = 0
                case _:
                    raise ValueError
            characters.encode()  # raises ValueError for surrogates: no text can have them
            if rest or not characters or (np.diff(code_points(characters).astype(int)) <= 0).any():
                raise ValueError
        except (ValueError, RecursionError):
            raise CheckpointError(
                'not a vocabulary: expected {"characters": "..."} with sorted, distinct '
                'characters, and perhaps "unknown": N; or {"bytes": true}'
            ) from None
        return cls(characters, unknown)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.characters)

    @cached_property
    def _table(self) -> NDArray[np.uint32]:
        """The id of every code point; V for those outside the vocabulary."""
        outside = len(self) if self.unknown_id is None else self.unknown_id
        table = np.full(CODE_POINTS, outside, np.uint32)
        table[code_points(self.characters)] = np.arange(len(self.characters))
        return table

    @property
    def _other(self) -> int:
        """What stands for an id that is not known by a character's first byte."""
        return int(np.iinfo(self.dtype).max)

    @cached_property
    def _first_bytes(self) -> Ids:
        """(256,): the id of each ASCII character, by its byte; `_other` for all else."""
        table = np.full(256, self._other, self.dtype)
        ids = self._table[: len(ASCII)]
        table[: len(ASCII)][ids < len(self)] = ids[ids < len(self)]
        return table


BYTES = Vocabulary("", is_bytes=True)


def code_points(text: str) -> NDArray[np.uint32]:
    """The number of each character, (len(text),)."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))


class CharacterCounts:
    """How often each character occurs in chunks of strict UTF-8, or, faster, only whether it does.

    Args:
        exact: whether to count them; else a character that occurs counts as one or more.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self.exact = exact
        self.total = 0  # characters
        self.counts = np.zeros(CODE_POINTS, np.int64)
        self._seen = b""  # ASCII characters

    def add(self, chunk: bytes) -> None:
        """Count the characters of a chunk."""
        if self.exact:
            ascii_counts = np.bincount(np.frombuffer(chunk, np.uint8), minlength=256)[: len(ASCII)]
            self.counts[: len(ASCII)] += ascii_counts
        if new := chunk.translate(None, ASCII if self.exact else self._seen):
            codes = code_points(new.decode(errors="replace"))  # of raw bytes, nobody asks for them
            if self.exact:
                times = np.bincount(codes)
                self.counts[: len(times)] += times
            else:
                self.counts[codes] = 1
                self._seen = bytes(np.flatnonzero(self.counts[: len(ASCII)]).astype(np.uint8))
        self.total += character_count(chunk)

    def vocabulary(self, most: int | None = None) -> Vocabulary:
        """The characters counted; with `most`, the most frequent, and an id for the others.

        That id is one of the `most`; characters equally frequent are in the order of Unicode.
        """
        found = np.flatnonzero(self.counts)
        unknown = 0
        if most is not None and len(found) > most:
            unknown = len(found) - (most - 1)
            by_count = found[np.argsort(-self.counts[found], kind="stable")]
            found = np.sort(by_count[: most - 1])
        return Vocabulary("".join(map(chr, found)), unknown)
