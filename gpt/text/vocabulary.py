"""The vocabulary: the sorted distinct characters of a text; an id is an index into it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpt.errors import CheckpointError

CODE_POINTS = 0x110000  # Unicode ends at U+10FFFF
MASKED = -1  # in place of an id: a token whose embedding is zero (dropped out, or padding)
Ids = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]


@dataclass(frozen=True)
class Vocabulary:
    """Maps characters to ids 0..V-1 and back."""

    characters: str

    @classmethod
    def of(cls, text: str) -> "Vocabulary":
        """The sorted distinct characters of the text."""
        seen = np.zeros(CODE_POINTS, bool)
        seen[_code_points(text)] = True
        return cls("".join(map(chr, np.flatnonzero(seen))))

    def __len__(self) -> int:
        return len(self.characters)

    @cached_property
    def _table(self) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        """The id of every code point; V for those outside the vocabulary."""
        table = np.full(CODE_POINTS, len(self), np.uint32)
        table[_code_points(self.characters)] = np.arange(len(self))
        return table

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The narrowest unsigned integer that holds V ids."""
        return np.min_scalar_type(max(len(self) - 1, 0))

    def encode(self, text: str) -> Ids:
        """Ids of the characters, (len(text),). Raises KeyError for a character outside."""
        ids = self._table[_code_points(text)]
        if ids.size and ids.max() >= len(self):
            raise KeyError(text[int(np.argmax(ids >= len(self)))])
        return ids.astype(self.dtype)

    def decode(self, ids: Iterable[int]) -> str:
        """The characters with these ids."""
        return "".join(self.characters[i] for i in ids)

    def unknown(self, text: str) -> str:
        """The characters of the text that the vocabulary lacks, each once, in their order."""
        return "".join(c for c in dict.fromkeys(text) if c not in self.characters)

    def to_json(self) -> str:
        """The content of a checkpoint's vocabulary.json."""
        return json.dumps({"characters": self.characters}) + "\n"

    @classmethod
    def from_json(cls, content: str) -> "Vocabulary":
        """Raises CheckpointError unless the content is what `to_json` writes."""
        try:
            characters = json.loads(content)["characters"]
            if not characters or characters != "".join(sorted(set(characters))):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise CheckpointError(
                'not a vocabulary: expected {"characters": "..."} with sorted, distinct characters'
            ) from None
        return cls(characters)


def _code_points(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))
