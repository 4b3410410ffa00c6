"""Read one document from each record of a .jsonl, .json, .csv, .tsv or .parquet file."""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from gpt.config.schema import DataConfig
from gpt.errors import TextError
from gpt.text.columns import BadRecord, check_columns, list_columns, split_column, texts_of
from gpt.text.documents import Document, Skipped
from gpt.text.reading import CHUNK_BYTES, naming_errors

TEXT_TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")  # suffixes of tables in text files
PARQUET = ".parquet"
TABLES = ".jsonl, .json, .csv, .tsv and .parquet"  # suffixes of tables, for messages
DELIMITERS = ",;\t|"  # possible delimiters of a .csv file, the most usual first
BATCH_ROWS = 64  # number of Parquet rows to decode at a time

Record = tuple[int, Any]
"""The number of a record in its file, and its value (a BadRecord if it cannot be read)."""


def read_records(
    chunks: Iterable[bytes], kind: str, name: str, data: DataConfig
) -> Iterator[Document | Skipped]:
    """Yield a document for each record of a table in a text file.

    Args:
        chunks: the content of the file in UTF-8.
        kind: the suffix of the file, one of TEXT_TABLES.
        name: the name of the file, for messages.
        data: the settings: the column to read, and whether to skip bad records.

    Raises:
        TextError: the file is not in its format, lacks the column, or has a bad record that is not
            to be skipped.
    """
    if kind == ".json":
        records = _json_values(b"".join(chunks).decode().strip(), name)
    elif kind in (".csv", ".tsv"):
        records = _rows(_lines(chunks), kind, name, data.column or "")
    else:
        records = _json_lines(_lines(chunks))
    yield from _documents(records, name, data)


def read_parquet(path: Path, data: DataConfig) -> Iterator[Document | Skipped]:
    """Yield a document for each row of a Parquet file. BATCH_ROWS rows are decoded at a time.

    Raises:
        TextError: the file is damaged, lacks the column, or has a bad row that is not to be
            skipped.
    """
    name, column = str(path), data.column
    with naming_errors(name):
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(path, buffer_size=CHUNK_BYTES) as file:
            names = file.schema_arrow.names
            if column is None:
                raise TextError(
                    f"{name}: name the column to read by --set data.column=COLUMN; there are "
                    f"{list_columns(names)}"
                )
            keys = split_column(column, names)
            wanted = [key if key in names else key.partition(".")[0] for key in keys]
            check_columns(name, column, wanted, names)
            batches = file.iter_batches(BATCH_ROWS, columns=[*dict.fromkeys(wanted)])
            rows = chain.from_iterable(batch.to_pylist() for batch in batches)
            yield from _documents(enumerate(rows, start=1), name, data)


def _documents(
    records: Iterable[Record], name: str, data: DataConfig
) -> Iterator[Document | Skipped]:
    """Yield a document for each record with text.

    For a bad record, raise TextError if `data.bad_records` is `refuse`; otherwise yield `Skipped`.
    """
    for number, record in records:
        place = f"{name}:{number}"
        try:
            if isinstance(record, BadRecord):
                raise record
            texts = texts_of(record, data.column or "")
            content = "\n".join(texts).encode()
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
                yield Document(place, partial(iter, [content]))


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the decoded lines, each with its line end: LF, CRLF or CR."""
    last = b""  # the last line of a chunk may continue in the next chunk
    for chunk in chunks:
        *lines, last = (last + chunk).splitlines(keepends=True)
        yield from map(bytes.decode, lines)
    yield last.decode()


# Numbers are read as text: 1.50 must not become 1.5.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
_BETWEEN_VALUES = re.compile(r"[ \t\r\n,]*")


def _json_lines(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the line number, from 1, and the JSON value of each line that is not blank."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, _DECODER.decode(line)
            except (ValueError, RecursionError) as error:
                yield number, BadRecord("not JSON", str(error))


def _json_values(text: str, name: str) -> Iterator[Record]:
    """Yield, for each element of a JSON array, its number (from 1) and its value.

    `text` can also be a sequence of JSON values without the brackets of an array.

    Raises:
        TextError: `text` is not JSON.
    """
    at, end = (1, "]") if text.startswith("[") else (0, "")
    for number in count(1):
        at = _BETWEEN_VALUES.match(text, at).end()  # type: ignore[union-attr]
        if at + len(end) == len(text) and text.endswith(end):
            return
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise TextError(f"{name}: expected JSON, got {error} (record {number:,})") from None
        yield number, value


def _rows(lines: Iterator[str], kind: str, name: str, column: str) -> Iterator[Record]:
    """Yield, for each row of a .csv or .tsv file, its number and its values by column name.

    Only the columns in `column` are included. Row 1, with the names of all columns, is not yielded.
    In a .tsv file, quotation marks have no special meaning.
    """
    first = next(lines, "")
    with naming_errors(name):
        rows = csv.reader(
            chain([first], lines),
            delimiter=_find_delimiter(first, column) if kind == ".csv" else "\t",
            quoting=csv.QUOTE_MINIMAL if kind == ".csv" else csv.QUOTE_NONE,
            strict=True,
        )
        columns = next(rows, [])
    wanted = split_column(column, columns)
    check_columns(name, column, wanted, columns)
    for number in count(2):
        try:
            row = next(rows, None)
        except csv.Error as error:
            yield number, BadRecord("not CSV", str(error))
            continue
        if row is None:
            return
        if len(row) == len(columns):
            yield number, {key: row[columns.index(key)] for key in wanted}
        elif row:
            detail = f"expected {len(columns)}, as in the first row, got {len(row)}"
            yield number, BadRecord("with a wrong number of columns", detail)


def _find_delimiter(line: str, column: str) -> str:
    """Return the delimiter of a .csv file whose first line is `line`.

    The delimiter has to split `line` into names that include every column in `column`. If none of
    DELIMITERS does, return the one that gives the most names.
    """
    columns = {each: next(csv.reader([line], delimiter=each), []) for each in DELIMITERS}
    fitting = (d for d, names in columns.items() if {*split_column(column, names)} <= {*names})
    return next(fitting, None) or max(columns, key=lambda d: len(columns[d]))
