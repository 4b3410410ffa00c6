"""The vocabulary: the character, or byte, of each id."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpt.errors import CheckpointError

CODE_POINTS = 0x110000  # number of Unicode code points, U+0000 to U+10FFFF
MASKED = -1  # id of a dropped or padding character, whose embedding is zero
REPLACEMENT = "\ufffd"  # character that stands for bytes that are not UTF-8
Ids = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]


@dataclass(frozen=True)
class Vocabulary:
    """Maps characters, or the bytes of their UTF-8, to ids 0..V-1 and back."""

    characters: str  # distinct and sorted; the id of a character is its index
    is_bytes: bool = False  # whether the ids are the 256 byte values; `characters` is then empty

    @classmethod
    def of(cls, text: str) -> "Vocabulary":
        """Return the vocabulary of the characters of `text`."""
        return cls("".join(sorted(set(text))))

    def __len__(self) -> int:
        return 256 if self.is_bytes else len(self.characters)

    @cached_property
    def names(self) -> tuple[str, ...]:
        r"""The name of each id: a character, or an escape such as `\xe3` for a byte."""
        if self.is_bytes:
            return tuple(chr(i) if i < 0x80 else f"\\x{i:02x}" for i in range(256))
        return tuple(self.characters)

    @property
    def unit(self) -> str:
        """The noun for one id in messages: `character` or `byte`."""
        return "byte" if self.is_bytes else "character"

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The smallest unsigned integer type that can store the ids 0 to V - 1."""
        return np.min_scalar_type(max(len(self) - 1, 0))

    def encode(self, text: str) -> Ids:
        """Return the ids of `text`; raise KeyError if a character has none."""
        if self.is_bytes:
            if outside := self.outside(text):
                raise KeyError(outside[0])
            return np.frombuffer(text.encode(), np.uint8)
        ids = self._table[code_points(text)]
        if ids.size and ids.max() >= len(self):
            raise KeyError(text[int(np.argmax(ids >= len(self)))])
        return ids.astype(self.dtype)

    def encode_utf8(self, chunk: bytes) -> Ids:
        """Return the ids of a `chunk` of UTF-8; a vocabulary of bytes accepts any bytes."""
        return np.frombuffer(chunk, np.uint8) if self.is_bytes else self.encode(chunk.decode())

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`. U+FFFD replaces bytes that are not UTF-8."""
        if self.is_bytes:
            return bytes(ids).decode(errors="replace")
        places = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, np.intp)
        chosen = code_points(self.characters)[places]
        return chosen.tobytes().decode("utf-32-le", "surrogatepass")

    def utf8(self, ids: Ids) -> bytes:
        """Return the text of `ids` in UTF-8."""
        return ids.tobytes() if self.is_bytes else self.decode(ids).encode()

    def begins(self, ids: Ids) -> NDArray[np.bool_]:
        """Return whether each id begins a character. Some bytes continue a character."""
        if not self.is_bytes:
            return np.ones(len(ids), bool)
        return np.asarray((ids & 0xC0) != 0x80)  # continuation bytes have the leading bits 10

    def names_of(self, ids: Iterable[int]) -> list[str]:
        """Return the name of each id, from `names`."""
        return [self.names[i] for i in ids]

    def outside(self, text: str) -> str:
        """Return the distinct characters of `text` that have no id, in text order.

        If ids are bytes, these are the lone surrogates, which UTF-8 cannot encode.
        """
        if self.is_bytes:
            return "".join(c for c in dict.fromkeys(text) if "\ud800" <= c <= "\udfff")
        known = {*self.characters}
        return "".join(c for c in dict.fromkeys(text) if c not in known)

    def extended(self, characters: str) -> "Vocabulary":
        """Return a vocabulary with `characters` added. A vocabulary of bytes does not change."""
        if self.is_bytes:
            return self
        return Vocabulary("".join(sorted({*self.characters, *characters})))

    def to_json(self) -> str:
        """Return the vocabulary as JSON, for the file vocabulary.json of a checkpoint."""
        if self.is_bytes:
            return json.dumps({"bytes": True}) + "\n"
        return json.dumps({"characters": self.characters}) + "\n"

    @classmethod
    def from_json(cls, content: str) -> "Vocabulary":
        """Parse the output of `to_json`. Raise CheckpointError if `content` is anything else."""
        try:
            match json.loads(content):
                case {"bytes": True, **others} if not others:
                    return BYTES
                case {"characters": str(characters), **others} if characters and not others:
                    characters.encode()  # raises ValueError for surrogates: no text can have them
                    if cls.of(characters).characters == characters:
                        return cls(characters)
        except (ValueError, RecursionError):
            pass
        raise CheckpointError(
            'not a vocabulary: expected {"characters": "..."} with sorted, distinct '
            'characters; or {"bytes": true}'
        )

    @cached_property
    def _table(self) -> NDArray[np.uint32]:
        """The id of each code point, (CODE_POINTS,), or V for a code point without an id."""
        table = np.full(CODE_POINTS, len(self), np.uint32)
        table[code_points(self.characters)] = np.arange(len(self.characters))
        return table


BYTES = Vocabulary("", is_bytes=True)


def code_points(text: str) -> NDArray[np.uint32]:
    """Return the code points (len(text),) of the characters of `text`."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))
