"""Strict UTF-8 as it is, without decoding it: where its characters begin, and how many there are.

Most text is ASCII but for a few characters, and only those are examined: several times as fast as
decoding all. Texts in which they are more than a few are decoded.
"""

import codecs

import numpy as np
from numpy.typing import NDArray

ASCII = bytes(range(0x80))
CONTINUATION = bytes(range(0x80, 0xC0))  # bytes of a character after its first
FIRST = -64  # as signed numbers, those are the bytes below this one
SPARSE = 16  # bytes to one that is not ASCII, at least, where those are few


def whole_characters(block: bytes) -> int:
    """How many bytes come before a character that the block's end cuts in two.

    Raises UnicodeDecodeError if the block is not strict UTF-8.
    """
    if block.isascii():
        return len(block)
    places = sparse_places(block)
    if places is None:
        return codecs.utf_8_decode(block, "strict", False)[1]
    others = np.frombuffer(block, np.uint8)[places]
    try:
        whole = codecs.utf_8_decode(others.data, "strict", False)[1]
        continues = (others[1:] & 0xC0) == 0x80
        in_one_piece = not (continues & (np.diff(places) > 1)).any()
    except UnicodeDecodeError:
        in_one_piece = False
    cut = len(others) - whole if in_one_piece else 0  # bytes of the last character, if it is cut
    if not in_one_piece or (cut and places[whole] + cut != len(block)):
        return codecs.utf_8_decode(block, "strict", False)[1]  # says where it is wrong
    return len(block) - cut


def is_utf8_start(block: bytes) -> bool:
    """Return whether `block` is strict UTF-8; its last character may be incomplete."""
    try:
        codecs.utf_8_decode(block, "strict", False)
    except UnicodeDecodeError:
        return False
    return True


def character_count(chunk: bytes) -> int:
    """How many characters strict UTF-8 has: the bytes that begin one."""
    if chunk.isascii():
        return len(chunk)
    return int(np.count_nonzero(np.frombuffer(chunk, np.int8) >= FIRST))


def byte_offset(chunk: bytes, characters: int) -> int:
    """How many bytes the first characters of a chunk take."""
    if chunk.isascii():
        return min(characters, len(chunk))
    starts = np.flatnonzero(np.frombuffer(chunk, np.int8) >= FIRST)
    return int(starts[characters]) if characters < len(starts) else len(chunk)


def sparse_places(chunk: bytes) -> NDArray[np.intp] | None:
    """Where the bytes are that are not ASCII, if they are few."""
    is_other = np.frombuffer(chunk, np.int8) < 0
    return None if np.count_nonzero(is_other) * SPARSE > len(chunk) else np.flatnonzero(is_other)


def non_ascii(chunk: bytes) -> tuple[bytes, NDArray[np.intp]]:
    """The characters of a chunk that are not ASCII, and their indices among all of them."""
    if chunk.isascii():
        return b"", np.empty(0, np.intp)
    places = sparse_places(chunk)
    if places is None:
        first = np.frombuffer(chunk.translate(None, CONTINUATION), np.int8)
        return chunk.translate(None, ASCII), np.flatnonzero(first < 0)
    others = np.frombuffer(chunk, np.int8)[places]
    begins = np.flatnonzero(others >= FIRST)  # all bytes between two are of the former
    return others.tobytes(), places[begins] - begins + np.arange(len(begins))
