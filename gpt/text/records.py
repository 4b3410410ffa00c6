"""One column of .jsonl, .csv, .tsv or .parquet (`data.column`): each record is a document."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.errors import TextError, counted
from gpt.text.documents import Document
from gpt.text.reading import CHUNK_BYTES, telling

if TYPE_CHECKING:
    import pyarrow.parquet

RECORDS = (".jsonl", ".ndjson", ".csv", ".tsv")  # text, of which each line or row is a record
PARQUET = ".parquet"
KINDS = ".jsonl, .csv, .tsv and .parquet"  # for messages
LONGEST_FIELD = 1 << 28  # characters; a quote that is never closed makes one of all that follows
ROWS = 1024  # of a Parquet file, decoded at a time


def read_records(chunks: Iterable[bytes], kind: str, name: str, column: str) -> Iterator[Document]:
    """The column of a .jsonl, .csv or .tsv in UTF-8; a record without a value (null) is left out.

    Raises TextError for what is not that format, and where there is no such column.
    """
    read = _json_lines if kind in (".jsonl", ".ndjson") else partial(_rows, kind=kind)
    lines = io.TextIOWrapper(io.BufferedReader(_Stream(chunks)), "utf-8", newline="")
    for number, value in read(lines, name=name, column=column):
        yield _document(value, f"{name}:{number}", column)


def read_parquet(path: Path, column: str | None) -> Iterator[Document]:
    """The column of a Parquet file, some rows at a time.

    Raises TextError, with the names of its columns, if there is none of that name.
    """
    with telling(str(path)):
        file = _open_parquet(path)
        columns = file.schema_arrow.names
        if column is None or column not in columns:
            raise TextError(_no_column(str(path), column, columns))
        batches = file.iter_batches(ROWS, columns=[column], use_threads=False)
        values = (value for batch in batches for value in batch.column(0).to_pylist())
        for number, value in enumerate(values, start=1):
            if value is not None:
                yield _document(value, f"{path}:{number}", column)


def _open_parquet(path: Path) -> "pyarrow.parquet.ParquetFile":
    try:
        import pyarrow.parquet
    except ImportError:
        raise TextError(
            f"{path}: Parquet is read with pyarrow, which is not installed: pip install pyarrow"
        ) from None
    return pyarrow.parquet.ParquetFile(path, buffer_size=CHUNK_BYTES)


def _json_lines(lines: Iterable[str], name: str, column: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TextError(
                f"{name}:{number}: expected a JSON object on each line, got {error}"
            ) from None
        if not isinstance(record, dict):
            raise TextError(
                f"{name}:{number}: expected a JSON object on each line, got {line.strip():.40}"
            )
        if column not in record:
            raise TextError(_no_column(f"{name}:{number}", column, record))
        if record[column] is not None:
            yield number, record[column]


def _rows(lines: Iterable[str], name: str, column: str, kind: str) -> Iterator[tuple[int, str]]:
    csv.field_size_limit(LONGEST_FIELD)
    rows = csv.reader(lines, delimiter="\t" if kind == ".tsv" else ",", strict=True)
    try:
        columns = next(rows, [])
        if column not in columns:
            raise TextError(_no_column(name, column, columns))
        index = columns.index(column)
        for number, row in enumerate(rows, start=2):
            if row and index >= len(row):
                raise TextError(
                    f"{name}:{number}: expected {counted(len(columns), 'column')}, as the first "
                    f"row has, got {len(row)}"
                )
            if row:
                yield number, row[index]
    except csv.Error as error:
        raise TextError(f"{name}: not read as {kind} after line {rows.line_num}: {error}") from None


def _no_column(name: str, column: str | None, columns: Iterable[object]) -> str:
    there = ", ".join(map(str, columns)) or "none"
    if column is None:
        return f"{name}: name the column to read by --set data.column=COLUMN; there are {there}"
    return f"{name}: expected a column {column} (data.column), got {there}"


def _document(value: Any, name: str, column: str) -> Document:
    if not isinstance(value, str):
        raise TextError(f"{name}: expected text in column {column}, got {value!r:.40}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TextError(f"{name}: column {column} holds half of a surrogate pair") from None
    size = CHUNK_BYTES // 4  # a character has at most so many bytes
    parts = range(0, len(value), size)
    return Document(name, lambda: (value[i : i + size].encode() for i in parts))


class _Stream(io.RawIOBase):
    """A file of these bytes, for the standard library."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._rest = iter(chunks), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
