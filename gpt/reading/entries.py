"""Find files in folders and by globs, and read them as bytes, also in archives."""

import errno
import importlib
import os
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from glob import glob
from pathlib import Path
from typing import IO, Any, cast

from gpt.errors import GPTError, TextError, shown
from gpt.files import CHUNK_BYTES
from gpt.reading.notices import Skipped

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
HEAD_BYTES = 8192  # bytes at the start of a file that are read to detect its format and encoding
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": ZSTD}  # suffix -> module
LONGEST_SHOWN_NAME = 300  # largest length of a file name in a message, in characters
ARCHIVES = (".zip", ".tar")
TAR_SUFFIXES = {".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz", ".tzst": ".zst"}
IN_A_RUN = {"config.yaml", "provenance.jsonl"}  # names that the folder of every run contains
IN_A_SWEEP = "sweep.json"  # name of a file that the folder of every sweep contains


@dataclass(frozen=True)
class Entry:
    """A file on disk or in an archive."""

    name: str  # name of the file in messages
    open: Callable[[], IO[bytes]]  # returns a stream of the content after `start`
    start: bytes | None = None  # first bytes, if already read (a .tar is read in one pass)

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
    """Shorten and escape a file name for a message."""
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
        library: Any = importlib.import_module(COMPRESSED[suffix])  # not every Python has it
        return cast(IO[bytes], library.open(path))
    return path.open("rb")


@contextmanager
def naming_errors(name: str) -> Iterator[None]:
    """Convert errors in a `with` block to a TextError about `name`, the file being read."""
    try:
        yield
    except (GPTError, MemoryError):
        raise
    except ImportError as error:
        raise TextError(
            f"{name}: cannot read it ({error}); install this module, or convert the file"
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
                yield member.name, Entry(name, content.__enter__, start)  # a call returns `content`
        # tarfile stops silently at a damaged header: check that only zeros follow
        file.seek(archive.offset)
        while block := file.read(CHUNK_BYTES):  # reading to the end verifies the checksum
            if block.strip(b"\0"):
                raise tarfile.ReadError("a header is damaged, or another archive follows")


def find_files(
    root: Path, globs: Sequence[str], pattern: Sequence[str] = ()
) -> Iterator[Path | Skipped]:
    """Yield the files below the folder `root` that `globs` select, sorted by path, each once.

    A file's path below `root` must also match `pattern`, a glob split at its slashes. Hidden files
    are ignored, and links are followed. Yield `Skipped` for files and folders already found by
    another path (so a loop of links ends), broken links, pipes, devices, and the folders of runs
    and sweeps, because training changes these folders.
    """
    at = pattern.index("**") if "**" in pattern else len(pattern)
    starts = glob("/".join(pattern[:at]), root_dir=root) if at else [""]  # noqa: PTH207 (for relative paths)
    is_selected = selector(globs)
    is_matched = selector(["/".join(pattern[at:])] if pattern[at:] else [])
    seen = {_identity((root / start).parent.stat()) for start in starts if start}
    pending = sorted((root / start for start in starts), reverse=True)
    while pending:
        path = pending.pop()
        try:
            status = path.stat()
            if status.st_ino and _identity(status) in seen:
                yield Skipped(in_message(path), "already found by another path")
                continue
            seen.add(_identity(status))
            if stat.S_ISDIR(status.st_mode):
                names = sorted(
                    each.name for each in path.iterdir() if not each.name.startswith(".")
                )
                if {*names} >= IN_A_RUN or IN_A_SWEEP in names:
                    yield Skipped(in_message(path), "run")
                else:
                    pending += [path / name for name in reversed(names)]
            elif not stat.S_ISREG(status.st_mode):
                yield Skipped(in_message(path), "pipe or device")
            elif is_selected(path.relative_to(root)) and is_matched(path.relative_to(root)):
                yield path
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP) or not path.is_symlink():
                raise TextError(
                    f"{in_message(path)}: cannot read the text: {error.strerror}"
                ) from None
            yield Skipped(in_message(path), "link to nowhere")


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def selector(globs: Sequence[str]) -> Callable[[Path], bool]:
    """Return a function that returns whether `globs` select a relative path.

    Globs are matched as in a .gitignore. A glob after `!` excludes a file, or a folder and its
    content. If there are globs without `!`, one of them must match.
    """
    if not globs:
        return lambda path: True
    from pathspec import GitIgnoreSpec

    try:
        including = GitIgnoreSpec.from_lines(glob for glob in globs if not glob.startswith("!"))
        excluding = GitIgnoreSpec.from_lines(glob[1:] for glob in globs if glob.startswith("!"))
    except ValueError as error:
        raise TextError(f"data.include or data.exclude: {error}; correct this glob") from None
    return lambda path: (
        (not including or including.match_file(path)) and not excluding.match_file(path)
    )
