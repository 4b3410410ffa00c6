"""The bytes of a file, decompressed as they are read: .gz, .bz2, .xz, .zst.

What expands without measure is refused as it is read, whatever its headers promise.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from gpt.errors import GPTError, TextError

CHUNK_BYTES = 1 << 21  # fits into a processor's cache
FIRST_BLOCK_BYTES = 1 << 16  # to ask for more takes longer, and is not needed for a small file
HEAD_BYTES = 8192  # by which a binary file or an encoding is known
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
SHORT_NAMES = {".tgz": ".tar", ".tbz2": ".tar", ".txz": ".tar", ".tzst": ".tar"}
LARGEST_EXPANSION = 200  # times the file; of texts, gzip and xz rarely reach 20
FREE_EXPANSION_BYTES = 64 << 20  # that any file may expand to


class Readable(Protocol):
    """What bytes are read from; none are left when it gives b""."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes."""
        ...


@dataclass(frozen=True)
class Entry:
    """A file or a member of an archive: bytes under the name that messages give it.

    `open` begins it again each time, but for a member of a compressed .tar, which is read once.
    """

    name: str
    open: Callable[[], AbstractContextManager[Readable]]

    def blocks(self) -> Iterator[bytes]:
        """Its bytes, in blocks of at most CHUNK_BYTES. Raises TextError if they are damaged."""
        size = min(FIRST_BLOCK_BYTES, CHUNK_BYTES)  # most files are small
        with telling(self.name), self.open() as file:
            while block := file.read(size):
                size = CHUNK_BYTES if len(block) == size else size
                yield block
        if block is None:  # as FileIO's read may give
            raise TextError(f"{self.name}: expected a file, got a device that waits for more")

    def head(self) -> bytes:
        """Its first HEAD_BYTES. Raises TextError if they cannot be read."""
        with telling(self.name), self.open() as file:
            return file.read(HEAD_BYTES)


def file_entry(path: Path) -> Entry:
    """A file on the disk, decompressed if its name ends as that of a compressed one."""
    return Entry(str(path), lambda: open_file(path))


def split_suffixes(name: str) -> tuple[str, bool]:
    """What kind of file it is, and whether it is compressed: `.csv`, True of `posts.csv.gz`."""
    rest, suffix = os.path.splitext(name.lower())  # noqa: PTH122 (as fast as it must be)
    if suffix in COMPRESSED:
        return os.path.splitext(rest)[1], True  # noqa: PTH122
    return SHORT_NAMES.get(suffix, suffix), suffix in SHORT_NAMES


@contextmanager
def open_file(path: Path) -> Iterator[Readable]:
    """The file, decompressed. Raises OSError, or what its library raises for damage."""
    with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
        if split_suffixes(path.name)[1]:
            with _decompress(file, path.suffix.lower()) as decompressed:
                yield Limited(decompressed, ExpansionLimit(path))
        else:
            yield file


def _open_without_waiting(path: str, flags: int) -> int:
    """For what only looks like a file, as /proc/kmsg does; to a file it makes no difference."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _decompress(file: BinaryIO, suffix: str) -> BinaryIO:
    """The file's content; its library is loaded only now, for some Pythons lack one."""
    if suffix in (".gz", ".tgz"):
        import gzip

        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if suffix in (".bz2", ".tbz2"):
        import bz2

        return cast(BinaryIO, bz2.BZ2File(file))
    if suffix in (".xz", ".txz"):
        import lzma

        return cast(BinaryIO, lzma.LZMAFile(file))
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return cast(BinaryIO, zstd.ZstdFile(file))


class ExpansionLimit:
    """Counts what is read out of a compressed file, and refuses a decompression bomb."""

    def __init__(self, path: Path) -> None:
        self.path, self.bytes = path, 0
        self.most = max(FREE_EXPANSION_BYTES, LARGEST_EXPANSION * path.stat().st_size)

    def count(self, size: int) -> None:
        """Raises TextError once it has expanded too much."""
        self.bytes += size
        if self.bytes > self.most:
            raise TextError(
                f"{self.path}: expands to more than {LARGEST_EXPANSION} times its size, as a "
                f"decompression bomb does and no text; if it is one, decompress it yourself"
            )


class Limited:
    """What a compressed file holds, read within the limit of its expansion."""

    def __init__(self, file: Readable, limit: ExpansionLimit) -> None:
        self._file, self._limit = file, limit

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes. Raises TextError for a decompression bomb."""
        block = self._file.read(size)
        self._limit.count(len(block))
        return block


@contextmanager
def telling(name: str) -> Iterator[None]:
    """Raises TextError for whatever goes wrong as something of that name is read."""
    try:
        yield
    except (GPTError, MemoryError):
        raise
    except ImportError as error:
        raise TextError(
            f"{name}: this Python cannot read it ({error}); decompress it first"
        ) from None
    except Exception as error:  # the libraries fail in many ways on damaged or hostile bytes
        if isinstance(error, OSError) and error.strerror:
            raise TextError(f"{name}: cannot read the text: {error.strerror}") from None
        raise TextError(
            f"{name}: is damaged or was cut short ({error or type(error).__name__}); fetch it again"
        ) from None
