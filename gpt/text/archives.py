"""The files in a .zip or .tar, read in place: nothing is unpacked to the disk."""

import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from gpt.errors import TextError
from gpt.text.reading import (
    CHUNK_BYTES,
    Entry,
    ExpansionLimit,
    Limited,
    Readable,
    in_message,
    is_compressed,
    naming_errors,
    open_file,
    read_head,
)

ARCHIVES = (".zip", ".tar")
LOCAL_HEADER, END_OF_ZIP = b"PK\3\4", b"PK\5\6"  # first bytes of a member, and of the end record
END_OF_ZIP_BYTES = 22  # size of the end record without its comment
MAX_TAR_HEADER_BYTES = 1 << 20  # size of a long name in a .tar, which is read into memory

Opener = Callable[[], AbstractContextManager[Readable]]


def members(path: Path, kind: str) -> Iterator[tuple[str, Entry]]:
    """Yield the files in an archive, each with its path in it, without hidden ones and links.

    They are sorted by their paths, except in a compressed .tar, which is read in one pass. `kind`
    is one of ARCHIVES.

    Raises:
        TextError: the archive or a member is damaged, encrypted or a decompression bomb.
    """
    is_streamed = kind == ".tar" and is_compressed(path)
    read = _read_zip if kind == ".zip" else _stream_tar if is_streamed else _read_tar
    with naming_errors(in_message(path)):
        for name, opened in read(path):
            if not any(part.startswith(".") for part in _parts(name)):
                yield name, Entry(in_message(f"{path}!{name}"), opened, once=is_streamed)


def names_in_zip(path: Path) -> list[str]:
    """Return the names of the members of a .zip. Raises TextError if it is damaged."""
    with naming_errors(in_message(path)), zipfile.ZipFile(path) as archive:
        return archive.namelist()


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def _read_zip(path: Path) -> Iterator[tuple[str, Opener]]:
    limit = ExpansionLimit(path)
    with zipfile.ZipFile(path) as archive:
        _check_whole(path, archive)
        for info in sorted(archive.infolist(), key=lambda info: _parts(info.filename)):
            if info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
                continue
            if info.flag_bits & 1:
                name = in_message(f"{path}!{info.filename}")
                raise TextError(f"{name}: is encrypted; decrypt the archive first")
            yield info.filename, partial(_open_limited, partial(archive.open, info), limit)


def _check_whole(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise TextError or BadZipFile for content before or after a .zip, which zipfile ignores."""
    first = min((info.header_offset for info in archive.infolist()), default=0)
    with path.open("rb") as file:
        if first and file.read(len(LOCAL_HEADER)) == LOCAL_HEADER:
            raise zipfile.BadZipFile("one .zip was appended to another")
        file.seek(archive.start_dir)
        tail = file.read()
    end = tail.rindex(END_OF_ZIP) + END_OF_ZIP_BYTES + len(archive.comment)
    if tail[end:].strip(b"\0"):
        raise zipfile.BadZipFile(f"{len(tail) - end:,} bytes follow its end")


@contextmanager
def _open_limited(opened: Callable[[], Any], limit: ExpansionLimit) -> Iterator[Readable]:
    with opened() as file:
        yield Limited(file, limit)


def _read_tar(path: Path) -> Iterator[tuple[str, Opener]]:
    # Blocks of zeros are ignored: where one .tar was appended to another, text would be lost.
    with tarfile.open(path, "r:", tarinfo=_TarHeader, ignore_zeros=True) as archive:
        limit = ExpansionLimit(path)  # a sparse file expands, too
        for member in sorted(archive, key=lambda member: _parts(member.name)):
            if member.isreg():
                yield (
                    member.name,
                    partial(_open_limited, partial(archive.extractfile, member), limit),
                )


def _stream_tar(path: Path) -> Iterator[tuple[str, Opener]]:
    """Yield the members in one pass: to seek in a compressed .tar, it must be decompressed."""
    with open_file(path) as file:
        limit = ExpansionLimit(path)
        stream: Any = file  # tarfile needs only its read()
        with tarfile.open(
            mode="r|", fileobj=stream, tarinfo=_TarHeader, ignore_zeros=True
        ) as archive:
            for member in archive:
                cast(Any, archive).members.clear()  # tarfile would collect them
                if member.isreg():
                    with _open_limited(partial(archive.extractfile, member), limit) as opened:
                        yield member.name, _Rewindable(opened).open
        while file.read(CHUNK_BYTES):  # up to the checksum at its end
            pass


class _Rewindable:
    """A stream that can be rewound while only its head has been read."""

    def __init__(self, file: Readable) -> None:
        self._file, self._head, self._position = file, read_head(file), 0

    @contextmanager
    def open(self) -> Iterator[Readable]:
        """Return the stream, rewound to its beginning."""
        if self._position > len(self._head):
            raise RuntimeError("a member of a compressed .tar is read once")
        self._position = 0
        yield self

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes."""
        block = self._head[self._position : self._position + size] or self._file.read(size)
        self._position += len(block)
        return block


class _TarHeader(tarfile.TarInfo):
    """The header of a member. Damaged and hostile ones that tarfile tolerates are refused."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header. Raises ReadError where tarfile would end at a wrong header."""
        if not buf or not any(buf):  # the end
            return super().frombuf(buf, encoding, errors)
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None
        if header.size < 0 or (not header.isreg() and header.size > MAX_TAR_HEADER_BYTES):
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        return header
