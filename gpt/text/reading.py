"""Read files as bytes; decompress .gz, .bz2, .xz and .zst files while reading."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from gpt.errors import GPTError, TextError
from gpt.text.display import escaped

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
CHUNK_BYTES = 1 << 21  # size of the blocks that are read, which fit into a processor's cache
HEAD_BYTES = 8192  # number of first bytes by which a file's format and encoding are recognised
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": ZSTD}  # suffix -> module
TAR_SUFFIXES = {".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz", ".tzst": ".zst"}


@dataclass(frozen=True)
class Entry:
    """A file on disk or in an archive."""

    name: str  # in messages
    open: Callable[[], IO[bytes]]  # returns a stream of the content, or of that after `start`
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


def file_entry(path: Path) -> Entry:
    """Return the entry of a file on disk, which is decompressed according to its suffix."""
    return Entry(in_message(path), lambda: open_file(path))


def in_message(name: str | Path) -> str:
    """Return a file name for a message, with non-printable characters and line ends escaped."""
    return "".join(
        c if c.isprintable() or "\udc80" <= c <= "\udcff" else escaped(c) for c in str(name)
    )


def split_suffixes(name: str) -> tuple[str, str]:
    """Return the suffixes of content and compression: (`.csv`, `.gz`) for the name `a.csv.gz`."""
    stem, suffix = os.path.splitext(name.lower())  # noqa: PTH122 (pathlib is slower)
    if suffix in TAR_SUFFIXES:
        return ".tar", TAR_SUFFIXES[suffix]
    return (os.path.splitext(stem)[1], suffix) if suffix in COMPRESSED else (suffix, "")  # noqa: PTH122


def open_file(path: Path) -> IO[bytes]:
    """Open a file for reading bytes; decompress it according to its suffix.

    Reading a damaged file can raise any exception of the decompression library.
    """
    if suffix := split_suffixes(path.name)[1]:
        library: Any = importlib.import_module(COMPRESSED[suffix])  # some Pythons lack one
        return cast(IO[bytes], library.open(path))
    return path.open("rb")


@contextmanager
def naming_errors(name: str) -> Iterator[None]:
    """Convert errors in reading the file `name` to a TextError with the name in its message."""
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
