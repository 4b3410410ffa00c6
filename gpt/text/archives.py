"""The files in a .zip or .tar, read where they are: nothing is ever unpacked to the disk."""

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
END_OF_ZIP_BYTES = 22  # of the end record without its comment
LONGEST_HEADER = 1 << 20  # bytes of a long name in a .tar, which is read at once


def members(path: Path, kind: str) -> Iterator[tuple[str, Entry]]:
    """Yield the files in an archive, each with its path in it, without hidden ones and links.

    They come sorted by their paths, but those of a compressed .tar in the order they are stored in.

    Args:
        path: the archive.
        kind: one of ARCHIVES.

    Raises:
        TextError: the archive or a member is damaged, encrypted or a decompression bomb.
    """
    streamed = kind == ".tar" and is_compressed(path)
    of_kind = _of_zip if kind == ".zip" else _of_streamed_tar if streamed else _of_stored_tar
    with naming_errors(in_message(path)):
        for name, opened in of_kind(path):
            if not any(part.startswith(".") for part in _parts(name)):
                yield name, Entry(in_message(f"{path}!{name}"), opened, once=streamed)


def names_in_zip(path: Path) -> list[str]:
    """Return the names of the members of a .zip. Raises TextError if it is damaged."""
    with naming_errors(in_message(path)), zipfile.ZipFile(path) as archive:
        return archive.namelist()


Opener = Callable[[], AbstractContextManager[Readable]]


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def _of_zip(path: Path) -> Iterator[tuple[str, Opener]]:
    limit = ExpansionLimit(path)
    with zipfile.ZipFile(path) as archive:
        _check_whole(path, archive)
        for info in sorted(archive.infolist(), key=lambda info: _parts(info.filename)):
            if info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
                continue
            if info.flag_bits & 1:
                name = in_message(f"{path}!{info.filename}")
                raise TextError(f"{name}: is encrypted; decrypt the archive first")
            yield info.filename, partial(_open_in_zip, archive, info, limit)


def _check_whole(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise TextError or BadZipFile for content before or after a .zip, which zipfile ignores."""
    first = min((info.header_offset for info in archive.infolist()), default=0)
    with path.open("rb") as file:
        if first and file.read(len(LOCAL_HEADER)) == LOCAL_HEADER:
            raise TextError(
                f"{in_message(path)}: expected one .zip, got one appended to another, of which "
                f"only the last can be read; split the file"
            )
        file.seek(archive.start_dir)
        rest = file.read()
    end = rest.rindex(END_OF_ZIP) + END_OF_ZIP_BYTES + len(archive.comment)
    if rest[end:].strip(b"\0"):
        raise zipfile.BadZipFile(f"{len(rest) - end:,} bytes follow its end")


@contextmanager
def _open_in_zip(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: ExpansionLimit
) -> Iterator[Readable]:
    with archive.open(info) as file:
        yield Limited(cast(Readable, file), limit)


def _of_stored_tar(path: Path) -> Iterator[tuple[str, Opener]]:
    # Zeros are ignored: text was lost where one .tar was appended to another.
    with tarfile.open(path, "r:", tarinfo=_Header, ignore_zeros=True) as archive:
        limit = ExpansionLimit(path)
        for member in sorted(archive, key=lambda member: _parts(member.name)):
            if member.isreg():
                yield member.name, partial(_open_in_tar, archive, member, limit)


def _of_streamed_tar(path: Path) -> Iterator[tuple[str, Opener]]:
    """In one pass: to find each member in a compressed .tar, all before it is decompressed."""
    with open_file(path) as file:
        limit = ExpansionLimit(path)
        stream: Any = file  # tarfile needs but its read()
        with tarfile.open(mode="r|", fileobj=stream, tarinfo=_Header, ignore_zeros=True) as archive:
            for member in archive:
                cast(Any, archive).members.clear()  # which it would collect
                if member.isreg():
                    with _open_in_tar(archive, member, limit) as opened:
                        yield member.name, _Streamed(opened).open
        while file.read(CHUNK_BYTES):  # up to the checksum at its end
            pass


@contextmanager
def _open_in_tar(
    archive: tarfile.TarFile, member: tarfile.TarInfo, limit: ExpansionLimit
) -> Iterator[Readable]:
    with cast(AbstractContextManager[Readable], archive.extractfile(member)) as file:
        yield Limited(file, limit)  # again, for a sparse file has more than is stored


class _Streamed:
    """A stream that can be begun again as long as no more than its head was read."""

    def __init__(self, file: Readable) -> None:
        self._file, self._head, self._position = file, read_head(file), 0

    @contextmanager
    def open(self) -> Iterator[Readable]:
        """From its beginning."""
        if self._position > len(self._head):
            raise RuntimeError("a member of a compressed .tar is read once")
        self._position = 0
        yield self

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes."""
        block = self._head[self._position : self._position + size] or self._file.read(size)
        self._position += len(block)
        return block


class _Header(tarfile.TarInfo):
    """The header of a member, without what tarfile tolerates in a damaged or hostile one."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """See TarInfo. Raises ReadError where tarfile would take a wrong header for the end."""
        if not buf or not any(buf):  # the end
            return super().frombuf(buf, encoding, errors)
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None
        if header.size < 0 or (not header.isreg() and header.size > LONGEST_HEADER):
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        return header
