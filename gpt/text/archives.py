"""Read the files in a .zip or .tar archive without unpacking them to the disk."""

import stat
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from gpt.errors import TextError
from gpt.text.reading import CHUNK_BYTES, HEAD_BYTES, Entry, in_message, naming_errors, open_file

ARCHIVES = (".zip", ".tar")


def members(path: Path, kind: str) -> Iterator[tuple[str, Entry]]:
    """Yield the path and the content of each file in an archive, except hidden files and links.

    `kind` is the suffix of the archive, `.zip` or `.tar`. The files of a .zip are sorted by path.
    The files of a .tar keep their order.
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
    """Yield the files in one pass, because seeking in a compressed .tar is slow."""
    with open_file(path) as file:
        # Zeros mark the end of a .tar. Ignore them, to read any .tar that was appended to it, too.
        with tarfile.open(
            mode="r|", fileobj=file, tarinfo=_TarHeader, ignore_zeros=True
        ) as archive:
            for member in archive:
                cast(Any, archive).members.clear()  # tarfile would keep all headers in memory
                if content := archive.extractfile(member) if member.isreg() else None:
                    name, start = in_message(f"{path}!{member.name}"), content.read(HEAD_BYTES)
                    yield member.name, Entry(name, content.__enter__, start)  # already open
        while file.read(CHUNK_BYTES):  # at its end the checksum is verified
            pass


class _TarHeader(tarfile.TarInfo):
    """Header of a file in a .tar. A damaged header raises an error; tarfile would skip it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header. Raise ReadError if it is damaged."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if buf.strip(b"\0"):
                raise tarfile.ReadError(str(error)) from None
            raise  # the end of the archive
