"""Read one document from each record of a .jsonl, .json, .csv, .tsv or .parquet file.

The setting `data.column` selects the texts in a record, or in a row of a table. It is the name of a
column, several names separated by commas, or a path through objects and lists (`messages.content`).
If the whole setting is the name of a column, it is not split at its commas and dots.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from gpt.errors import TextError, listed, setting_arguments, takes_settings
from gpt.files import CHUNK_BYTES
from gpt.reading.entries import naming_errors
from gpt.text.documents import Document

TEXT_TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")  # suffixes of tables in text files
PARQUET = ".parquet"
TABLES = ".jsonl, .json, .csv, .tsv and .parquet"  # suffixes of tables, for messages
DELIMITERS = ",;\t|"  # possible delimiters of a .csv file, the most usual first
BATCH_ROWS = 64  # number of Parquet rows to decode at a time

Record = tuple[int, Any]
"""(number, value): the number of a record or of its line, from 1, and the record."""


def read_records(chunks: Iterable[bytes], kind: str, name: str, column: str) -> Iterator[Document]:
    """Yield a document for each record of a UTF-8 table; `kind` is its suffix, from TEXT_TABLES.

    Raises:
        TextError: the file is not in its format, or a record lacks the column.
    """
    if kind == ".json":
        records = _json_values(b"".join(chunks).decode(), name)
    elif kind in (".csv", ".tsv"):
        records = _rows(_lines(chunks), kind, name, column)
    else:
        records = _json_lines(_lines(chunks), name)
    yield from _documents(records, name, column)


def read_parquet(path: Path, column: str | None) -> Iterator[Document]:
    """Yield a document for each row of a Parquet file. Raise the errors of `read_records`."""
    name = str(path)
    with naming_errors(name):
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(path, buffer_size=CHUNK_BYTES) as file:
            names = file.schema_arrow.names
            if column is None:
                remedy = f"add {setting_arguments('data.column=NAME')}"
                raise TextError(
                    f"{name}: {remedy if takes_settings() else 'convert it to plain text'}; its "
                    f"columns are {listed(names, 20)}"
                )
            columns = [path[0] for path in _paths(column, names) if path[0] in names]
            batches = file.iter_batches(BATCH_ROWS, columns=columns or None)
            rows = chain.from_iterable(batch.to_pylist() for batch in batches)
            yield from _documents(enumerate(rows, start=1), name, column)


def _documents(records: Iterable[Record], name: str, column: str) -> Iterator[Document]:
    """Yield a document for each text; raise TextError for a record without the column."""
    for number, record in records:
        try:
            paths = [[]] if isinstance(record, str) else _paths(column, record or ())
            found = [value for path in paths for value in values_at(record, path)]
            texts = [str(value) for value in found if value is not None]
            content = "\n".join(texts).encode()
        except UnicodeEncodeError:
            raise _bad_record(name, number, "Unicode text", "a lone surrogate") from None
        except (TypeError, RecursionError):
            found = []
        if not found:
            got = listed([*record], 20) if isinstance(record, dict) else repr(record)
            expected = f"a text at {column} (data.column can name another column)"
            raise _bad_record(name, number, expected, got)
        if texts:
            yield Document(f"{name}:{number}", partial(iter, [content]))


def _paths(column: str, names: Iterable[str]) -> list[list[str]]:
    """Split the setting `column` into paths, unless `column` as a whole is one of `names`."""
    if column in names:
        return [[column]]
    return [path.strip().split(".") for path in column.split(",")]


def values_at(value: Any, path: Sequence[str]) -> list[Any]:
    """Return the strings, numbers and nulls at `path` in a JSON value.

    If `value` is a list, or an object without the next key, apply `path` to each of its elements or
    values. Join a list at the end of `path` if its items are pieces of one text: lines that end in
    a line end, or strings and objects, as in `["See ", {"type": "bold", "text": "this"}]`.
    """
    if isinstance(value, dict):
        key, *others = path or ["text"]
        if key in value:
            return values_at(value[key], others)
        inner = [each for each in value.values() if isinstance(each, dict | list)]
        return [found for each in inner for found in values_at(each, path) if found is not None]
    if value is None or value == []:
        return [None]
    if not isinstance(value, list):
        return [] if path or isinstance(value, tuple | bytes) else [value]
    found = [each for element in value for each in values_at(element, path)]
    are_pieces = any(isinstance(each, dict) or str(each)[-1:].isspace() for each in value)
    return ["".join(map(str, filter(None, found)))] if found and are_pieces and not path else found


def _bad_record(name: str, number: int, expected: str, got: str) -> TextError:
    message = f"{name}:{number}: bad record: expected {expected}, got {got:.200}"
    return TextError(f"{message}; correct or remove it")


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the decoded lines, each with its line end: LF, CRLF or CR."""
    last = b""  # the last line of a chunk may continue in the next chunk
    for chunk in chunks:
        *lines, last = (last + chunk).splitlines(keepends=True)
        yield from map(bytes.decode, lines)
    yield last.decode()


# Numbers are read as text: 1.50 must not become 1.5.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def _json_lines(lines: Iterable[str], name: str) -> Iterator[Record]:
    """Yield the line number, from 1, and the value of each line that is not blank."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, _DECODER.decode(line)
            except (ValueError, RecursionError) as error:
                raise _bad_record(name, number, "JSON", str(error)) from None


def _json_values(text: str, name: str) -> Iterator[Record]:
    """Yield each element of an array, numbered from 1; yield any other value as number 1.

    If `text` has several values, each must be on its own line, as in .jsonl.
    """
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        if getattr(error, "msg", "") != "Extra data":
            raise _bad_record(name, getattr(error, "lineno", 1), "JSON", str(error)) from None
        yield from _json_lines(text.split("\n"), name)
    else:
        yield from enumerate(value if isinstance(value, list) else [value], start=1)


def _rows(lines: Iterator[str], kind: str, name: str, column: str) -> Iterator[Record]:
    """Yield, for each row below the heading, the number of its last line and its values."""
    first = next(lines, "")
    rows = csv.DictReader(
        chain([first], lines),
        delimiter=_delimiter(first) if kind == ".csv" else "\t",
        quoting=csv.QUOTE_MINIMAL if kind == ".csv" else csv.QUOTE_NONE,
        strict=True,
    )
    try:
        names = [*(rows.fieldnames or ())]
        for path in _paths(column, names):
            if names.count(path[0]) > 1:
                raise TextError(f"{name}: the column {path[0]} occurs twice; rename one")
        for row in rows:
            if None in row or None in row.values():
                expected = f"{len(names)} columns, as in the first row"
                got = "more" if None in row else "fewer"
                raise _bad_record(name, rows.line_num, expected, got)
            yield rows.line_num, row
    except csv.Error as error:
        raise _bad_record(name, rows.reader.line_num, "CSV", str(error)) from None


def _delimiter(line: str) -> str:
    """Return the delimiter that splits the header `line` into the most columns."""
    return max(DELIMITERS, key=lambda each: len(next(csv.reader([line], delimiter=each), [])))
