"""The bytes of a file, decompressed as they are read: .gz, .bz2, .xz, .zst."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from gpt.errors import GPTError, TextError
from gpt.text.display import escaped

CHUNK_BYTES = 1 << 21  # size of a block: it fits into a processor's cache
FIRST_BLOCK_BYTES = 1 << 16  # size of a file's first block: larger ones take longer to allocate
HEAD_BYTES = 8192  # size of the start of a file that shows its format and encoding
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
COMPRESSION_MAGIC = {  # first bytes of compressed files, whatever their names
    b"\x1f\x8b\x08": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ\0": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
}
BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")  # one follows `BZh9`; text may begin with BZh, too
TAR_SUFFIXES = {".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz", ".tzst": ".zst"}
MAX_EXPANSION = 200  # content over file size; for texts, gzip and xz rarely reach 20
FREE_EXPANSION_BYTES = 64 << 20  # size to which any file may expand


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; b"" at the end."""
        ...


@dataclass(frozen=True)
class Entry:
    """A file or a member of an archive.

    Attributes:
        name: its name in messages.
        open: opens it at its beginning.
        once: it is a member of a compressed .tar: after more than its head has been read, it cannot
            be opened again.
    """

    name: str
    open: Callable[[], AbstractContextManager[Readable]]
    once: bool = False

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes in blocks of at most CHUNK_BYTES. Raises TextError for damage."""
        size = min(FIRST_BLOCK_BYTES, CHUNK_BYTES)
        with naming_errors(self.name), self.open() as file:
            while block := file.read(size):
                size = CHUNK_BYTES if len(block) == size else size
                yield block

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
    """Return a file's name on one line, with invisible characters escaped."""
    return "".join(
        c if c.isprintable() or "\udc80" <= c <= "\udcff" else escaped(c) for c in str(name)
    )


def split_suffixes(name: str) -> tuple[str, str]:
    """Return the suffixes of the content and of the compression: `.csv`, `.gz` of `a.csv.gz`."""
    stem, suffix = os.path.splitext(name.lower())  # noqa: PTH122 (pathlib is slower)
    if suffix in TAR_SUFFIXES:
        return ".tar", TAR_SUFFIXES[suffix]
    return (os.path.splitext(stem)[1], suffix) if suffix in COMPRESSED else (suffix, "")  # noqa: PTH122


@contextmanager
def open_file(path: Path) -> Iterator[Readable]:
    """Open a file and decompress it. Raises any exception of the library for damaged content."""
    with path.open("rb", buffering=0) as file:
        if suffix := _compression(path, file):
            yield Limited(_decompress(file, suffix), ExpansionLimit(path))
        else:
            yield file


def is_compressed(path: Path) -> bool:
    """Return whether a file's name or first bytes are those of a compressed one."""
    with naming_errors(in_message(path)), path.open("rb", buffering=0) as file:
        return bool(_compression(path, file))


def _compression(path: Path, file: BinaryIO) -> str:
    """Return the suffix of the compression of an open file, by its name or bytes; "" if none."""
    if suffix := split_suffixes(path.name)[1]:
        return suffix
    head = file.read(10)
    file.seek(0)
    found = next((s for magic, s in COMPRESSION_MAGIC.items() if head.startswith(magic)), "")
    return "" if found == ".bz2" and head[4:] not in BZIP2_BLOCKS else found


def _decompress(file: BinaryIO, suffix: str) -> Readable:
    """Return the content of a file. Its library is imported here, as some Pythons lack one."""
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
    """Concatenated compressed streams, with only zero bytes between and after them.

    The standard library's readers ignore a damaged stream after the first one.
    """

    def __init__(self, file: BinaryIO, start: Callable[[], Any]) -> None:
        self._file, self._start, self._stream = file, start, start()

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; b"" at the end. Raises EOFError within a stream."""
        while True:
            block = b""
            if self._stream.eof:
                block = self._stream.unused_data.lstrip(b"\0")
                while not block and (padded := self._file.read(FIRST_BLOCK_BYTES)):
                    block = padded.lstrip(b"\0")
                if not block:
                    return b""
                self._stream = self._start()
            elif self._stream.needs_input:
                block = self._file.read(FIRST_BLOCK_BYTES)
                if not block:
                    raise EOFError("it ends within a compressed stream")
            data: bytes = self._stream.decompress(block, size)
            if data:
                return data


class ExpansionLimit:
    """Counts the bytes read from a compressed file, and refuses a decompression bomb."""

    def __init__(self, path: Path) -> None:
        self._path, self._bytes = path, 0
        self._limit = max(FREE_EXPANSION_BYTES, MAX_EXPANSION * path.stat().st_size)

    def count(self, size: int) -> None:
        """Count `size` more bytes. Raises TextError above the limit."""
        self._bytes += size
        if self._bytes > self._limit:
            raise TextError(
                f"{in_message(self._path)}: expands to more than {MAX_EXPANSION} times its size, "
                f"as a decompression bomb does; if it is a text, decompress it yourself"
            )


class Limited:
    """A stream that an ExpansionLimit counts."""

    def __init__(self, file: Readable, limit: ExpansionLimit) -> None:
        self._file, self._limit = file, limit

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes. Raises TextError for a decompression bomb."""
        block = self._file.read(size)
        self._limit.count(len(block))
        return block


@contextmanager
def naming_errors(name: str) -> Iterator[None]:
    """Turn any error while a file is read into a TextError that names it."""
    try:
        yield
    except (GPTError, MemoryError):
        raise
    except ImportError as error:
        raise TextError(
            f"{name}: this Python cannot read it ({error}); install it or convert the file"
        ) from None
    except Exception as error:  # the libraries fail in many ways on damaged or hostile bytes
        if isinstance(error, OSError) and error.strerror:
            raise TextError(f"{name}: cannot read the text: {error.strerror}") from None
        raise TextError(
            f"{name}: is damaged or was cut short ({error or type(error).__name__}); fetch it again"
        ) from None
