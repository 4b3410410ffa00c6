"""Count and locate characters in UTF-8."""

import codecs

import numpy as np

MIN_FIRST_BYTE = -64  # 0xC0 as int8; a byte of UTF-8 begins a character if it is not below this


def is_utf8(encoding: str) -> bool:
    """Return whether `encoding` is a name of UTF-8, with or without a byte-order mark."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def is_utf8_start(block: bytes) -> bool:
    """Return whether `block` is strict UTF-8; its last character may be incomplete."""
    try:
        codecs.utf_8_decode(block, "strict", False)
    except UnicodeDecodeError:
        return False
    return True


def character_count(chunk: bytes) -> int:
    """Return the number of characters in `chunk`: the number of bytes that begin a character."""
    if chunk.isascii():
        return len(chunk)
    return int(np.count_nonzero(np.frombuffer(chunk, np.int8) >= MIN_FIRST_BYTE))


def byte_offset(chunk: bytes, characters: int) -> int:
    """Return the number of bytes of the first `characters` characters in `chunk`."""
    if chunk.isascii():
        return min(characters, len(chunk))
    starts = np.flatnonzero(np.frombuffer(chunk, np.int8) >= MIN_FIRST_BYTE)
    return int(starts[characters]) if characters < len(starts) else len(chunk)
