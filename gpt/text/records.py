"""Read one document from each record of a .jsonl, .json, .csv, .tsv or .parquet file."""

import io
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpt.errors import TextError, counted
from gpt.text.columns import (
    BadRecord,
    check_columns,
    first_key,
    list_columns,
    split_column,
    text_of,
)
from gpt.text.documents import Document, Notices, Skipped
from gpt.text.reading import CHUNK_BYTES, ExpansionLimit, naming_errors

TEXT_TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")  # tables that are text files
PARQUET = ".parquet"
TABLES = ".jsonl, .json, .csv, .tsv and .parquet"  # for messages
DELIMITERS = ",;\t|"  # possible delimiters of a .csv file, the most usual first
MAX_RECORD_CHARACTERS = 1 << 28  # length of a row of a .csv, or of a value in a .json
MAX_TOKEN_CHARACTERS = 16  # length of a JSON escape or literal that the end of a chunk may cut
BATCH_ROWS = 1024  # largest number of Parquet rows to decode at a time
BATCH_BYTES = 1 << 24  # bytes of Parquet to decode at a time, unless one row has more
_LINE_END = r"(?:\r\n|\r|\n|\Z)"
_LINE = re.compile(rf"[^\r\n]*+{_LINE_END}")
_BETWEEN_VALUES = re.compile(r"[ \t\r\n,]*")


def read_records(
    chunks: Iterable[bytes], kind: str, name: str, column: str, notices: Notices, *, skip_bad: bool
) -> Iterator[Document | Skipped]:
    """Yield a document for each record of a text file.

    Args:
        chunks: the content of the file in UTF-8.
        kind: one of TEXT_TABLES.
        name: the file's name, for messages.
        column: `data.column`.
        notices: an unusual delimiter is added to these.
        skip_bad: yield bad records as Skipped instead of raising TextError.

    Raises:
        TextError: the file is not in that format, has no such column, or has a bad record.
    """
    text = io.TextIOWrapper(io.BufferedReader(_ChunkStream(chunks)), "utf-8", newline="")
    if kind == ".json":
        records = _json_values(text, name)
    else:
        is_table = kind in (".csv", ".tsv")
        records = _rows(text, kind, name, column, notices) if is_table else _json_lines(text)
    yield from _documents(records, name, column, skip_bad)


def read_parquet(path: Path, column: str | None, *, skip_bad: bool) -> Iterator[Document | Skipped]:
    """Yield a document for each row of a Parquet file.

    Args:
        path: the file, which is decoded in batches of rows.
        column: `data.column`.
        skip_bad: yield bad rows as Skipped instead of raising TextError.

    Raises:
        TextError: there is no such column, the file is damaged or a decompression bomb, or a row is
            bad.
    """
    name = str(path)
    with naming_errors(name):
        try:
            import pyarrow.parquet
        except ImportError:
            raise TextError(
                f"{name}: Parquet is read with pyarrow, which is not installed: pip install pyarrow"
            ) from None
        metadata = pyarrow.parquet.read_metadata(path)
        names = metadata.schema.to_arrow_schema().names
        if column is None:
            raise TextError(
                f"{name}: name the column to read by --set data.column=COLUMN; there are "
                f"{list_columns(names)}"
            )
        keys = split_column(column, names)
        wanted = [key if key in names else first_key(key)[0] for key in keys]
        check_columns(name, column, wanted, names)
        yield from _documents(_parquet_rows(path, metadata, wanted), name, column, skip_bad)


def _documents(
    records: Iterable[tuple[int, Any]], name: str, column: str, skip_bad: bool
) -> Iterator[Document | Skipped]:
    """Yield a document for each numbered record that has a text."""
    for number, record in records:
        place = f"{name}:{number}"
        text = text_of(record, column)
        if isinstance(text, BadRecord):
            if not skip_bad:
                raise TextError(
                    f"{place}: {text}; correct this record, or skip and count such records: "
                    f"--set data.bad_records=skip"
                )
            yield Skipped(place, text.reason)
        elif text is not None:
            yield _document(text, place)


def _document(text: str, name: str) -> Document:
    size = CHUNK_BYTES // 4  # a character has at most 4 bytes
    parts = range(0, len(text), size)
    return Document(name, lambda: (text[i : i + size].encode() for i in parts))


def _parquet_rows(
    path: Path, metadata: Any, columns: list[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the values of each row, up to the expansion limit.

    Repeated values are stored once (`read_dictionary`) and expanded row by row.
    """
    import pyarrow.parquet

    leaves = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    parents = tuple(f"{column}." for column in columns)
    used = [i for i, leaf in enumerate(leaves) if f"{leaf}.".startswith(parents)]
    file = pyarrow.parquet.ParquetFile(
        path,
        metadata=metadata,
        buffer_size=CHUNK_BYTES,
        read_dictionary=[leaves[i] for i in used],
    )
    stored, expanded, number = ExpansionLimit(path), ExpansionLimit(path), 0
    for group in range(metadata.num_row_groups):
        chunks = [metadata.row_group(group).column(i) for i in used]
        size = sum(max(chunk.total_uncompressed_size, chunk.num_values) for chunk in chunks)
        stored.count(size)
        rows = metadata.row_group(group).num_rows
        batch_rows = min(max(rows * BATCH_BYTES // max(size, 1), 1), BATCH_ROWS)
        for batch in file.iter_batches(batch_rows, [group], columns=columns, use_threads=False):
            expanded.count(len(batch) + sum(map(_expanded_bytes, batch.columns)))
            for values in zip(*(batch.column(name) for name in columns), strict=True):
                number += 1
                yield number, {n: v.as_py() for n, v in zip(columns, values, strict=True)}


def _expanded_bytes(array: Any) -> int:
    """Return the size of an Arrow array in bytes, with repeated values counted each time."""
    import pyarrow.compute
    from pyarrow import types

    if types.is_dictionary(array.type):
        sizes = pyarrow.compute.binary_length(array.dictionary).take(array.indices)
        return pyarrow.compute.sum(sizes).as_py() or 0
    if types.is_struct(array.type):
        return sum(map(_expanded_bytes, array.flatten()))
    return _expanded_bytes(array.flatten()) if types.is_nested(array.type) else int(array.nbytes)


# --- JSON ---


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("two keys of one name")
    return found


# Numbers are read as text: 1.50 must not become 1.5.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=str
)


def _json_lines(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line that is not empty."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, _DECODER.decode(line)
            except (ValueError, RecursionError) as error:
                message = f"expected a JSON object on each line, got {error}"
                yield number, BadRecord("not JSON", message)


class _Buffer:
    """The part of a file from place `at` on, as far as it has been read into `text`."""

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._file, self.text, self.at, self.is_all = file, "", 0, False
        self.read_more()

    def read_more(self) -> None:
        """Double the text after `at`, so that repeated attempts to parse it take linear time."""
        block = self._file.read(max(CHUNK_BYTES, len(self.text) - self.at))
        self.text, self.at, self.is_all = self.text[self.at :] + block, 0, not block

    @property
    def is_too_long(self) -> bool:
        """Whether the text after `at` has more characters than a record may have."""
        return len(self.text) - self.at > MAX_RECORD_CHARACTERS


def _json_values(file: io.TextIOWrapper, name: str) -> Iterator[tuple[int, Any]]:
    """Yield the elements of a JSON array, or of a sequence of JSON values.

    Raises:
        TextError: the file is not JSON.
    """
    buffer, number = _Buffer(file), 0
    buffer.at = len(buffer.text) - len(buffer.text.lstrip())
    is_array = buffer.text.startswith("[", buffer.at)
    buffer.at += is_array
    while True:
        text, at = buffer.text, _BETWEEN_VALUES.match(buffer.text, buffer.at).end()  # type: ignore[union-attr]
        buffer.at = at
        if buffer.is_all and (text[at:].strip() == "]" if is_array else at == len(text)):
            return
        try:
            value, end = _DECODER.raw_decode(text, at)
            error, may_be_cut = "", end == len(text)  # 12 may be the start of 123
        except (ValueError, RecursionError) as caught:
            error, position = str(caught), getattr(caught, "pos", -1)
            may_be_cut = position > len(text) - MAX_TOKEN_CHARACTERS or "Unterminated" in error
        if may_be_cut and not buffer.is_all and not (error and buffer.is_too_long):
            buffer.read_more()
        elif error:
            raise TextError(f"{name}: expected JSON, got {error} (after {number:,} records)")
        else:
            number, buffer.at = number + 1, end
            yield number, value


# --- rows of a .csv (RFC 4180), or of a .tsv, which has no quotation marks ---


def _rows(
    file: io.TextIOWrapper, kind: str, name: str, column: str, notices: Notices
) -> Iterator[tuple[int, dict[str, str] | BadRecord]]:
    """Yield the number and the wanted values of each row.

    The csv module is not used because its limit on the length of a field is global.
    """
    buffer, number = _Buffer(file), 1
    usual = delimiter = "\t" if kind == ".tsv" else ","
    declared = re.match(r"sep=(.)[ \t]*(\r\n|\r|\n)", buffer.text)  # a first line by Excel
    if kind == ".csv" and declared:
        delimiter, number, buffer.at = declared[1], 2, declared.end()
    elif kind == ".csv":
        delimiter = _find_delimiter(buffer, column)
    rows = _RowReader(buffer, delimiter, has_quotes=kind == ".csv")
    columns = rows.read() or []
    if isinstance(columns, BadRecord):
        raise TextError(f"{name}:{number}: {columns}; correct the names of columns")
    wanted = split_column(column, columns)
    check_columns(name, column, wanted, columns)
    if delimiter != usual:
        notices.add(name, f"columns are separated by {delimiter!r}")
    while (row := rows.read()) is not None:
        number += 1
        if isinstance(row, BadRecord):
            yield number, row
        elif len(row) == len(columns):
            yield number, {key: row[columns.index(key)] for key in wanted}
        elif row:
            expected = f"expected {counted(len(columns), 'column')}, as in the first row"
            many = "few" if len(row) < len(columns) else "many"
            yield number, BadRecord(f"with too {many} columns", f"{expected}, got {len(row)}")


def _find_delimiter(buffer: _Buffer, column: str) -> str:
    """Return the delimiter that makes the wanted columns of the first row.

    If none does, return the delimiter that makes the most columns.
    """
    columns = dict[str, list[str]]()
    for delimiter in DELIMITERS:
        row = _RowReader(buffer, delimiter, has_quotes=True).read()
        columns[delimiter] = row if isinstance(row, list) else []
        buffer.at = 0
    fitting = (d for d, names in columns.items() if {*split_column(column, names)} <= {*names})
    return next(fitting, None) or max(columns, key=lambda d: len(columns[d]))


class _RowReader:
    """Read rows, divided into fields by a delimiter."""

    def __init__(self, buffer: _Buffer, delimiter: str, *, has_quotes: bool) -> None:
        self._buffer, self._delimiter = buffer, delimiter
        d = re.escape(delimiter)
        quoted = r'"(?:[^"]++|"")*+'  # without its closing quotation mark
        field = rf"[^{d}\r\n]*+"
        field = rf'(?:{quoted}"|(?!"){field})' if has_quotes else field
        self._field = re.compile(rf"(?:\A|{d})({field})")
        self._row = re.compile(rf"{field}(?:{d}{field})*+{_LINE_END}")
        self._closed_fields = re.compile(rf"(?:{field}{d})*+(?:{quoted}\Z|{field})")
        self._has_quotes = has_quotes

    def read(self) -> list[str] | BadRecord | None:
        """Return the fields of the next row, none of an empty line, and None at the end.

        A BadRecord takes only the first line of its row.
        """
        buffer = self._buffer
        while not (buffer.is_all and buffer.at == len(buffer.text)):
            text, at, may_grow = buffer.text, buffer.at, not (buffer.is_all or buffer.is_too_long)
            row = self._row.match(text, at)
            if row and (row.end() < len(text) or not may_grow):
                buffer.at = row.end()
                return self._fields(row[0].rstrip("\r\n"))
            line, closed = _LINE.match(text, at), self._closed_fields.match(text, at)
            assert line and closed  # both match the empty string
            if may_grow and (row or len(text) in (line.end(), closed.end())):
                buffer.read_more()
            else:
                buffer.at = line.end()
                return self._bad_row(text, closed.end())
        return None

    def _bad_row(self, text: str, end: int) -> BadRecord:
        """Describe a row of which the fields in `text` up to `end` are closed."""
        if end == len(text):
            message = "a quotation mark is opened and never closed"
            return BadRecord("with a quotation mark that is never closed", message)
        found = next(iter(_LINE.findall(text[end : end + 20])))
        return BadRecord(
            "with a misplaced quotation mark",
            f"expected {self._delimiter} or a line end after a closing quotation mark, got "
            f"{found!r}",
        )

    def _fields(self, row: str) -> list[str]:
        if not self._has_quotes or '"' not in row:
            return row.split(self._delimiter) if row else []
        fields = self._field.findall(row)
        return [f[1:-1].replace('""', '"') if f.startswith('"') else f for f in fields]


class _ChunkStream(io.RawIOBase):
    """Make chunks of bytes readable as a file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._unread = iter(chunks), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._unread = self._unread or memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(self._unread))
        buffer[:size], self._unread = self._unread[:size], self._unread[size:]
        return size
