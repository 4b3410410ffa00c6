"""Open a text by name: a built-in text, a file, a folder, a glob, or standard input."""

import logging
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from glob import has_magic
from itertools import chain, takewhile
from pathlib import Path

from gpt.config.data_config import DataConfig
from gpt.config.schema import SETTINGS
from gpt.errors import TextError, counted, listed, setting_arguments, takes_settings
from gpt.reading.decoding import (
    BINARY,
    advice,
    binary_format,
    encoding_of,
    has_utf8,
    is_binary,
    is_utf8,
    utf8_chunks,
)
from gpt.reading.entries import (
    ARCHIVES,
    Entry,
    file_entry,
    find_files,
    in_message,
    members,
    split_suffixes,
)
from gpt.reading.named import NAMED, open_named
from gpt.reading.notices import Notices, Skipped, describe_skipped
from gpt.reading.records import PARQUET, TABLES, TEXT_TABLES, read_parquet, read_records
from gpt.text.cache import STDIN
from gpt.text.documents import Document, Source

log = logging.getLogger(__name__)

_NO_COLUMNS = f"data.column is for {TABLES}; leave it out to read other text"


def may_have_columns(name: str) -> bool:
    """Return whether `name` is a table, or a folder, glob or archive that may contain tables."""
    is_file = name in (*NAMED, STDIN) or Path(name).is_file()
    return not is_file or split_suffixes(name)[0] in (*TEXT_TABLES, PARQUET, *ARCHIVES)


def open_source(
    source: str | Sequence[str], data: DataConfig | None = None, stdin: Path | None = None
) -> Source:
    """Open a text by its name, or several texts as one.

    A name is a built-in text (one of NAMED), a file, a folder, a glob, or `-` for standard input.
    `stdin` is a copy of standard input, for the name `-`.

    Raises:
        TextError: no such text exists. Reading the documents raises TextError if they are not text.
    """
    data = data or DataConfig()
    names = [source] if isinstance(source, str) else list(source)
    opened = [_open(name, data, stdin) for name in names]
    if len(opened) == 1:
        return opened[0]
    return Source(
        listed(names, 1),
        lambda: chain.from_iterable(each.documents() for each in opened),
        tuple(chain.from_iterable(each.files for each in opened)),
        lambda: [*chain.from_iterable(each.notices() for each in opened)],
        next((each.standard_input for each in opened if each.standard_input), None),
    )


def _open(name: str, data: DataConfig, stdin: Path | None) -> Source:
    shown = in_message(name)
    if name in NAMED:
        if data.column is not None:
            raise TextError(f"{name}: {_NO_COLUMNS}")
        return open_named(name)
    stdin = stdin if name == STDIN else None
    path = stdin or Path(name)
    try:
        mode = path.stat().st_mode
    except PermissionError as error:
        raise TextError(f"{shown}: cannot read the text: {error.strerror}") from None
    except (OSError, ValueError):  # the name may contain a NUL
        mode = 0
    if stat.S_ISREG(mode):
        if data.globs and split_suffixes(path.name)[0] in ARCHIVES:
            raise TextError(
                f"{shown}: data.include and data.exclude choose files in folders, not in archives; "
                f"unpack the archive and name its folder"
            )
        files = _TextFiles(name, data, stdin)
        files.add_named(path)
        return files.source()
    if stat.S_ISDIR(mode):
        return _open_found(name, find_files(path, data.globs), data)
    if mode:
        raise TextError(
            f"{shown}: expected a file or folder, got a pipe or device; pipe it in: "
            f"gpt train - < {shown}"
        )
    if has_magic(name) and "\n" not in name and "://" not in name:  # a glob, not a text or a URL
        root = [*takewhile(lambda part: not has_magic(part), path.parts)]
        found = find_files(Path(*root), data.globs, path.parts[len(root) :])
        return _open_found(name, found, data)
    raise _no_such_text(name)


def _no_such_text(name: str) -> TextError:
    """Return the error for a text that does not exist; advise on usual mistakes in `name`."""
    advice = (
        f"expected {', '.join(NAMED)}, the path of a file or folder, a glob such as "
        f"'texts/*.txt', or - for standard input"
    )
    if name.startswith(("http://", "https://")):
        advice = "download it, for example by curl -LO, and name the file"
    elif name.partition("=")[0] in SETTINGS and takes_settings():
        advice = f"to change a setting, write {setting_arguments(name)}"
    return TextError(f"{in_message(name)}: no such text; {advice}{_for_text_itself(name)}")


def _for_text_itself(name: str) -> str:
    """Return advice if `name` may be a text instead of a file's name, else an empty string."""
    has_space = any(map(str.isspace, name))
    return "; if this is the text itself, write it to a file, and name it" if has_space else ""


def _open_found(name: str, found: Iterable[Path | Skipped], data: DataConfig) -> Source:
    files, skipped = _TextFiles(name, data), list[Skipped]()
    for each in found:
        skip = each if isinstance(each, Skipped) else files.add(each)
        if skip is not None:
            skipped.append(skip)
    skips = describe_skipped(skipped)
    if not files.paths:
        chosen, advice = "", "name a text file, or a folder with text files"
        if data.globs:
            chosen, advice = " chosen by data.include and data.exclude", "change these settings"
        raise TextError(
            f"{in_message(name)}: expected text files{chosen}, got none{skips}; {advice}"
            f"{_for_text_itself(name)}"
        )
    size = counted(sum(path.stat().st_size for path in files.paths), "byte")
    log.info(f"{in_message(name)}: {counted(len(files.paths), 'file')}, {size}{skips}")
    return files.source()


class _TextFiles:
    """Files that are read as one text, and notices about how they were read."""

    def __init__(self, name: str, data: DataConfig, stdin: Path | None = None) -> None:
        self._name, self._data, self._stdin = in_message(name), data, stdin
        self._raw = data.vocabulary == "bytes"  # whether to read binary files, too
        self._notices = Notices()
        self.paths = list[Path]()

    def source(self) -> Source:
        """Return the files as one text."""
        files, notices = tuple(self.paths), self._notices.lines
        return Source(self._name, self._documents, files, notices, self._stdin)

    def add_named(self, path: Path) -> None:
        """Add a file that the user named. Raise TextError if it is not text."""
        is_plain = split_suffixes(path.name)[0] not in (*ARCHIVES, PARQUET)
        if is_plain and not self._raw and (found := self._format(entry := self._entry(path))):
            raise _not_text(entry, found)
        if self._data.column is None and split_suffixes(path.name)[0] in TEXT_TABLES:
            column = f"; {setting_arguments('data.column=NAME')} reads a column"
            notice = f"read as plain text{column if takes_settings() else ''}"
            self._notices.add(in_message(path), notice)
        self.paths.append(path)

    def add(self, path: Path) -> Skipped | None:
        """Add a file that was found in a folder, or return why it is skipped."""
        entry, kind = self._entry(path), split_suffixes(path.name)[0]
        if kind not in ARCHIVES and (reason := self._why_skipped(entry, kind)):
            return Skipped(entry.name, reason)
        self.paths.append(path)
        return None

    def _entry(self, path: Path) -> Entry:
        return file_entry(path, STDIN if path == self._stdin else None)

    def _documents(self) -> Iterator[Document]:
        """Yield the documents of all files in order."""
        skipped, count = list[Skipped](), 0
        for each in chain.from_iterable(map(self._read, self.paths)):
            if isinstance(each, Skipped):
                skipped.append(each)
            else:
                count += 1
                yield each
        skips = describe_skipped(skipped)
        if not count:
            raise TextError(f"{self._name}: expected some text, got none{skips}")
        if skipped:
            self._notices.add(self._name, f"{counted(count, 'document')}{skips}")

    def _read(self, path: Path) -> Iterator[Document | Skipped]:
        kind, _ = split_suffixes(path.name)
        if kind in ARCHIVES:
            for entry in members(path, kind):
                yield from self._read_member(entry)
        elif kind == PARQUET:
            yield from read_parquet(path, self._data.column)
        elif self._data.column is not None and kind not in TEXT_TABLES:
            raise TextError(f"{in_message(path)}: {_NO_COLUMNS}")
        else:
            yield from self._read_entry(self._entry(path))

    def _read_member(self, entry: Entry) -> Iterator[Document | Skipped]:
        kind, compressed = split_suffixes(entry.name)
        if kind in (*ARCHIVES, PARQUET) or compressed:
            yield Skipped(entry.name, "archive, compressed file or Parquet in an archive")
        elif reason := self._why_skipped(entry, kind):
            yield Skipped(entry.name, reason)
        else:
            yield from self._read_entry(entry)

    def _read_entry(self, entry: Entry) -> Iterator[Document]:
        """Yield a file as one document, or one document per record if `data.column` is set."""
        head, (kind, _) = entry.head(), split_suffixes(entry.name)
        if self._raw and self._format(entry):
            yield Document(entry.name, entry.blocks, raw=True)
        elif (column := self._data.column) is None:
            yield Document(entry.name, partial(self._chunks, entry, head))
        else:
            yield from read_records(self._chunks(entry, head), kind, entry.name, column)

    def _chunks(self, entry: Entry, head: bytes) -> Iterator[bytes]:
        encoding = encoding_of(head, self._data.encoding)
        if encoding == self._data.encoding and not is_utf8(encoding):
            blocks = entry.blocks() if entry.start is None else [entry.start]
            encoding = "utf-8" if has_utf8(blocks) else encoding
        if encoding != self._data.encoding and not is_utf8(encoding):
            self._notices.add(entry.name, f"read as {encoding.upper().replace('_', '-')}")
        is_kept = self._raw and self._data.errors == "strict"
        errors = "surrogateescape" if is_kept else self._data.errors
        for chunk in utf8_chunks(entry.blocks(), entry.name, encoding, errors, self._notices):
            if not self._raw and is_binary(chunk):
                raise _not_text(entry, BINARY)
            yield chunk

    def _why_skipped(self, entry: Entry, kind: str) -> str | None:
        """Return the reason to skip a file with the suffix `kind`; None to read it."""
        if kind == PARQUET:
            return "Parquet without data.column" if self._data.column is None else None
        if self._data.column is not None and kind not in TEXT_TABLES:
            return f"not {TABLES}"
        if not entry.head():
            return "empty"
        return None if self._raw else self._format(entry)

    def _format(self, entry: Entry) -> str | None:
        return binary_format(entry.head(), self._data.encoding)


def _not_text(entry: Entry, found: str) -> TextError:
    return TextError(f"{entry.name}: expected plain text, got {found}; {advice(found)}")
