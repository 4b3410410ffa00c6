"""The vocabulary: the character, or byte, of each id. Prompts are encoded with it."""

import json
import logging
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpt.errors import CheckpointError, UsageError, listed
from gpt.terminal import symbol

log = logging.getLogger(__name__)

CODE_POINTS = 0x110000  # number of Unicode code points, U+0000 to U+10FFFF
MASKED = -1  # id that stands for a dropped or padding character; its embedding is zero
REPLACEMENT = "\ufffd"  # character that stands for bytes that are not UTF-8
Ids = np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]
LISTED_CHARACTERS = 20  # largest number of characters that a message lists


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
        """Return the ids of `text`; raise KeyError or ValueError if a character has no id."""
        if self.is_bytes:
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
        """Return a bool for each id: False for a byte that continues a character, else True."""
        if not self.is_bytes:
            return np.ones(len(ids), bool)
        return np.asarray((ids & 0xC0) != 0x80)  # continuation bytes have the leading bits 10

    def names_of(self, ids: Iterable[int]) -> list[str]:
        """Return the name of each id, from `names`."""
        return [self.names[i] for i in ids]

    def outside(self, text: str) -> str:
        """Return the distinct characters of `text` that have no id, in order of occurrence.

        If ids are bytes, these are the lone surrogates, which UTF-8 cannot encode.
        """
        if self.is_bytes:
            return "".join(c for c in dict.fromkeys(text) if "\ud800" <= c <= "\udfff")
        known = {*self.characters}
        return "".join(c for c in dict.fromkeys(text) if c not in known)

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
        """Array (CODE_POINTS,): the id of each code point, or V if it has no id."""
        table = np.full(CODE_POINTS, len(self), np.uint32)
        table[code_points(self.characters)] = np.arange(len(self.characters))
        return table


BYTES = Vocabulary("", is_bytes=True)


def code_points(text: str) -> NDArray[np.uint32]:
    """Return the code points (len(text),) of the characters of `text`."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))


def prepare_prompt(
    prompt: str,
    vocabulary: Vocabulary,
    *,
    drop_unknown: bool = False,
    what: str = "the text",
    advice: str = "leave them out",
) -> str:
    """Normalise a prompt to match the training text; check that its characters have ids.

    With `drop_unknown`, remove characters outside the vocabulary instead, and log their number.

    Raises:
        UsageError: the prompt is not a str, or has characters without an id.
    """
    if not isinstance(prompt, str):
        raise UsageError(f"text: expected a str, got {prompt!r:.100}")
    prompt = normalized(prompt, vocabulary)
    if not (outside := vocabulary.outside(prompt)):
        return prompt
    if not drop_unknown:
        message = f"{what} has characters outside the model's vocabulary"
        raise UsageError(f"{message}: {listed_characters(outside)}; {advice}")
    known = "".join(c for c in prompt if c not in outside)
    notice = "dropped %d of %d characters, which are outside the model's vocabulary: %s"
    log.warning(notice, len(prompt) - len(known), len(prompt), listed_characters(outside))
    return known


def normalized(text: str, vocabulary: Vocabulary) -> str:
    """Normalise a short text, such as a prompt: change its line ends to LF.

    If `vocabulary` lacks characters of the text, use the Unicode normal form (NFC or NFD) with the
    fewest unknown characters: `é` is one character in most texts, and two in some.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if vocabulary.is_bytes or not vocabulary.outside(text):
        return text
    forms = [text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))]
    return min(forms, key=lambda each: len(vocabulary.outside(each)))


def encode_prompt(prompt: str, vocabulary: Vocabulary) -> list[int]:
    """Return the ids of `prompt`.

    An empty prompt becomes a newline, or the vocabulary's first character if it has no newline.
    """
    start = vocabulary.characters[0] if vocabulary.outside("\n") else "\n"
    return vocabulary.encode(prompt or start).tolist()


def listed_characters(characters: Collection[str]) -> str:
    """Return a list of characters for a message, with symbols or escapes for invisible ones."""
    return listed([symbol(c) for c in characters], LISTED_CHARACTERS, " ")
