"""Normalise a text: change the line ends CRLF (of Windows) and CR to LF, also in prompts."""

import unicodedata
from collections.abc import Iterable, Iterator

from gpt.text.vocabulary import Vocabulary


def normalized(text: str, vocabulary: Vocabulary) -> str:
    """Normalise a short text, such as a prompt.

    If `vocabulary` lacks characters of the text, use the Unicode normal form (NFC or NFD) with the
    fewest unknown characters: `é` is one character in most texts, and two in some.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if vocabulary.is_bytes or not vocabulary.outside(text):
        return text
    forms = [text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))]
    return min(forms, key=lambda each: len(vocabulary.outside(each)))


class Normalizer:
    """Normalises texts of any size, in chunks of strict UTF-8."""

    def __init__(self) -> None:
        self.line_ends = 0  # number of CRLF and CR line ends that were changed to LF

    def __call__(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Normalise the chunks of one text; yield non-empty chunks of whole characters."""
        return filter(None, self._with_line_feeds(chunks))

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
