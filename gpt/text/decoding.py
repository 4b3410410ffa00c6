"""Convert bytes in any encoding to strict UTF-8, in chunks of whole characters."""

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain

from gpt.errors import TextError
from gpt.text.documents import Notices
from gpt.text.likely_encoding import likely_encoding, likely_wide
from gpt.text.utf8 import is_utf8

BYTE_ORDER_MARKS = {  # longer marks first, because the UTF-32 mark begins with the UTF-16 mark
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}
ENCODING_SAMPLE_BYTES = 65_536  # size of the sample from which an encoding is guessed


def is_wide(encoding: str) -> bool:
    """Return whether `encoding` is UTF-16 or UTF-32, in which NUL bytes are normal."""
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def encoding_of(head: bytes, encoding: str) -> str:
    """Return the encoding of a text that begins with the bytes `head`.

    A byte-order mark determines the encoding. Without a mark, return UTF-16 if `encoding` is UTF-8
    but the NUL bytes in `head` indicate UTF-16. Otherwise, return `encoding`.
    """
    marked = next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), None)
    return marked or (is_utf8(encoding) and likely_wide(head)) or encoding


def fits_utf8(blocks: Iterable[bytes]) -> bool:
    """Return whether `blocks` are UTF-8, but not only ASCII; the last character may be cut."""
    decoder, is_ascii = codecs.getincrementaldecoder("utf-8")(), True
    try:
        for block in blocks:
            is_ascii = is_ascii and block.isascii()
            decoder.decode(block)
    except UnicodeDecodeError:
        return False
    return not is_ascii


def utf8_chunks(
    blocks: Iterable[bytes],
    name: str,
    encoding: str = "utf-8",
    errors: str = "strict",
    notices: Notices | None = None,
) -> Iterator[bytes]:
    """Convert a text to UTF-8. Yield chunks of whole characters, without a byte-order mark.

    Args:
        blocks: the bytes of the text. A character may be cut at the end of a block.
        name: the name of the text in messages.
        encoding: the encoding of the bytes.
        errors: Python's error handler for invalid bytes: `strict` raises an error, `replace` reads
            them as U+FFFD, and `surrogateescape` yields them unchanged.
        notices: receives a notice with the number of U+FFFD, if `errors` is `replace`.

    Raises:
        TextError: some bytes are invalid in `encoding`. The message contains the offset of the
            first one and the likely encoding.
    """
    is_plain = is_utf8(encoding)
    encoding = "UTF-8" if is_plain else encoding
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    offset = pending = replaced = 0  # bytes decoded, bytes of a cut character, U+FFFD read
    at_start = True
    try:
        for block in chain(blocks, [b""]):
            if is_plain and not pending and block.isascii():
                chunk = block
            else:
                text = decoder.decode(block, final=not block)
                replaced += text.count("\ufffd")
                chunk = text.encode(errors=errors)
            if at_start and chunk:
                chunk, at_start = chunk.removeprefix(codecs.BOM_UTF8), False
            if chunk:
                yield chunk
            before, pending = pending, len(decoder.getstate()[0])
            offset += before + len(block) - pending
    except UnicodeDecodeError as error:
        content, start = error.object, error.start
        guess = _better_encoding(content, start, encoding)
        likely = f"it is probably {guess}: --set data.encoding={guess}, or " if guess else ""
        raise TextError(
            f"{name}: byte 0x{content[start]:02x} at offset {offset + start} is not {encoding}; "
            f"{likely}--set data.errors=replace"
        ) from None
    except UnicodeError as error:  # UTF-16 without a mark, or an escaped surrogate
        raise TextError(
            f"{name}: expected {encoding} text, got {error}; another encoding is read by "
            f"--set data.encoding=NAME"
        ) from None
    if notices and errors == "replace":
        what = "{count} times U+FFFD, which replaces bytes that are not in the encoding"
        notices.add(name, what, replaced)


def _better_encoding(content: bytes, start: int, encoding: str) -> str | None:
    """Return an encoding that fits the bytes around index `start` better; None if none does."""
    first = content.rfind(b"\n", 0, max(0, start - ENCODING_SAMPLE_BYTES // 2)) + 1
    sample = content[first : first + ENCODING_SAMPLE_BYTES]
    if len(sample) == ENCODING_SAMPLE_BYTES:  # do not end it inside a character
        sample = sample.rpartition(b"\n")[0] or sample
    valid = sample.decode(errors="ignore").encode()
    others, valid_others = (sum(byte > 0x7F for byte in each) for each in (sample, valid))
    if 3 * valid_others > 2 * others:  # most non-ASCII characters are UTF-8
        return None if is_utf8(encoding) else "utf-8"
    guess = likely_encoding(sample)
    return None if guess == encoding else guess
