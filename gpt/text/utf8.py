"""Count and locate characters in UTF-8."""

import codecs

import numpy as np

MIN_FIRST_BYTE = -64  # the smallest first byte of a character, as a signed number


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
    """Count the characters: the bytes that begin one."""
    if chunk.isascii():
        return len(chunk)
    return int(np.count_nonzero(np.frombuffer(chunk, np.int8) >= MIN_FIRST_BYTE))


def byte_offset(chunk: bytes, characters: int) -> int:
    """Return the number of bytes of the first `characters` of a chunk."""
    if chunk.isascii():
        return min(characters, len(chunk))
    starts = np.flatnonzero(np.frombuffer(chunk, np.int8) >= MIN_FIRST_BYTE)
    return int(starts[characters]) if characters < len(starts) else len(chunk)
