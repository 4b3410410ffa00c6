"""Read one document from each record of a .jsonl, .json, .csv, .tsv or .parquet file.

The setting `data.column` selects the texts in a record, or in a row of a table. It is the name of a
column, several names separated by commas, or a path into nested objects (`post.text`). In a list,
the path is followed in each element (`messages.content`). The selected values of a record are
joined by line ends; numbers become text, and nulls are skipped. If the whole setting is the name of
a column, it is not split at its commas and dots.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

from gpt.config.schema import DataConfig
from gpt.errors import TextError, listed
from gpt.text.documents import Document, Skipped
from gpt.text.reading import CHUNK_BYTES, naming_errors

TEXT_TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")  # suffixes of tables in text files
PARQUET = ".parquet"
TABLES = ".jsonl, .json, .csv, .tsv and .parquet"  # suffixes of tables, for messages
DELIMITERS = ",;\t|"  # possible delimiters of a .csv file, the most usual first
BATCH_ROWS = 64  # number of Parquet rows to decode at a time


class BadRecord(Exception):
    """Error in one record. `args[0]` is the reason, `args[1:]` are details."""


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
        TextError: the file is not in its format, lacks the column, or has a bad record while
            `data.bad_records` is `refuse`.
    """
    if kind == ".json":
        records = _json_values(b"".join(chunks).decode().strip(), name)
    elif kind in (".csv", ".tsv"):
        records = _rows(_lines(chunks), kind, name, data.column or "")
    else:
        records = _json_lines(_lines(chunks))
    yield from _documents(records, name, data)


def read_parquet(path: Path, data: DataConfig) -> Iterator[Document | Skipped]:
    """Yield a document for each row of a Parquet file. Raise errors as `read_records` does."""
    name, column = str(path), data.column
    with naming_errors(name):
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(path, buffer_size=CHUNK_BYTES) as file:
            names = file.schema_arrow.names
            if column is None:
                raise TextError(
                    f"{name}: name the column to read by --set data.column=COLUMN; there are "
                    f"{_list_columns(names)}"
                )
            keys = _split_column(column, names)
            wanted = [key if key in names else key.partition(".")[0] for key in keys]
            _check_columns(name, column, wanted, names)
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
            texts = _texts_of(record, data.column or "")
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
    """Yield the line number, from 1, and the value of each line that is not blank."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, _DECODER.decode(line)
            except (ValueError, RecursionError) as error:
                yield number, BadRecord("not JSON", str(error))


def _json_values(text: str, name: str) -> Iterator[Record]:
    """Yield the number, from 1, and the value of each JSON value in an array or a sequence."""
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
    """Yield the number of each row of a .csv or .tsv file, and its selected columns as a dict.

    Row 1 contains the names of the columns and is not yielded. In a .tsv file, quotation marks have
    no special meaning.
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
    wanted = _split_column(column, columns)
    _check_columns(name, column, wanted, columns)
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
    """Return the delimiter that splits the header `line` so that it has all names in `column`.

    If none of DELIMITERS does this, return the one that gives the most names.
    """
    columns = {each: next(csv.reader([line], delimiter=each), []) for each in DELIMITERS}
    fitting = (d for d, names in columns.items() if {*_split_column(column, names)} <= {*names})
    return next(fitting, None) or max(columns, key=lambda d: len(columns[d]))


def _texts_of(record: Any, column: str) -> list[str]:
    """Return the texts that `column` selects from `record`; raise BadRecord if this fails."""
    if not isinstance(record, dict):
        raise BadRecord("not a JSON object", f"{record!r:.40}")
    texts = []
    for key in _split_column(column, record):
        if (values := _values(record, key)) is None:
            keys = _list_columns(record)
            raise BadRecord("without data.column", f"expected {column}, got {keys}")
        for value in values:
            if isinstance(value, dict | tuple | bytes):
                raise BadRecord("without text in data.column", f"{value!r:.40}")
            texts.append(str(value).lower() if isinstance(value, bool) else str(value))
    return texts


def _values(value: Any, key: str) -> list[Any] | None:
    """Return the values at the path `key`, such as `a.b`; None if `value` has no such path.

    Nulls are skipped. In a list, collect the values of all elements that have the path; return None
    if there are elements but none has it.
    """
    if value is None:
        return []
    if isinstance(value, list):
        found = [inner for each in value if (inner := _values(each, key)) is not None]
        return [*chain.from_iterable(found)] if found or not value else None
    if not key:
        return [value]
    if not isinstance(value, dict):
        return None
    if key in value:
        return _values(value[key], "")
    first, _, rest = key.partition(".")
    return _values(value[first], rest) if first in value else None


def _split_column(column: str, names: Iterable[str]) -> list[str]:
    """Split the setting `column` at commas, unless the whole of it is one of `names`."""
    return [column] if column in names else [key.strip() for key in column.split(",")]


def _check_columns(name: str, column: str, wanted: list[str], names: Sequence[str]) -> None:
    """Raise TextError unless each column in `wanted` occurs exactly once in `names`.

    The message contains the file's `name` and the setting `column`.
    """
    if any(names.count(each) != 1 for each in wanted):
        raise TextError(
            f"{name}: expected one column {column} (data.column), got {_list_columns(names)}"
        )


def _list_columns(names: Iterable[str]) -> str:
    """List the names of columns for a message, as in `a, b`; `none` if there are none."""
    return listed([*names], 20) or "none"
