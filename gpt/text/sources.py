"""What TEXT names: a named source, files, folders, globs, standard input, or several of these."""

import errno
import json
import logging
import stat
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path, PurePath

from gpt.config.schema import DataConfig
from gpt.errors import TextError, counted
from gpt.text.archives import ARCHIVES, members, names_in_zip
from gpt.text.decoding import encoding_of, fits_utf8, is_wide, utf8_chunks
from gpt.text.documents import Document, Notices, Skipped, Source, describe_skipped, joined_name
from gpt.text.folders import find_files, find_matches, is_excluded, is_glob, is_included
from gpt.text.formats import ZIP, Format, binary_format, is_tar, markup_notice
from gpt.text.named import NAMED, open_named
from gpt.text.reading import Entry, file_entry, in_message, is_compressed, split_suffixes
from gpt.text.records import PARQUET, TABLES, TEXT_TABLES, read_parquet, read_records
from gpt.text.standard_input import STDIN, standard_input
from gpt.text.utf8 import is_utf8

log = logging.getLogger(__name__)

_NO_COLUMNS = f"data.column is for {TABLES}; leave it out to read other text"


def open_source(
    source: str | Sequence[str], data: DataConfig | None = None, stdin: Path | None = None
) -> Source:
    """Open one text, or several in sequence.

    Args:
        source: one name or several: one of NAMED, a file, a folder, a glob, or `-` for standard
            input. Archives and compressed files are unpacked while they are read.
        data: how to read it.
        stdin: the file that holds what came from standard input; by default, standard input is read
            into the cache.

    Raises:
        TextError: there is no such text. Reading the documents raises it if they are not text.
    """
    data = data or DataConfig()
    names = [source] if isinstance(source, str) else list(source)
    opened = [_open(name, data, stdin, among_others=len(names) > 1) for name in names]
    if len(opened) == 1:
        return opened[0]
    name = joined_name(names)
    files = tuple(chain.from_iterable(each.files for each in opened))
    log.info(f"{name}: {_size_of(files)}")
    return Source(
        name,
        lambda: chain.from_iterable(each.documents() for each in opened),
        files,
        lambda: tuple(chain.from_iterable(each.skipped for each in opened)),
        lambda: tuple(chain.from_iterable(each.notices() for each in opened)),
        next((each.standard_input for each in opened if each.standard_input), None),
    )


def _open(name: str, data: DataConfig, stdin: Path | None, *, among_others: bool) -> Source:
    if name in NAMED:
        if data.column is not None:
            raise TextError(f"{name}: {_NO_COLUMNS}")
        return open_named(name)
    stdin = (stdin or standard_input()) if name == STDIN else None
    path = stdin or Path(name)
    mode = _mode(path)
    if stat.S_ISDIR(mode):
        return _open_found(name, [*find_files(path, data.globs)], data)
    if stat.S_ISREG(mode):
        files = _TextFiles(name, data, among_others=among_others)
        files.add(path, named=True)
        return files.source(stdin)
    if mode:
        raise TextError(
            f"{in_message(name)}: expected a file or folder, got a pipe or device; pipe it in: "
            f"gpt train - < {in_message(name)}"
        )
    if is_glob(name):
        matches = (path for path in find_matches(name) if not is_excluded(path.parts, data.globs))
        found = (find_files(path, data.globs) for path in matches)
        return _open_found(name, [*chain.from_iterable(found)], data)
    raise TextError(
        f"{in_message(name)}: no such text; expected {', '.join(NAMED)}, the path of a file or "
        f"folder, a glob such as 'texts/*.txt', or - for standard input"
    )


def _mode(path: Path) -> int:
    """Return the mode of a file; 0 if it does not exist."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno == errno.EACCES:
            raise TextError(f"{in_message(path)}: cannot read the text: {error.strerror}") from None
    except ValueError:  # a name with a NUL
        pass
    return 0


def _open_found(name: str, found: Sequence[Path | Skipped], data: DataConfig) -> Source:
    """Open the files that were found in a folder or by a glob, without those that are not text."""
    # data.include selects the archives here; it selects members only of an archive named as TEXT
    excluding = tuple(glob for glob in data.include if glob.startswith("!"))
    files = _TextFiles(name, data.model_copy(update={"include": excluding}), among_others=True)
    for each in dict.fromkeys(found):  # a glob may find a file twice
        if isinstance(each, Skipped):
            files.skipped.append(each)
        else:
            files.add(each)
    if not files.kinds:
        chosen = {"include": data.include, "exclude": data.exclude}
        by = " and ".join(f"data.{key} ({', '.join(each)})" for key, each in chosen.items() if each)
        expected = f"text files chosen by {by}" if by else "text files"
        skips = describe_skipped(files.skipped)
        raise TextError(f"{in_message(name)}: expected {expected}, got none{skips}")
    log.info(f"{in_message(name)}: {_size_of([*files.kinds])}{describe_skipped(files.skipped)}")
    return files.source()


def _size_of(paths: Sequence[Path]) -> str:
    size = sum(path.stat().st_size for path in paths)
    return f"{counted(len(paths), 'file')}, {counted(size, 'byte')}"


class _TextFiles:
    """Files that are read as one text, and notices about them.

    Attributes:
        kinds: the kind of each file: `.zip` or `.tar` if it is an archive, else its suffix.
        skipped: files that are not read.
    """

    def __init__(self, name: str, data: DataConfig, *, among_others: bool) -> None:
        """Prepare to read files.

        Args:
            name: the name of the text.
            data: how to read them.
            among_others: the user did not name each file, so their encodings may differ.
        """
        self._name, self._data, self._among_others = in_message(name), data, among_others
        self._raw = data.vocabulary == "bytes"  # binary files are then read, too
        self._skips_records = data.column is not None and data.bad_records == "skip"
        self._notices, self._count = Notices(), list[str]()
        self.kinds, self.skipped = dict[Path, str](), list[Skipped]()

    def source(self, stdin: Path | None = None) -> Source:
        """Return the text. `stdin` is the file that holds standard input, if it is one of them."""
        return Source(
            self._name,
            self._documents,
            tuple(self.kinds),
            self._find_skipped,
            lambda: (*self._notices.lines(), *self._count),
            stdin,
        )

    def add(self, path: Path, *, named: bool = False) -> None:
        """Add a file, or skip it if it is not text.

        Args:
            path: the file.
            named: raise TextError instead of skipping it.

        Raises:
            TextError: the file cannot be read, or is `named` and not text.
        """
        entry, (kind, _) = file_entry(path), split_suffixes(path.name)
        head = entry.head()
        found = None if self._raw else binary_format(head, path.name)
        if kind == ".tar" or (kind != PARQUET and is_tar(head)):
            kind, found = ".tar", None
        elif (kind == ".zip" or head.startswith(ZIP)) and not self._raw:
            names = [] if is_compressed(path) else names_in_zip(path)
            found = binary_format(head, path.name, names)
            kind = ".zip" if names and found is None else kind
        if named and found and self._data.errors == "strict":
            raise TextError(
                f"{entry.name}: expected plain text, got {found.name}; {found.advice(str(path))}"
            )
        is_read = named or kind in ARCHIVES
        if not is_read and (reason := self._why_skipped(entry, kind, head, found)):
            self.skipped.append(Skipped(entry.name, reason))
        else:
            self.kinds[path] = kind

    def _documents(self) -> Iterator[Document]:
        """Yield the documents of each file in turn."""
        skipped, count = list[Skipped](), 0
        for each in chain.from_iterable(self._read(*file) for file in self.kinds.items()):
            if isinstance(each, Skipped):
                skipped.append(each)
            else:
                count += 1
                yield each
        if not count:
            raise TextError(
                f"{self._name}: expected some text, got none{describe_skipped(skipped)}"
            )
        if skipped or any(kind in ARCHIVES for kind in self.kinds.values()):
            size = f"{counted(count, 'document')}{describe_skipped(skipped)}"
            self._count = [f"{self._name}: {size}"]

    def _find_skipped(self) -> tuple[Skipped, ...]:
        """Return the files, archive members and records that are not read."""
        read = (
            self._read(path, kind)
            for path, kind in self.kinds.items()
            if kind in ARCHIVES or self._skips_records
        )
        found = (each for each in chain.from_iterable(read) if isinstance(each, Skipped))
        return (*self.skipped, *found)

    def _read(self, path: Path, kind: str) -> Iterator[Document | Skipped]:
        """Yield the documents of a file of this kind."""
        if kind in ARCHIVES:
            yield from self._read_archive(path, kind)
        elif kind == PARQUET:
            yield from read_parquet(path, self._data.column, skip_bad=self._skips_records)
        elif self._data.column is not None and kind not in TEXT_TABLES:
            raise TextError(f"{in_message(path)}: {_NO_COLUMNS}")
        else:
            yield from self._read_entry(file_entry(path), among_others=self._among_others)

    def _read_archive(self, path: Path, kind: str) -> Iterator[Document | Skipped]:
        for name, entry in members(path, kind):
            if is_included(name.split("/"), self._data.globs):
                if reason := self._why_skipped_in_archive(entry):
                    yield Skipped(entry.name, reason)
                else:
                    yield from self._read_entry(entry, among_others=True)

    def _read_entry(self, entry: Entry, *, among_others: bool) -> Iterator[Document | Skipped]:
        """Yield a document, or one for each record."""
        head, (kind, _) = entry.head(), split_suffixes(entry.name)
        chunks = partial(self._chunks, entry, head, among_others=among_others)
        if self._raw and self._is_binary(head, entry.name):
            yield Document(entry.name, entry.blocks, raw=True)
        elif self._data.column is None:
            if notice := markup_notice(head, kind):
                self._notices.add(entry.name, notice)
            yield Document(entry.name, chunks)
        else:
            yield from read_records(
                chunks(),
                kind,
                entry.name,
                self._data.column,
                self._notices,
                skip_bad=self._skips_records,
            )

    def _chunks(self, entry: Entry, head: bytes, *, among_others: bool) -> Iterator[bytes]:
        encoding = encoding_of(head, self._data.encoding)
        if among_others and encoding == self._data.encoding and not is_utf8(encoding):
            blocks = [head] if entry.once else entry.blocks()
            if fits_utf8(blocks, whole=not entry.once):
                encoding = "utf-8"
        if encoding != self._data.encoding and not is_utf8(encoding):
            self._notices.add(entry.name, f"read as {encoding.upper()}")
        exclude = json.dumps([PurePath(entry.name).name])
        yield from utf8_chunks(
            entry.blocks(),
            entry.name,
            encoding,
            "raw" if self._raw and self._data.errors == "strict" else self._data.errors,
            self._notices,
            f"to skip this file: --set 'data.exclude={exclude}'" if among_others else "",
        )

    def _why_skipped(self, entry: Entry, kind: str, head: bytes, found: Format | None) -> str:
        """Return why a file is skipped; "" if it is read."""
        if kind == PARQUET:
            return "Parquet without data.column" if self._data.column is None else ""
        if self._data.column is not None and kind not in TEXT_TABLES:
            return f"not {TABLES}"
        if not head:
            return "empty"
        if found:
            return found.reason
        return "binary" if not self._raw and self._is_binary(head, entry.name) else ""

    def _why_skipped_in_archive(self, entry: Entry) -> str:
        kind, compressed = split_suffixes(entry.name)
        if kind in ARCHIVES or compressed:
            return "archive or compressed file in an archive"
        if kind == PARQUET and self._data.column is not None:
            return "Parquet in an archive"
        head = b"" if kind == PARQUET else entry.head()
        found = None if self._raw else binary_format(head, entry.name)
        return self._why_skipped(entry, kind, head, found)

    def _is_binary(self, head: bytes, name: str) -> bool:
        if binary_format(head, name):
            return True
        return b"\0" in head and not is_wide(encoding_of(head, self._data.encoding))
