"""Convert bytes in any encoding to strict UTF-8, in chunks of whole characters without a mark."""

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain

from gpt.errors import TextError
from gpt.text.documents import Notices
from gpt.text.likely_encoding import likely_encoding, likely_wide
from gpt.text.utf8 import is_utf8

BYTE_ORDER_MARKS = {  # the longer ones first: that of UTF-32 begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}
ENCODING_SAMPLE_BYTES = 65_536  # bytes around the first wrong one, to guess the encoding from


def is_wide(encoding: str) -> bool:
    """Return whether `encoding` is UTF-16 or UTF-32, whose text is full of NUL bytes."""
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def encoding_of(head: bytes, encoding: str) -> str:
    """Return the encoding of a text: by its byte-order mark, its zero bytes, or else `encoding`.

    Zero bytes are only considered if `encoding`, the one that is set, is UTF-8.
    """
    marked = next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), None)
    return marked or (is_utf8(encoding) and likely_wide(head)) or encoding


def fits_utf8(blocks: Iterable[bytes]) -> bool:
    """Return whether `blocks` begin a text in UTF-8 that has some non-ASCII characters."""
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
    """Yield the same characters in UTF-8, cut between characters, without a byte-order mark.

    Args:
        blocks: the bytes, cut anywhere.
        name: the name of the text in messages.
        encoding: the encoding of the bytes.
        errors: Python's name for what is done with wrong bytes: `strict` raises an error, `replace`
            reads U+FFFD, and `surrogateescape` yields the bytes unchanged.
        notices: the number of replaced bytes is added to these.

    Raises:
        TextError: some bytes are not in the encoding; the message has the offset of the first one
            and the likely encoding.
    """
    is_plain = is_utf8(encoding)
    encoding = "UTF-8" if is_plain else encoding
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    offset = pending = replaced = 0  # numbers of bytes decoded so far, and waiting for others
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
        guess = _better_encoding(_sample(content, start), encoding)
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


def _sample(content: bytes, start: int) -> bytes:
    """Return the lines around the byte at `start`."""
    first = content.rfind(b"\n", 0, max(0, start - ENCODING_SAMPLE_BYTES // 2)) + 1
    sample = content[first : first + ENCODING_SAMPLE_BYTES]
    if len(sample) == ENCODING_SAMPLE_BYTES:  # do not end it inside a character
        sample = sample.rpartition(b"\n")[0] or sample
    return sample


def _better_encoding(sample: bytes, encoding: str) -> str | None:
    """Return an encoding that fits `sample` better than `encoding` does; None if there is none."""
    valid = sample.decode(errors="ignore").encode()
    others, valid_others = (sum(byte > 0x7F for byte in each) for each in (sample, valid))
    if 3 * valid_others > 2 * others:  # most non-ASCII characters are UTF-8
        return None if is_utf8(encoding) else "utf-8"
    guess = likely_encoding(sample)
    return None if guess == encoding else guess
