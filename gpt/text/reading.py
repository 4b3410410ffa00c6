"""The bytes of a file, decompressed as they are read: .gz, .bz2, .xz, .zst.

What expands without measure is refused as it is read, whatever its headers promise.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from gpt.errors import GPTError, TextError
from gpt.text.display import escaped

CHUNK_BYTES = 1 << 21  # fits into a processor's cache
FIRST_BLOCK_BYTES = 1 << 16  # to ask for more takes longer, and is not needed for a small file
HEAD_BYTES = 8192  # by which a binary file or an encoding is known
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
MAGIC = {  # first bytes of compressed files, whatever their names
    b"\x1f\x8b\x08": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ\0": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
}
BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")  # one of which follows `BZh9`: text may begin with BZh
MAGIC_BYTES = 10
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

    `open` begins it again each time, but for a member of a compressed .tar (`once`), which can be
    begun again only while no more than its head has been read.
    """

    name: str
    open: Callable[[], AbstractContextManager[Readable]]
    once: bool = False

    def blocks(self) -> Iterator[bytes]:
        """Its bytes, in blocks of at most CHUNK_BYTES. Raises TextError if they are damaged."""
        size = min(FIRST_BLOCK_BYTES, CHUNK_BYTES)  # most files are small
        with naming_errors(self.name), self.open() as file:
            while block := file.read(size):
                size = CHUNK_BYTES if len(block) == size else size
                yield block
        if block is None:  # as FileIO's read may give
            raise TextError(f"{self.name}: expected a file, got a device that waits for more")

    def head(self) -> bytes:
        """Return the first HEAD_BYTES. Raises TextError if they cannot be read."""
        with naming_errors(self.name), self.open() as file:
            return read_head(file)


def read_head(file: Readable) -> bytes:
    """Return the next HEAD_BYTES of a file, fewer only at its end."""
    head = b""
    while len(head) < HEAD_BYTES and (block := file.read(HEAD_BYTES - len(head))):
        head += block
    return head


def file_entry(path: Path) -> Entry:
    """Return a file on the disk; it is decompressed if its name or its first bytes say so."""
    return Entry(in_message(path), lambda: open_file(path))


def in_message(name: str | Path) -> str:
    """Return a file's name on one line, with escapes for what would not show or forge a line."""
    return "".join(
        c if c.isprintable() or "\udc80" <= c <= "\udcff" else escaped(c) for c in str(name)
    )


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
        if suffix := compression(path, file):
            yield Limited(_decompress(file, suffix), ExpansionLimit(path))
        else:
            yield file


def compression(path: Path, file: BinaryIO) -> str:
    """Return the suffix of the compression of an open file, by its name or bytes; "" of none."""
    if split_suffixes(path.name)[1]:
        suffix = path.suffix.lower()
        return {".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz", ".tzst": ".zst"}.get(suffix, suffix)
    head = file.read(MAGIC_BYTES) or b""
    if head:
        file.seek(0)
    found = next((suffix for magic, suffix in MAGIC.items() if head.startswith(magic)), "")
    return "" if found == ".bz2" and head[4:] not in BZIP2_BLOCKS else found


def is_compressed(path: Path) -> bool:
    """Return whether a file's name or first bytes are those of a compressed one."""
    with naming_errors(in_message(path)), open(path, "rb", 0, opener=_open_without_waiting) as file:
        return bool(compression(path, file))


def _open_without_waiting(path: str, flags: int) -> int:
    """For what only looks like a file, as /proc/kmsg does; to a file it makes no difference."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _decompress(file: BinaryIO, suffix: str) -> Readable:
    """Return the file's content; its library is loaded only now, for some Pythons lack one."""
    if suffix == ".gz":
        import gzip

        return cast(Readable, gzip.GzipFile(fileobj=file))
    if suffix == ".bz2":
        import bz2

        return _Streams(file, bz2.BZ2Decompressor)
    if suffix == ".xz":
        import lzma

        return _Streams(file, lzma.LZMADecompressor)
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return _Streams(file, zstd.ZstdDecompressor)


class _Streams:
    """Compressed streams, one after the other; only zero bytes may stand between and after them.

    The standard library's readers take a damaged stream after the first one for padding.
    """

    def __init__(self, file: BinaryIO, start: Callable[[], Any]) -> None:
        self._file, self._start, self._stream = file, start, start()

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; b"" at the end.

        Raises:
            EOFError: the file ends within a stream.
        """
        while True:
            rest = b""
            if self._stream.eof:
                rest = self._stream.unused_data.lstrip(b"\0")
                while not rest and (block := self._file.read(FIRST_BLOCK_BYTES)):
                    rest = block.lstrip(b"\0")
                if not rest:
                    return b""
                self._stream = self._start()
            elif self._stream.needs_input:
                rest = self._file.read(FIRST_BLOCK_BYTES)
                if not rest:
                    raise EOFError("it ends within a compressed stream")
            data: bytes = self._stream.decompress(rest, size)
            if data:
                return data


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
                f"{in_message(self.path)}: expands to more than {LARGEST_EXPANSION} times its "
                f"size, as a decompression bomb does; if it is a text, decompress it yourself"
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
def naming_errors(name: str) -> Iterator[None]:
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
