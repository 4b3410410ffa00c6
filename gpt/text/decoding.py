"""Bytes in, strict UTF-8 out: in chunks of whole characters, without a byte-order mark."""

import codecs
import shlex
from collections.abc import Iterable, Iterator

from gpt.errors import TextError

HEAD_BYTES = 8192  # of a text, by which its encoding is known


def utf8_chunks(blocks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The same bytes cut between characters, checked to be UTF-8; a byte-order mark is dropped.

    Raises TextError where they are not UTF-8, with the offset of the first wrong byte.
    """
    pending, offset = b"", 0  # of a character that a block cut in two; where that begins
    head, blocks = b"", iter(blocks)
    try:
        for block in blocks:
            head += block[: HEAD_BYTES - len(head)]
            block = pending + block
            whole = len(block) if block.isascii() else _whole_characters(block)
            chunk, pending = block[:whole], block[whole:]
            if offset == 0:
                chunk = chunk.removeprefix(codecs.BOM_UTF8)
            offset += whole
            if chunk:
                yield chunk
        pending.decode()
    except UnicodeDecodeError as error:
        while len(head) < HEAD_BYTES and (block := next(blocks, b"")):
            head += block
        raise TextError(
            f"{name}: expected UTF-8 text, got byte 0x{error.object[error.start]:02x} at offset "
            f"{offset + error.start}; {_advice(name, head, error)}"
        ) from None


def _whole_characters(block: bytes) -> int:
    """How many of its bytes come before a character that is cut at its end."""
    return codecs.utf_8_decode(block, "strict", False)[1]


def _advice(name: str, head: bytes, error: UnicodeDecodeError) -> str:
    convert = f"-t UTF-8 {shlex.quote(name)} > utf8.txt"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return f"it looks like UTF-16: iconv -f UTF-16 {convert}"
    wrong = error.object[error.start : error.start + 2]
    if wrong[:1] == b"\xed" and wrong[1:] >= b"\xa0":
        return (
            f"it looks like CESU-8 (surrogates, as Java and Oracle write them): "
            f"uconv -f CESU-8 {convert}"
        )
    if error.reason == "unexpected end of data":
        return (
            f"the file ends in the middle of a character; fetch it again if it was cut short, or "
            f"if it is Latin-1: iconv -f LATIN1 {convert}"
        )
    return f"it may be Latin-1: iconv -f LATIN1 {convert}"
