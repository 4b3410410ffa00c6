"""Normalise a text: line ends and Unicode normal form.

A run's prompts are normalised by the same settings as its text, so that they resemble it.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator

from gpt.config.schema import DataConfig
from gpt.text.vocabulary import Vocabulary

# A text can be cut before these characters and normalised in pieces, with the same result: they
# combine with no character before them.
BEFORE_BOUNDARY = re.compile("(.*)[ \n\u3001\u3002\u4e00-\u9fff\uac00-\ud7a3]", re.DOTALL)
MAX_UNCUT_CHARACTERS = 2**20  # length above which a text without such a character is cut anyway


def normalized(text: str, data: DataConfig, vocabulary: Vocabulary | None = None) -> str:
    """Normalise a short text, such as a prompt, by the settings `data`.

    If `vocabulary` lacks characters of the text, use the Unicode normal form (NFC or NFD) with the
    fewest unknown characters: `é` is one character in most texts, and two in some.
    """
    text = _in_normal_form(text.replace("\r\n", "\n").replace("\r", "\n"), data)
    if vocabulary is None or vocabulary.is_bytes or not vocabulary.outside(text):
        return text
    forms = [text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))]
    return min(forms, key=lambda each: len(vocabulary.outside(each)))


class Normalizer:
    """Normalises texts of any size, in chunks of strict UTF-8.

    For speed, chunks are decoded only if `data.normalize` is set.
    """

    def __init__(self, data: DataConfig) -> None:
        self.data = data
        self.line_ends = 0  # number of CRLF and CR line ends that were changed to LF

    def __call__(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Normalise the chunks of one text; yield non-empty chunks of whole characters."""
        chunks = self._with_line_feeds(chunks)
        if self.data.normalize != "none":
            chunks = self._with_normal_form(chunks)
        return filter(None, chunks)

    def _with_line_feeds(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        pending = b""  # a CR at the end of a chunk, because the next chunk may begin with LF
        for chunk in chunks:
            chunk, pending = pending + chunk, b""
            if b"\r" in chunk:
                if chunk.endswith(b"\r"):
                    chunk, pending = chunk[:-1], b"\r"
                unified = chunk.replace(b"\r\n", b"\n")
                self.line_ends += len(chunk) - len(unified) + unified.count(b"\r")
                chunk = unified.replace(b"\r", b"\n")
            yield chunk
        if pending:
            self.line_ends += 1
            yield b"\n"

    def _with_normal_form(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        pending = ""
        for chunk in chunks:
            text = pending + chunk.decode()
            last = BEFORE_BOUNDARY.match(text)
            cut = last.end(1) if last else 0
            if not cut and len(text) > MAX_UNCUT_CHARACTERS:
                cut = len(text)
            pending = text[cut:]
            yield _in_normal_form(text[:cut], self.data).encode()
        yield _in_normal_form(pending, self.data).encode()


def _in_normal_form(text: str, data: DataConfig) -> str:
    return text if data.normalize == "none" else unicodedata.normalize(data.normalize, text)
