"""Read one document from each record of a .jsonl, .json, .csv, .tsv or .parquet file."""

import io
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from gpt.config.schema import DataConfig
from gpt.errors import TextError
from gpt.text.columns import (
    BadRecord,
    check_columns,
    first_key,
    list_columns,
    split_column,
    texts_of,
)
from gpt.text.documents import Document, Skipped
from gpt.text.reading import CHUNK_BYTES, ExpansionLimit, naming_errors

TEXT_TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")  # tables that are text files
PARQUET = ".parquet"
TABLES = ".jsonl, .json, .csv, .tsv and .parquet"  # as messages list them
DELIMITERS = ",;\t|"  # possible delimiters of a .csv file, the most usual first
MAX_RECORD_CHARACTERS = 1 << 28  # length of a row of a .csv, or of a value in a .json
MAX_TOKEN_CHARACTERS = 16  # length of a JSON escape or literal that the end of a chunk may cut
BATCH_ROWS = 1024  # largest number of Parquet rows to decode at a time
BATCH_BYTES = 1 << 24  # bytes of Parquet to decode at a time, unless one row has more

Record = tuple[int, Any]
"""The number of a record in its file, and its value or a BadRecord."""


def read_records(
    chunks: Iterable[bytes], kind: str, name: str, data: DataConfig
) -> Iterator[Document | Skipped]:
    """Yield a document for each record of a text file.

    Args:
        chunks: the content of the file in UTF-8.
        kind: one of TEXT_TABLES.
        name: the file's name, for messages.
        data: has the column to read, and says whether bad records are skipped.

    Raises:
        TextError: the file is not in that format, has no such column, or has a bad record.
    """
    text = io.TextIOWrapper(io.BufferedReader(_ChunkStream(chunks)), "utf-8", newline="")
    if kind == ".json":
        records = _json_values(text, name)
    elif kind in (".csv", ".tsv"):
        records = _rows(text, kind, name, data.column or "")
    else:
        records = _json_lines(text)
    yield from _documents(records, name, data)


def read_parquet(path: Path, data: DataConfig) -> Iterator[Document | Skipped]:
    """Yield a document for each row of a Parquet file, which is decoded in batches of rows.

    Raises:
        TextError: there is no such column, the file is damaged or a decompression bomb, or a row is
            bad.
    """
    name, column = str(path), data.column
    with naming_errors(name):
        import pyarrow.parquet

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
        yield from _documents(_parquet_rows(path, metadata, wanted), name, data)


def _documents(
    records: Iterable[Record], name: str, data: DataConfig
) -> Iterator[Document | Skipped]:
    """Yield a document for each numbered record that has a text."""
    for number, record in records:
        place = f"{name}:{number}"
        try:
            if isinstance(record, BadRecord):
                raise record
            texts = texts_of(record, data.column or "")
            "".join(texts).encode()
        except (BadRecord, RecursionError, UnicodeEncodeError) as error:
            bad = error if isinstance(error, BadRecord) else BadRecord("too deep or not Unicode")
            if data.bad_records == "refuse":
                raise TextError(
                    f"{place}: bad record: {': '.join(bad.args)}; correct it, or skip and count "
                    f"such records: --set data.bad_records=skip"
                ) from None
            yield Skipped(place, bad.args[0])
        else:
            if texts:
                yield _document("\n".join(texts), place)


def _document(text: str, name: str) -> Document:
    size = CHUNK_BYTES // 4  # a character has at most 4 bytes
    parts = range(0, len(text), size)
    return Document(name, lambda: (text[i : i + size].encode() for i in parts))


def _parquet_rows(path: Path, metadata: Any, columns: list[str]) -> Iterator[Record]:
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
_BETWEEN_VALUES = re.compile(r"[ \t\r\n,]*")


def _json_lines(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the number and the value of each line that is not empty."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, _DECODER.decode(line)
            except (ValueError, RecursionError) as error:
                yield number, BadRecord("not JSON", str(error))


def _json_values(file: io.TextIOWrapper, name: str) -> Iterator[Record]:
    """Yield the elements of a JSON array, or of a sequence of JSON values.

    Raises:
        TextError: the file is not JSON.
    """
    text, is_all, number = file.read(CHUNK_BYTES), False, 0
    at = len(text) - len(text.lstrip())
    is_array = text.startswith("[", at)
    at += is_array
    while True:
        at = _BETWEEN_VALUES.match(text, at).end()  # type: ignore[union-attr]
        if is_all and (text[at:].strip() == "]" if is_array else at == len(text)):
            return
        try:
            value, end = _DECODER.raw_decode(text, at)
            error, may_be_cut = "", end == len(text)  # 12 may be the start of 123
        except (ValueError, RecursionError) as caught:
            error, position = str(caught), getattr(caught, "pos", -1)
            may_be_cut = position > len(text) - MAX_TOKEN_CHARACTERS or "Unterminated" in error
            may_be_cut &= len(text) - at <= MAX_RECORD_CHARACTERS
        if may_be_cut and not is_all:  # twice as much: repeated attempts take linear time
            block = file.read(max(CHUNK_BYTES, len(text) - at))
            text, at, is_all = text[at:] + block, 0, not block
        elif error:
            raise TextError(f"{name}: expected JSON, got {error} (after {number:,} records)")
        else:
            number, at = number + 1, end
            yield number, value


# --- rows of a .csv (RFC 4180), or of a .tsv, which has no quotation marks ---


def _rows(lines: Iterator[str], kind: str, name: str, column: str) -> Iterator[Record]:
    """Yield the number and the wanted values of each row."""
    first, header, delimiter = next(lines, ""), 1, "\t"
    if kind == ".csv":
        declared = re.fullmatch(r"sep=(.)[ \t]*(\r\n|\r|\n)", first)  # a first line by Excel
        if declared:
            first, header = next(lines, ""), 2
        delimiter = declared[1] if declared else _find_delimiter(first, column)
    rows = _split_rows(chain([first], lines), delimiter, has_quotes=kind == ".csv")
    columns = next(rows, [])
    if isinstance(columns, BadRecord):
        raise TextError(f"{name}:{header}: {columns.args[0]}; correct the names of columns")
    wanted = split_column(column, columns)
    check_columns(name, column, wanted, columns)
    for number, row in enumerate(rows, start=header + 1):
        if isinstance(row, BadRecord):
            yield number, row
        elif len(row) == len(columns):
            yield number, {key: row[columns.index(key)] for key in wanted}
        elif row:
            detail = f"expected {len(columns)}, as in the first row, got {len(row)}"
            yield number, BadRecord("with a wrong number of columns", detail)


def _find_delimiter(line: str, column: str) -> str:
    """Return the delimiter that makes the wanted columns of the first row, or the most columns."""
    columns = dict[str, list[str]]()
    for delimiter in DELIMITERS:
        row = next(_split_rows(iter([line]), delimiter, has_quotes=True))
        columns[delimiter] = row if isinstance(row, list) else []
    fitting = (d for d, names in columns.items() if {*split_column(column, names)} <= {*names})
    return next(fitting, None) or max(columns, key=lambda d: len(columns[d]))


def _split_rows(
    lines: Iterator[str], delimiter: str, *, has_quotes: bool
) -> Iterator[list[str] | BadRecord]:
    """Yield the fields of each row, none of an empty line.

    The csv module is not used because its limit on the length of a field is global.
    """
    plain = re.compile(rf"[^{re.escape(delimiter)}\r\n]*+")
    quoted = re.compile('[^"]*+(?:""[^"]*+)*+')  # up to the closing quotation mark
    fields, parts, size = list[str](), list[str](), 0  # parts: lines of a field that is open
    for line in lines:
        if not parts and not (has_quotes and '"' in line):
            content = line.rstrip("\r\n")
            yield content.split(delimiter) if content else []
            continue
        at, size = 0, size + len(line)
        while True:
            if parts or line.startswith('"', at):
                start = at if parts else at + 1
                at = quoted.match(line, start).end()  # type: ignore[union-attr]
                parts.append(line[start:at])
                if at == len(line) and size <= MAX_RECORD_CHARACTERS:
                    break  # the field continues on the next line
                fields.append("".join(parts).replace('""', '"'))
                parts, at = [], at + 1
            else:
                start, at = at, plain.match(line, at).end()  # type: ignore[union-attr]
                fields.append(line[start:at])
            if not line.startswith(delimiter, at):
                is_whole = at <= len(line) and not line[at:].rstrip("\r\n")
                yield fields if is_whole else BadRecord("with a misplaced quotation mark")
                fields, size = [], 0
                break
            at += 1
    if parts:
        yield BadRecord("with a quotation mark that is never closed, and all after it")


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
