"""Count and locate characters in strict UTF-8 without decoding it.

Most text is ASCII but for a few characters. Only these are examined, which is several times as fast
as decoding. If there are more than a few, the text is decoded.
"""

import codecs

import numpy as np
from numpy.typing import NDArray

ASCII = bytes(range(0x80))
CONTINUATION = bytes(range(0x80, 0xC0))  # bytes of a character after its first
MIN_FIRST_BYTE = -64  # the smallest first byte of a character, as a signed number
MIN_SPARSITY = 16  # bytes for each non-ASCII one from which these are few


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


def non_ascii(chunk: bytes) -> tuple[bytes, NDArray[np.intp]]:
    """Return the non-ASCII characters of a chunk, and their indices among all characters."""
    if chunk.isascii():
        return b"", np.empty(0, np.intp)
    places = _sparse_places(chunk)
    if places is None:
        first = np.frombuffer(chunk.translate(None, CONTINUATION), np.int8)
        return chunk.translate(None, ASCII), np.flatnonzero(first < 0)
    others = np.frombuffer(chunk, np.int8)[places]
    begins = np.flatnonzero(others >= MIN_FIRST_BYTE)  # bytes between two belong to the former
    return others.tobytes(), places[begins] - begins + np.arange(len(begins))


def _sparse_places(chunk: bytes) -> NDArray[np.intp] | None:
    """Return the places of the non-ASCII bytes if they are few, else None."""
    is_other = np.frombuffer(chunk, np.int8) < 0
    few = np.count_nonzero(is_other) * MIN_SPARSITY <= len(chunk)
    return np.flatnonzero(is_other) if few else None
