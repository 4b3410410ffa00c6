"""Read files as bytes. Compressed files and archives are not unpacked to disk."""

import importlib
import os
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from gpt.errors import GPTError, TextError, shown

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
CHUNK_BYTES = 1 << 21  # size of the blocks that are read, which fit into a processor's cache
HEAD_BYTES = 8192  # number of first bytes by which a file's format and encoding are recognised
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": ZSTD}  # suffix -> module
LONGEST_SHOWN_NAME = 300  # largest length of a file name in a message, in characters
ARCHIVES = (".zip", ".tar")
TAR_SUFFIXES = {".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz", ".tzst": ".zst"}


@dataclass(frozen=True)
class Entry:
    """A file on disk or in an archive."""

    name: str  # name of the file in messages
    open: Callable[[], IO[bytes]]  # returns a stream of the content, without `start`
    start: bytes | None = None  # first bytes of a file in a .tar, which can be read only once

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks of at most CHUNK_BYTES. Raise TextError if it is damaged."""
        if self.start:
            yield self.start
        with naming_errors(self.name), self.open() as file:
            while block := file.read(CHUNK_BYTES):
                yield block

    def head(self) -> bytes:
        """Return the first HEAD_BYTES bytes. Raise TextError if they cannot be read."""
        if self.start is not None:
            return self.start
        with naming_errors(self.name), self.open() as file:
            return file.read(HEAD_BYTES)


def file_entry(path: Path, name: str | None = None) -> Entry:
    """Return an entry that reads a file on disk, decompressed according to its suffix.

    `name` is the name of the file in messages, by default its path.
    """
    return Entry(name or in_message(path), lambda: open_file(path))


def in_message(name: str | Path) -> str:
    """Return a file name for a message."""
    return shown(str(name), LONGEST_SHOWN_NAME)


def split_suffixes(name: str) -> tuple[str, str]:
    """Return the suffixes of format and compression: (`.csv`, `.gz`) for the name `a.csv.gz`."""
    stem, suffix = os.path.splitext(name.lower())  # noqa: PTH122 (pathlib is slower)
    if suffix in TAR_SUFFIXES:
        return ".tar", TAR_SUFFIXES[suffix]
    return (os.path.splitext(stem)[1], suffix) if suffix in COMPRESSED else (suffix, "")  # noqa: PTH122


def open_file(path: Path) -> IO[bytes]:
    """Open a file for reading bytes; decompress it according to its suffix.

    Reading a damaged file can raise any exception of the decompression library.
    """
    if suffix := split_suffixes(path.name)[1]:
        library: Any = importlib.import_module(COMPRESSED[suffix])  # some Pythons lack a library
        return cast(IO[bytes], library.open(path))
    return path.open("rb")


@contextmanager
def naming_errors(name: str) -> Iterator[None]:
    """Convert errors while reading the file `name` to a TextError about this file."""
    try:
        yield
    except (GPTError, MemoryError):
        raise
    except ImportError as error:
        raise TextError(
            f"{name}: cannot read it ({error}); install this module, or decompress the file"
        ) from None
    except Exception as error:  # the libraries fail in many ways on damaged or hostile bytes
        if isinstance(error, OSError) and error.strerror:
            raise TextError(f"{name}: cannot read the text: {error.strerror}") from None
        raise TextError(
            f"{name}: is damaged or was cut short ({error or type(error).__name__}); fetch it again"
        ) from None


def members(path: Path, kind: str) -> Iterator[Entry]:
    """Yield each file in an archive. Skip hidden files and links.

    `kind` is the suffix of the archive, `.zip` or `.tar`. The files of a .zip are sorted by path.
    The files of a .tar keep their order.
    """
    read = _read_zip if kind == ".zip" else _read_tar
    with naming_errors(in_message(path)):
        for name, entry in read(path):
            if not any(part.startswith(".") for part in _parts(name)):
                yield entry


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def _read_zip(path: Path) -> Iterator[tuple[str, Entry]]:
    with zipfile.ZipFile(path) as archive:
        for info in sorted(archive.infolist(), key=lambda info: _parts(info.filename)):
            if info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
                continue
            name = in_message(f"{path}!{info.filename}")
            if info.flag_bits & 1:
                raise TextError(f"{name}: is encrypted; decrypt the archive first")
            yield info.filename, Entry(name, partial(archive.open, info))


def _read_tar(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield the files in one pass, because seeking back in a compressed .tar is slow."""
    with open_file(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            cast(Any, archive).members.clear()  # tarfile would keep all headers in memory
            if content := archive.extractfile(member) if member.isreg() else None:
                name, start = in_message(f"{path}!{member.name}"), content.read(HEAD_BYTES)
                yield member.name, Entry(name, content.__enter__, start)  # already open
        # tarfile stops at a damaged header as at the end; after the real end, all bytes are zero
        file.seek(archive.offset)
        while block := file.read(CHUNK_BYTES):  # the checksum is verified at the end of the file
            if block.strip(b"\0"):
                raise tarfile.ReadError("a header is damaged, or another archive follows")
