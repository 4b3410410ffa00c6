"""What TEXT names: a named source, files, folders, globs, standard input, or several of these."""

import errno
import json
import logging
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePath

from gpt.config.schema import DataConfig
from gpt.errors import TextError, counted, listed
from gpt.text.archives import ARCHIVES, members, names_in_zip
from gpt.text.decoding import Decoded, encoding_of, fits_utf8, is_utf8, is_wide, utf8_chunks
from gpt.text.documents import Document, Notice, Skipped, Source, joined_name
from gpt.text.folders import find_files, find_matches, is_excluded, is_glob, is_included
from gpt.text.formats import NOTICES, ZIP, Format, binary_format, is_tar, text_format
from gpt.text.named import NAMED, open_named
from gpt.text.reading import Entry, file_entry, in_message, is_compressed, split_suffixes
from gpt.text.records import KINDS, PARQUET, RECORDS, Read, read_parquet, read_records
from gpt.text.standard_input import STDIN, standard_input

log = logging.getLogger(__name__)

FEW = 3  # names of files or records, in a notice


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
        (only,) = opened
        return only
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
        return _of_found(name, [*find_files(path, data.globs)], data)
    if stat.S_ISREG(mode):
        reader = _Reader(data, among_others=among_others)
        kind = reader.kind(path, named=True)
        assert isinstance(kind, str)
        return replace(_Files(name, {path: kind}, [], reader).source(), standard_input=stdin)
    if mode:
        raise TextError(
            f"{in_message(name)}: expected a file or folder, got a pipe or device; pipe it in: "
            f"gpt train - < {in_message(name)}"
        )
    if is_glob(name):
        matches = (path for path in find_matches(name) if not is_excluded(path.parts, data.globs))
        found = (find_files(path, data.globs) for path in matches)
        return _of_found(name, [*chain.from_iterable(found)], data)
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


_NO_COLUMNS = f"data.column is for {KINDS}; leave it out to read other text"


def _of_found(name: str, found: Sequence[Path | Skipped], data: DataConfig) -> Source:
    """Return the text of files found in a folder or by a glob, skipping those that are not text."""
    # data.include selects the archives here; it selects members only of an archive named as TEXT
    excluding = tuple(glob for glob in data.include if glob.startswith("!"))
    reader = _Reader(data.model_copy(update={"include": excluding}), among_others=True)
    kinds, skipped = dict[Path, str](), list[Skipped]()
    for each in dict.fromkeys(found):  # a glob may find a file twice
        if isinstance(each, Skipped):
            skipped.append(each)
        elif isinstance(kind := reader.kind(each), Skipped):
            skipped.append(kind)
        else:
            kinds[each] = kind
    if not kinds:
        chosen = {"include": data.include, "exclude": data.exclude}
        by = " and ".join(f"data.{key} ({', '.join(each)})" for key, each in chosen.items() if each)
        chosen_by = f" chosen by {by}" if by else ""
        raise TextError(
            f"{in_message(name)}: expected text files{chosen_by}, got none{_skips(skipped)}"
        )
    log.info(f"{in_message(name)}: {_size_of([*kinds])}{_skips(skipped)}")
    return _Files(name, kinds, skipped, reader).source()


class _Files:
    """The documents of some files, and the skipped files and archive members."""

    def __init__(
        self, name: str, kinds: dict[Path, str], skipped: list[Skipped], reader: "_Reader"
    ) -> None:
        self._name, self._kinds, self._skipped = in_message(name), kinds, skipped
        self._reader = reader
        self._count = ""  # notice with the number of documents, set once they have been read

    def source(self) -> Source:
        """Return the source of these files."""
        return Source(self._name, self.documents, tuple(self._kinds), self.skipped, self._notices)

    def documents(self) -> Iterator[Document]:
        """Yield the documents of each file in turn."""
        skipped, count = list[Skipped](), 0
        for path, kind in self._kinds.items():
            for read in self._reader.read(path, kind):
                if isinstance(read, Skipped):
                    skipped.append(read)
                else:
                    count += 1
                    yield read
        if not count:
            raise TextError(f"{self._name}: expected some text, got none{_skips(skipped)}")
        if skipped or any(kind in ARCHIVES for kind in self._kinds.values()):
            documents = counted(count, "document")
            self._count = f"{self._name}: {documents}{_skips(skipped)}"

    def skipped(self) -> tuple[Skipped, ...]:
        """Return the files, archive members and records that are not read."""
        read = (
            read
            for path, kind in self._kinds.items()
            if kind in ARCHIVES or self._reader.skips_records
            for read in self._reader.read(path, kind)
        )
        return (*self._skipped, *(each for each in read if isinstance(each, Skipped)))

    def _notices(self) -> tuple[str, ...]:
        return (*self._reader.notices(), *([self._count] if self._count else []))


class _Reader:
    """Reads files by `data`, and collects notices about them."""

    def __init__(self, data: DataConfig, *, among_others: bool) -> None:
        """Set `among_others` if the files were not named one by one: encodings may then differ."""
        self._data, self._among_others = data, among_others
        self._raw = data.vocabulary == "bytes"  # binary files are then read, too
        self._decoded = dict[str, Decoded]()  # by file name, if there is something to report
        self._formats = dict[str, dict[str, None]]()  # file names by key of NOTICES
        self._tables = dict[str, dict[str, None]]()  # file names by text of a Notice
        self.skips_records = data.column is not None and data.bad_records == "skip"

    def kind(self, path: Path, *, named: bool = False) -> "str | Skipped":
        """Return the kind of a file: `.zip` or `.tar` if it is an archive, else its suffix.

        Args:
            path: the file.
            named: raise TextError for a file that is not text, instead of returning Skipped.

        Raises:
            TextError: the file cannot be read, or is `named` and not text.
        """
        entry, (kind, _) = file_entry(path), split_suffixes(path.name)
        if kind == PARQUET:
            head = b""
        elif kind == ".tar" or is_tar(head := entry.head()):
            return ".tar"
        if (kind == ".zip" or head.startswith(ZIP)) and not self._raw:
            members = [] if is_compressed(path) else names_in_zip(path)
            found = binary_format(head, path.name, members)
            if members and found is None:
                return ".zip"
        else:
            found = None if self._raw else binary_format(head, path.name)
        if named and found and self._data.errors == "strict":
            raise TextError(
                f"{entry.name}: expected plain text, got {found.name}; {found.advice(str(path))}"
            )
        if named or kind in ARCHIVES:
            return kind
        reason = self._why_skipped(entry, kind, head, found)
        return Skipped(entry.name, reason) if reason else kind

    def read(self, path: Path, kind: str) -> Iterator[Document | Skipped]:
        """Yield the documents of a file of this kind."""
        if kind in ARCHIVES:
            yield from self._read_archive(path, kind)
        elif kind == PARQUET:
            yield from self._without_notices(
                read_parquet(path, self._data.column, skip_bad=self.skips_records)
            )
        elif self._data.column is not None and kind not in RECORDS:
            raise TextError(f"{in_message(path)}: {_NO_COLUMNS}")
        else:
            yield from self._read_entry(file_entry(path))

    def _read_archive(self, path: Path, kind: str) -> Iterator[Document | Skipped]:
        for name, entry in members(path, kind):
            if is_included(name.split("/"), self._data.globs):
                if reason := self._why_skipped_in_archive(entry):
                    yield Skipped(entry.name, reason)
                else:
                    yield from self._read_entry(entry, among_others=True)

    def _read_entry(
        self, entry: Entry, *, among_others: bool = False
    ) -> Iterator[Document | Skipped]:
        """Yield a document, or one for each record."""
        head, (kind, _) = entry.head(), split_suffixes(entry.name)
        if self._raw and self._is_binary(head, entry.name):
            yield Document(entry.name, entry.blocks, raw=True)
            return
        among_others = among_others or self._among_others
        chunks = partial(self._chunks, entry, head, among_others=among_others)
        if self._data.column is not None:
            column, skip_bad = self._data.column, self.skips_records
            records = read_records(chunks(), kind, entry.name, column, skip_bad=skip_bad)
            yield from self._without_notices(records)
            return
        if found := text_format(head, kind):
            self._formats.setdefault(found, {})[entry.name] = None
        yield Document(entry.name, chunks)

    def _without_notices(self, records: Iterator[Read]) -> Iterator[Document | Skipped]:
        for read in records:
            if isinstance(read, Notice):
                self._tables.setdefault(read.text, {})[read.name] = None
            else:
                yield read

    def _chunks(self, entry: Entry, head: bytes, *, among_others: bool) -> Iterator[bytes]:
        encoding = encoding_of(head, self._data.encoding)
        if among_others and encoding == self._data.encoding and not is_utf8(encoding):
            blocks = [head] if entry.once else entry.blocks()
            if fits_utf8(blocks, whole=not entry.once):
                encoding = "utf-8"
        decoded = Decoded()
        yield from utf8_chunks(
            entry.blocks(),
            entry.name,
            encoding,
            "raw" if self._raw and self._data.errors == "strict" else self._data.errors,
            decoded,
            _SKIP.format(json.dumps([PurePath(entry.name).name])) if among_others else "",
        )
        if not is_utf8(encoding) or decoded != Decoded(encoding):
            self._decoded[entry.name] = decoded

    def _why_skipped(self, entry: Entry, kind: str, head: bytes, found: Format | None) -> str:
        """Return why a file is skipped; "" if it is read."""
        if kind == PARQUET:
            return "Parquet without data.column" if self._data.column is None else ""
        if self._data.column is not None and kind not in RECORDS:
            return f"not {KINDS}"
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

    def notices(self) -> tuple[str, ...]:
        """Return notices about the documents read so far, one line for each kind."""
        encodings = dict[str, list[str]]()
        for name, each in self._decoded.items():
            if each.encoding != self._data.encoding:
                encodings.setdefault(each.encoding.upper(), []).append(name)
        lines = [f"{listed(names, FEW)}: read as {name}" for name, names in encodings.items()]
        raw = self._raw and self._data.errors == "strict"
        for attribute, said in (_COUNTED | (_KEPT_AS_BYTES if raw else {})).items():
            counts = {name: getattr(each, attribute) for name, each in self._decoded.items()}
            if names := [name for name, count in counts.items() if count]:
                lines.append(f"{listed(names, FEW)}: {sum(counts.values()):,} {said}")
        for found, files in self._formats.items():
            lines.append(f"{listed([*files], FEW)}: {found} read as plain text: {NOTICES[found]}")
        lines += [f"{listed([*files], FEW)}: {text}" for text, files in self._tables.items()]
        return tuple(lines)


_SKIP = "to skip this file: --set 'data.exclude={}'"
_COUNTED = {
    "replaced": "times U+FFFD in place of bytes that are not in the encoding (data.errors=replace)",
    "marks_dropped": "byte-order marks (U+FEFF) at the start of lines dropped",
    "marks_kept": "U+FEFF inside lines kept: invisible characters, which are learnt",
}
_KEPT_AS_BYTES = {"replaced": "places that are not UTF-8, learnt as they are"}


def _size_of(paths: Sequence[Path]) -> str:
    size = sum(path.stat().st_size for path in paths)
    return f"{counted(len(paths), 'file')}, {counted(size, 'byte')}"


def _skips(skipped: Iterable[Skipped]) -> str:
    """Return `; skipped 5 binary (a.png, b.png, c.png and 2 more), 1 empty (d.txt)`."""
    by_reason = dict[str, list[str]]()
    for each in skipped:
        by_reason.setdefault(each.reason, []).append(each.name)
    if not by_reason:
        return ""
    lists = (
        f"{len(names):,} {reason} ({listed(names, FEW)})" for reason, names in by_reason.items()
    )
    return f"; skipped {', '.join(lists)}"
