"""The rules by which a text is read: line ends, Unicode normalisation, lower case.

They are the run's (`data.newlines`, `data.normalize`, `data.lowercase`), and its prompts go through
the same ones, so that what was trained is what is asked.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator

from gpt.config.schema import DataConfig

# Before these a text can be cut: they compose with nothing, and a word has ended.
BOUNDARY = re.compile("[ \n\u3001\u3002\u4e00-\u9fff\uac00-\ud7a3]")
LONGEST_UNBROKEN = 2**20  # characters; what has no boundary for longer is cut all the same


def normalized(text: str, data: DataConfig) -> str:
    """The text as training on it would have read it; for prompts and stop strings, too."""
    if data.newlines == "lf":
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _folded(text, data)


class Normalizer:
    """`normalized` of texts of any size, in chunks of strict UTF-8.

    Most texts are normalised already, and then no chunk is decoded. `line_ends` counts those that
    were changed.
    """

    def __init__(self, data: DataConfig) -> None:
        self.data = data
        self.line_ends = 0

    def __call__(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The chunks of one text, normalised; each of whole characters, and none empty."""
        if self.data.newlines == "lf":
            chunks = self._unified(chunks)
        if self.data.normalize != "none" or self.data.lowercase:
            chunks = self._fold(chunks)
        return filter(None, chunks)

    def _unified(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """A CR that ends a chunk waits for the next one, which may begin with its LF."""
        waiting = b""
        for chunk in chunks:
            chunk, waiting = waiting + chunk, b""
            if b"\r" in chunk:
                if chunk.endswith(b"\r"):
                    chunk, waiting = chunk[:-1], b"\r"
                unified = chunk.replace(b"\r\n", b"\n")
                self.line_ends += len(chunk) - len(unified) + unified.count(b"\r")
                chunk = unified.replace(b"\r", b"\n")
            yield chunk
        if waiting:
            self.line_ends += 1
            yield b"\n"

    def _fold(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        waiting = ""
        for chunk in chunks:
            text = waiting + chunk.decode()
            cut = _last_boundary(text)
            if not cut and len(text) > LONGEST_UNBROKEN:
                cut = len(text)
            waiting = text[cut:]
            yield _folded(text[:cut], self.data).encode()
        yield _folded(waiting, self.data).encode()


def _folded(text: str, data: DataConfig) -> str:
    """Lower case and normal form (Unicode Standard Annex 15)."""
    form = data.normalize
    if form != "none":
        text = unicodedata.normalize(form, text)
    if data.lowercase:
        text = text.lower()
        if form != "none":  # the compatibility form of a sign may have capitals, as of U+2121
            text = unicodedata.normalize(form, text)
    return text


def _last_boundary(text: str) -> int:
    """Where the last part that later characters can still change begins; 0 if nowhere."""
    for size in (64, len(text)):  # it is near the end of almost any text
        tail = text[-size:]
        *_, last = (0, *(match.start() for match in BOUNDARY.finditer(tail)))
        if last:
            return len(text) - len(tail) + last
    return 0
