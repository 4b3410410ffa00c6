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
    HEAD_BYTES,
    Entry,
    Readable,
    in_message,
    naming_errors,
    open_file,
)

ARCHIVES = (".zip", ".tar")

Opener = Callable[[], AbstractContextManager[Readable]]


def members(path: Path, kind: str) -> Iterator[tuple[str, Entry]]:
    """Yield the files in an archive, each with its path in it, without hidden ones and links.

    Those of a .zip are sorted by their paths; a .tar is read in one pass. `kind` is one of
    ARCHIVES.

    Raises:
        TextError: the archive or a member is damaged or encrypted.
    """
    read = _read_zip if kind == ".zip" else _read_tar
    with naming_errors(in_message(path)):
        for name, opened in read(path):
            if not any(part.startswith(".") for part in _parts(name)):
                yield name, Entry(in_message(f"{path}!{name}"), opened, once=kind == ".tar")


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]


def _read_zip(path: Path) -> Iterator[tuple[str, Opener]]:
    with zipfile.ZipFile(path) as archive:
        for info in sorted(archive.infolist(), key=lambda info: _parts(info.filename)):
            if info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
                continue
            if info.flag_bits & 1:
                name = in_message(f"{path}!{info.filename}")
                raise TextError(f"{name}: is encrypted; decrypt the archive first")
            yield info.filename, partial(archive.open, info)


def _read_tar(path: Path) -> Iterator[tuple[str, Opener]]:
    """Yield the members in one pass: to seek in a compressed .tar, it must be decompressed."""
    with open_file(path) as file:
        stream: Any = file  # tarfile needs only its read()
        # Blocks of zeros are ignored: where one .tar was appended to another, text would be lost.
        with tarfile.open(
            mode="r|", fileobj=stream, tarinfo=_TarHeader, ignore_zeros=True
        ) as archive:
            for member in archive:
                cast(Any, archive).members.clear()  # tarfile would collect them
                if content := archive.extractfile(member) if member.isreg() else None:
                    yield member.name, _Rewindable(content).open
        while file.read(CHUNK_BYTES):  # up to the checksum at its end
            pass


class _Rewindable:
    """A stream that can be rewound while only its head has been read."""

    def __init__(self, file: Readable) -> None:
        self._file, self._head, self._unread = file, file.read(HEAD_BYTES), b""

    @contextmanager
    def open(self) -> Iterator[Readable]:
        """Return the stream, rewound to its beginning."""
        self._unread = self._head
        yield self

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes."""
        block, self._unread = self._unread[:size], self._unread[size:]
        return block or self._file.read(size)


class _TarHeader(tarfile.TarInfo):
    """The header of a member. tarfile would skip a damaged one, with its member."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header. Raises ReadError for a damaged one."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if buf.strip(b"\0"):
                raise tarfile.ReadError(str(error)) from None
            raise  # the end of the archive
