"""The files in a .zip or .tar, read in place: nothing is unpacked to the disk."""

import stat
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from gpt.errors import TextError
from gpt.text.reading import (
    CHUNK_BYTES,
    HEAD_BYTES,
    Entry,
    in_message,
    naming_errors,
    open_file,
)

ARCHIVES = (".zip", ".tar")


def members(path: Path, kind: str) -> Iterator[tuple[str, Entry]]:
    """Yield the files in an archive, each with its path in it, without hidden ones and links.

    Those of a .zip are sorted by their paths; a .tar is read in one pass. `kind` is one of
    ARCHIVES.

    Raises:
        TextError: the archive or a member is damaged or encrypted.
    """
    read = _read_zip if kind == ".zip" else _read_tar
    with naming_errors(in_message(path)):
        for name, entry in read(path):
            if not any(part.startswith(".") for part in _parts(name)):
                yield name, entry


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
    """Yield the members in one pass: to seek in a compressed .tar, it must be decompressed."""
    with open_file(path) as file:
        # Blocks of zeros are ignored: where one .tar was appended to another, text would be lost.
        with tarfile.open(
            mode="r|", fileobj=file, tarinfo=_TarHeader, ignore_zeros=True
        ) as archive:
            for member in archive:
                cast(Any, archive).members.clear()  # tarfile would collect them
                if content := archive.extractfile(member) if member.isreg() else None:
                    name, start = in_message(f"{path}!{member.name}"), content.read(HEAD_BYTES)
                    yield member.name, Entry(name, content.__enter__, start)  # it is open
        while file.read(CHUNK_BYTES):  # up to the checksum at its end
            pass


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
