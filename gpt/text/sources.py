"""What TEXT names: a named source, files, folders, globs, standard input, or several of these."""

import errno
import logging
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from gpt.config.schema import DataConfig
from gpt.errors import TextError
from gpt.text.archives import ARCHIVES, members
from gpt.text.decoding import is_wide, marked_encoding, utf8_chunks
from gpt.text.documents import Document, Notice, Skipped, Source, joined_name
from gpt.text.folders import find_files, find_matches, is_excluded, is_glob, is_included
from gpt.text.named import NAMED, open_named
from gpt.text.reading import Entry, file_entry, split_suffixes
from gpt.text.records import KINDS, PARQUET, RECORDS, Read, read_parquet, read_records
from gpt.text.standard_input import KEPT, STDIN, keep_standard_input, kept_file

log = logging.getLogger(__name__)

FEW = 3  # names of files or records, in a notice


def open_source(source: str | Sequence[str], data: DataConfig | None = None) -> Source:
    """The text of that name, or several, one after the other.

    Each is one of NAMED, a file, a folder, a glob, `-` for standard input, or what that was kept
    as; archives are looked through, compressed files decompressed, all as they are read.

    Raises:
        TextError: there is no such text; reading its documents raises it for what is not text.
    """
    data = data or DataConfig()
    names = [source] if isinstance(source, str) else list(source)
    opened = [_open(name, data) for name in names]
    if len(opened) == 1:
        (only,) = opened
        return only
    name = joined_name(names)
    files = tuple(chain.from_iterable(each.files for each in opened))
    log.info(f"{name}: {_counted(files)}")
    return Source(
        name,
        lambda: chain.from_iterable(each.documents() for each in opened),
        files,
        lambda: tuple(chain.from_iterable(each.skipped for each in opened)),
        lambda: tuple(chain.from_iterable(each.notices() for each in opened)),
    )


def _open(name: str, data: DataConfig) -> Source:
    if name in NAMED:
        if data.column is not None:
            raise TextError(f"{name}: {_NO_COLUMNS}")
        return open_named(name)
    if name == STDIN:
        name = keep_standard_input()
    path = kept_file(name) if name.startswith(KEPT) else Path(name)
    mode = _mode(path)
    if stat.S_ISDIR(mode):
        return _of_found(name, [*find_files(path, data.globs)], data)
    if stat.S_ISREG(mode):
        return _Files(name, [path], [], data).source()
    if mode:
        raise TextError(
            f"{name}: expected a file or folder, got a pipe or device; pipe it in: "
            f"gpt train - < {name}"
        )
    if is_glob(name):
        matches = (path for path in find_matches(name) if not is_excluded(path.parts, data.globs))
        found = (find_files(path, data.globs) for path in matches)
        return _of_found(name, [*chain.from_iterable(found)], data)
    raise TextError(
        f"{name}: no such text; expected {', '.join(NAMED)}, the path of a file or folder, a glob "
        f"such as 'texts/*.txt', or - for standard input"
    )


def _mode(path: Path) -> int:
    """What kind of file it is; 0 of none."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno == errno.EACCES:
            raise TextError(f"{path}: cannot read the text: {error.strerror}") from None
    except ValueError:  # a name with a NUL
        pass
    return 0


_NO_COLUMNS = f"data.column is for {KINDS}; leave it out to read other text"


def _of_found(name: str, found: Sequence[Path | Skipped], data: DataConfig) -> Source:
    """The text of the files that were found in a folder or by a glob, without those of no text."""
    paths, skipped = list[Path](), list[Skipped]()
    for each in dict.fromkeys(found):  # a glob may find a file by two ways
        if isinstance(each, Skipped):
            skipped.append(each)
        elif reason := _why_skipped(file_entry(each), data):
            skipped.append(Skipped(str(each), reason))
        else:
            paths.append(each)
    if not paths:
        chosen = {"include": data.include, "exclude": data.exclude}
        by = " and ".join(f"data.{key} ({', '.join(each)})" for key, each in chosen.items() if each)
        chosen_by = f" chosen by {by}" if by else ""
        raise TextError(f"{name}: expected text files{chosen_by}, got none{_told(skipped)}")
    log.info(f"{name}: {_counted(paths)}{_told(skipped)}")
    # data.include has chosen the archives; it chooses among the members of an archive that is TEXT
    excluding = tuple(glob for glob in data.include if glob.startswith("!"))
    in_archives = data.model_copy(update={"include": excluding})
    return _Files(name, paths, skipped, in_archives).source()


class _Files:
    """What is read from some files, and what was skipped on the way to it and in archives."""

    def __init__(
        self, name: str, paths: list[Path], skipped: list[Skipped], data: DataConfig
    ) -> None:
        self._name, self._paths, self._skipped, self._data = name, paths, skipped, data
        self._notices: tuple[str, ...] = ()

    def source(self) -> Source:
        """Return the source of these files."""
        paths = tuple(self._paths)
        return Source(self._name, self.documents, paths, self.skipped, lambda: self._notices)

    def documents(self) -> Iterator[Document]:
        """Yield the documents of each file in turn."""
        skipped, notices, count = list[Skipped](), dict[str, list[str]](), 0
        for read in chain.from_iterable(_read_file(path, self._data) for path in self._paths):
            if isinstance(read, Skipped):
                skipped.append(read)
            elif isinstance(read, Notice):
                notices.setdefault(read.text, []).append(read.name)
            else:
                count += 1
                yield read
        if not count:
            raise TextError(f"{self._name}: expected some text, got none{_told(skipped)}")
        self._notices = tuple(f"{_listed(names)}: {text}" for text, names in notices.items())
        if skipped or any(map(_is_archive, self._paths)):
            counted = f"{self._name}: {count:,} document{'s' * (count != 1)}{_told(skipped)}"
            self._notices += (counted,)

    def skipped(self) -> tuple[Skipped, ...]:
        """Return what was found and is not read."""
        skips_records = self._data.column is not None and self._data.bad_records == "skip"
        paths = (path for path in self._paths if skips_records or _is_archive(path))
        read = chain.from_iterable(_read_file(path, self._data) for path in paths)
        return (*self._skipped, *(each for each in read if isinstance(each, Skipped)))


def _is_archive(path: Path) -> bool:
    return split_suffixes(path.name)[0] in ARCHIVES


def _read_file(path: Path, data: DataConfig) -> Iterator[Read]:
    kind, _ = split_suffixes(path.name)
    if kind in ARCHIVES:
        yield from _read_archive(path, data)
    elif kind == PARQUET:
        yield from read_parquet(path, data.column, skip_bad=data.bad_records == "skip")
    elif data.column is not None and kind not in RECORDS:
        raise TextError(f"{path}: {_NO_COLUMNS}")
    else:
        yield from _read_entry(file_entry(path), data)


def _read_archive(path: Path, data: DataConfig) -> Iterator[Read]:
    for name, entry in members(path):
        if is_included(name.split("/"), data.globs):
            if reason := _why_skipped(entry, data, in_archive=True):
                yield Skipped(entry.name, reason)
            else:
                yield from _read_entry(entry, data)


def _read_entry(entry: Entry, data: DataConfig) -> Iterator[Read]:
    """Yield a document, or one for each record."""
    chunks = partial(_chunks, entry, data)
    if data.column is None:
        yield Document(entry.name, chunks)
    else:
        kind, _ = split_suffixes(entry.name)
        skip_bad = data.bad_records == "skip"
        yield from read_records(chunks(), kind, entry.name, data.column, skip_bad=skip_bad)


def _chunks(entry: Entry, data: DataConfig) -> Iterator[bytes]:
    return utf8_chunks(entry.blocks(), entry.name, data.encoding)


def _why_skipped(entry: Entry, data: DataConfig, *, in_archive: bool = False) -> str:
    """Why a file that was found, and not named, is not read; "" of one that is."""
    kind, compressed = split_suffixes(entry.name)
    if kind in ARCHIVES or (compressed and in_archive):
        return "archive or compressed file in an archive" if in_archive else ""
    if kind == PARQUET and data.column is None:
        return "Parquet without data.column"
    if kind == PARQUET:
        return "Parquet in an archive" if in_archive else ""
    if data.column is not None and kind not in RECORDS:
        return f"not {KINDS}"
    head = entry.head()
    if not head:
        return "empty"
    if b"\0" in head and not is_wide(data.encoding):
        marked = marked_encoding(head)
        return f"{marked.upper()} without data.encoding={marked}" if marked else "binary"
    return ""


def _counted(paths: Sequence[Path]) -> str:
    size = sum(path.stat().st_size for path in paths)
    return f"{len(paths):,} file{'s' * (len(paths) != 1)}, {size:,} bytes"


def _told(skipped: Iterable[Skipped]) -> str:
    """`; skipped 5 binary (a.png, b.png, c.png, ...), 1 empty (d.txt)`."""
    by_reason = dict[str, list[str]]()
    for each in skipped:
        by_reason.setdefault(each.reason, []).append(each.name)
    if not by_reason:
        return ""
    lists = (f"{len(names):,} {reason} ({_listed(names)})" for reason, names in by_reason.items())
    return f"; skipped {', '.join(lists)}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:FEW], *["..."][: len(names) > FEW]])
