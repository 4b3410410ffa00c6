"""Convert bytes in any encoding to strict UTF-8, in chunks of whole characters without a mark."""

import codecs
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal

from gpt.errors import TextError
from gpt.text.documents import Notices
from gpt.text.likely_encoding import likely_encoding, likely_wide
from gpt.text.utf8 import is_utf8, whole_characters

MARK = codecs.BOM_UTF8
BYTE_ORDER_MARKS = {  # the longer ones first: that of UTF-32 begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}
ENCODING_SAMPLE_BYTES = 65_536  # bytes around the first wrong one, to guess the encoding from
Errors = Literal["strict", "replace", "raw"]


def is_wide(encoding: str) -> bool:
    """Return whether `encoding` is UTF-16 or UTF-32, whose text is full of NUL bytes."""
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def encoding_of(head: bytes, encoding: str) -> str:
    """Return the encoding of a text: by its byte-order mark, its zero bytes, or else `encoding`.

    Zero bytes are only considered if `encoding`, the one that is set, is UTF-8.
    """
    marked = next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), None)
    return marked or (is_utf8(encoding) and likely_wide(head)) or encoding


def fits_utf8(blocks: Iterable[bytes], *, whole: bool = True) -> bool:
    """Return whether `blocks` are UTF-8 with some non-ASCII characters and no NUL.

    Unless they are the `whole` text, the last character may be incomplete.
    """
    decoder, ascii_only = _Utf8("strict"), True
    try:
        for block in chain(blocks, [b""] if whole else []):
            ascii_only = ascii_only and block.isascii()
            if b"\0" in block:
                return False
            decoder.decode(block, final=not block)
    except UnicodeDecodeError:
        return False
    return not ascii_only


def utf8_chunks(
    blocks: Iterable[bytes],
    name: str,
    encoding: str = "utf-8",
    errors: Errors = "strict",
    notices: Notices | None = None,
    otherwise: str = "",
) -> Iterator[bytes]:
    """Yield the same characters in UTF-8, cut between characters.

    U+FEFF, the byte-order mark, is dropped at the start of the text and of each line, where texts
    with a mark were joined.

    Args:
        blocks: the bytes, cut anywhere.
        name: the name of the text in messages.
        encoding: the encoding of the bytes.
        errors: `strict`: raise an error for wrong bytes. `replace`: replace them by U+FFFD. `raw`:
            yield them unchanged (UTF-8 only).
        notices: the numbers of replaced bytes and of byte-order marks are added to these.
        otherwise: further advice for the error message.

    Raises:
        TextError: some bytes are not in the encoding; the message has the offset of the first one
            and the likely encoding.
    """
    notices = notices or Notices()
    decoder = _Utf8(errors) if is_utf8(encoding) else _Transcoder(encoding, errors)
    decoded = _decoded(decoder, iter(blocks), name, encoding, otherwise)
    yield from _without_marks(decoded, name, notices)
    replaced = "{count} times U+FFFD in place of bytes that are not in the encoding"
    notices.add(name, replaced, decoder.replaced)


def _decoded(
    decoder: "_Utf8 | _Transcoder",
    blocks: Iterator[bytes],
    name: str,
    encoding: str,
    otherwise: str,
) -> Iterator[bytes]:
    offset = 0  # number of bytes decoded so far
    wanted = "UTF-8" if is_utf8(encoding) else encoding
    try:
        for block in chain(blocks, [b""]):
            pending = len(decoder.pending)
            if chunk := decoder.decode(block, final=not block):
                yield chunk
            offset += pending + len(block) - len(decoder.pending)
    except UnicodeDecodeError as error:
        content, start = error.object, error.start
        first = content.rfind(b"\n", 0, max(0, start - ENCODING_SAMPLE_BYTES // 2)) + 1
        sample = (content[first:] + next(blocks, b""))[:ENCODING_SAMPLE_BYTES]
        if len(sample) == ENCODING_SAMPLE_BYTES:  # do not end it inside a character
            sample = sample.rpartition(b"\n")[0] or sample
        guess = _better_encoding(sample, encoding)
        likely = f"it is probably {guess}: --set data.encoding={guess}, or " if guess else ""
        raise TextError(
            f"{name}: byte 0x{content[start]:02x} at offset {offset + start} is not {wanted}; "
            f"{likely}--set data.errors=replace{otherwise}"
        ) from None
    except UnicodeError as error:  # UTF-16 without a mark, or an escaped surrogate
        raise TextError(
            f"{name}: expected {wanted} text, got {error}; another encoding is read by "
            f"--set data.encoding=NAME"
        ) from None


def _better_encoding(sample: bytes, encoding: str) -> str | None:
    """Return an encoding that fits `sample` better than `encoding` does; None if there is none."""
    valid = sample.decode(errors="ignore").encode()
    others, valid_others = (sum(byte > 0x7F for byte in each) for each in (sample, valid))
    if 3 * valid_others > 2 * others:  # most non-ASCII characters are UTF-8
        return None if is_utf8(encoding) else "utf-8"
    guess = likely_encoding(sample)
    return None if guess == encoding else guess


def _without_marks(chunks: Iterable[bytes], name: str, notices: Notices) -> Iterator[bytes]:
    """Drop the marks at the start of lines. Add their number and that of others to `notices`."""
    is_first = at_start = True
    dropped = kept = 0
    for chunk in chunks:
        if is_first:
            chunk, is_first = chunk.removeprefix(MARK), False
        if MARK in chunk:
            marks = chunk.count(MARK)
            at = rb"(?:^|(?<=[\r\n]))" if at_start else rb"(?<=[\r\n])"
            chunk = re.sub(at + b"(?:" + MARK + b")+", b"", chunk)
            kept += chunk.count(MARK)
            dropped += marks - chunk.count(MARK)
        if chunk:
            at_start = chunk.endswith((b"\n", b"\r"))
            yield chunk
    notices.add(name, "{count} byte-order marks (U+FEFF) at the start of lines dropped", dropped)
    kept_notice = "{count} U+FEFF inside lines kept: invisible characters, which are learnt"
    notices.add(name, kept_notice, kept)


class _Utf8:
    """Validate UTF-8 and cut it between characters.

    Attributes:
        pending: the first bytes of a character whose last bytes are in the next block.
        replaced: the number of U+FFFD in place of wrong bytes.
    """

    def __init__(self, errors: Errors) -> None:
        self.errors, self.pending, self.replaced = errors, b"", 0

    def decode(self, block: bytes, final: bool) -> bytes:
        block = self.pending + block
        try:
            if final:
                end = codecs.utf_8_decode(block, "strict", True)[1]
            else:
                end = whole_characters(block)
        except UnicodeDecodeError:
            if self.errors == "strict":
                raise
            text, end = codecs.utf_8_decode(block, "replace", final)
            self.pending = block[end:]
            if self.errors == "raw":
                return block[:end]
            self.replaced += text.count("\ufffd") - block[:end].count("\ufffd".encode())
            return text.encode()
        self.pending = block[end:]
        return block[:end]


class _Transcoder:
    """Convert another encoding to UTF-8; has the attributes of `_Utf8`."""

    def __init__(self, encoding: str, errors: Errors) -> None:
        self._errors = "replace" if errors == "replace" else "strict"
        self._decoder = codecs.getincrementaldecoder(encoding)(self._errors)
        self.replaced = 0

    @property
    def pending(self) -> bytes:
        return self._decoder.getstate()[0]

    def decode(self, block: bytes, final: bool) -> bytes:
        text = self._decoder.decode(block, final)
        self.replaced += text.count("\ufffd") if self._errors == "replace" else 0
        return text.encode(errors=self._errors)
