"""Read one document from each record of a .jsonl, .json, .csv, .tsv or .parquet file.

`data.column` names the values that make up the document: a column, or several with commas between
them, or a key of nested objects (`post.text`). A key of a list stands for that key of each element
(`messages.content`, also written `messages[].content`). Several values are joined by line ends,
numbers are read as text, and nulls are left out. A name that exists as it is typed comes first.
"""

import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.errors import TextError, counted, listed
from gpt.text.documents import Document, Notice, Skipped
from gpt.text.reading import CHUNK_BYTES, ExpansionLimit, telling

if TYPE_CHECKING:
    import pyarrow.parquet

RECORDS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")  # the formats that are text
PARQUET = ".parquet"
KINDS = ".jsonl, .json, .csv, .tsv and .parquet"  # for messages
DELIMITERS = ",;\t|"  # of .csv files, the most usual first
MAX_FIELD_CHARACTERS = 1 << 28  # largest quoted field in a .csv, or value in a .json
MAX_CUT_CHARACTERS = 16  # longest escape or literal (`-Infinity`) that a chunk may end within
MAX_LISTED_COLUMNS = 20  # column names in a message
BATCH_ROWS = 1024  # largest number of Parquet rows to decode at a time
BATCH_BYTES = 1 << 24  # Parquet bytes to decode at a time, unless one row has more
QUOTED = re.compile(r'((?:[^"]++|"")*+)("?)')  # the rest of a quoted field on its line, and its end
GAP = re.compile(r"[ \t\r\n,]*")  # what separates two values in a .json

Read = Document | Skipped | Notice


class BadRecord(Exception):
    """A record that cannot be read; `reason` is how lists of skipped records describe it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def read_records(
    chunks: Iterable[bytes], kind: str, name: str, column: str, *, skip_bad: bool
) -> Iterator[Read]:
    """Yield a document for each record of a text file.

    Args:
        chunks: the content of the file in UTF-8.
        kind: one of RECORDS.
        name: the file's name, for messages.
        column: `data.column`.
        skip_bad: yield bad records as Skipped instead of raising TextError.

    Raises:
        TextError: the file is not in that format, has no such column, or has a bad record.
    """
    text = io.TextIOWrapper(io.BufferedReader(_Stream(chunks)), "utf-8", newline="")
    if kind == ".json":
        records = _json_values(text, name)
    elif kind in (".csv", ".tsv"):
        table = _Table(text, kind, name, column)
        if table.delimiter != ("\t" if kind == ".tsv" else ","):
            yield Notice(name, f"columns are separated by {table.delimiter!r}")
        records = table.records()
    else:
        records = _json_lines(text)
    yield from _documents(records, name, column, skip_bad)


def read_parquet(path: Path, column: str | None, *, skip_bad: bool) -> Iterator[Read]:
    """Yield a document for each row of a Parquet file.

    Args:
        path: the file, which is decoded in batches of rows.
        column: `data.column`.
        skip_bad: yield bad rows as Skipped instead of raising TextError.

    Raises:
        TextError: there is no such column, the file is damaged or a decompression bomb, or a row is
            bad.
    """
    with telling(str(path)):
        file = _open_parquet(path)
        names = file.schema_arrow.names
        if column is None:
            raise TextError(_no_column(str(path), column, names))
        wanted = [
            key if key in names else key.partition(".")[0].removesuffix("[]")
            for key in _keys(column, names)
        ]
        _check_columns(str(path), column, wanted, names)
        yield from _documents(_parquet_rows(path, file, wanted), str(path), column, skip_bad)


def _open_parquet(path: Path, **options: Any) -> "pyarrow.parquet.ParquetFile":
    try:
        import pyarrow.parquet
    except ImportError:
        raise TextError(
            f"{path}: Parquet is read with pyarrow, which is not installed: pip install pyarrow"
        ) from None
    return pyarrow.parquet.ParquetFile(path, buffer_size=CHUNK_BYTES, **options)


def _parquet_rows(
    path: Path, file: "pyarrow.parquet.ParquetFile", columns: list[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the values of each row, up to the expansion limit.

    Repeated values are stored once (`read_dictionary`) and expanded row by row.
    """
    metadata, number = file.metadata, 0
    leaves = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    below = tuple(f"{column}." for column in columns)
    used = [i for i, leaf in enumerate(leaves) if f"{leaf}.".startswith(below)]
    file = _open_parquet(path, metadata=metadata, read_dictionary=[leaves[i] for i in used])
    stored, expanded = ExpansionLimit(path), ExpansionLimit(path)
    for group in range(metadata.num_row_groups):
        chunks = [metadata.row_group(group).column(i) for i in used]
        size = sum(max(chunk.total_uncompressed_size, chunk.num_values) for chunk in chunks)
        stored.count(size)
        rows = metadata.row_group(group).num_rows
        at_once = min(max(rows * BATCH_BYTES // max(size, 1), 1), BATCH_ROWS)
        for batch in file.iter_batches(at_once, [group], columns=columns, use_threads=False):
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


_TOO_DEEP = "with too many levels of lists"


def _documents(
    records: Iterable[tuple[int, Any]], name: str, column: str, skip_bad: bool
) -> Iterator[Document | Skipped]:
    """Yield a document for each numbered record that has a text."""
    for number, record in records:
        place = f"{name}:{number}"
        try:
            if isinstance(record, BadRecord):
                raise record
            text = _text(record, column)
        except (BadRecord, RecursionError) as error:
            bad = error if isinstance(error, BadRecord) else BadRecord(_TOO_DEEP, _TOO_DEEP)
            if not skip_bad:
                raise TextError(
                    f"{place}: {bad}; correct this record, or skip and count such records: "
                    f"--set data.bad_records=skip"
                ) from None
            yield Skipped(place, bad.reason)
        else:
            if text is not None:
                yield _document(text, place)


def _document(text: str, name: str) -> Document:
    size = CHUNK_BYTES // 4  # a character has at most 4 bytes
    parts = range(0, len(text), size)
    return Document(name, lambda: (text[i : i + size].encode() for i in parts))


def _text(record: Any, column: str) -> str | None:
    """Return the text of a record; None if all its values are null. Raises BadRecord."""
    value = record.get(column) if isinstance(record, dict) else None
    texts = [value] if isinstance(value, str) else _texts(record, column)
    text = "\n".join(texts)
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"column {column} holds half of a surrogate pair"
        raise BadRecord("with half of a surrogate pair", message) from None
    return text if texts else None


def _texts(record: Any, column: str) -> list[str]:
    parts = record if isinstance(record, list) else [record]
    if not all(isinstance(part, dict) for part in parts):
        raise BadRecord("not a JSON object", f"expected a JSON object, got {record!r:.40}")
    texts = []
    for key in _keys(column, record):
        if (values := _values(record, key)) is None:
            names = record if isinstance(record, dict) else ["a list"]
            expected = _expected_column(column, names)
            if nested := _nested(record, key):
                expected += f"; {key} is in {nested}: --set 'data.column={nested}'"
            raise BadRecord("without data.column", expected)
        texts += [_as_text(value, column) for value in values]
    return texts


def _nested(record: Any, key: str) -> str | None:
    """Return the path of a key that is one level deeper in a record, such as `a[].b`."""
    for name, value in record.items() if isinstance(record, dict) else ():
        if isinstance(value, dict | list) and _values(value, key):
            return f"{name}{'[]' if isinstance(value, list) else ''}.{key}"
    return None


def _keys(column: str, names: Iterable[str]) -> list[str]:
    """Return the names that `column` lists, or `column` alone if `names` contains it."""
    return [column] if column in names else [key.strip() for key in column.split(",")]


def _values(value: Any, key: str) -> list[Any] | None:
    """Return the values at a key such as `a.b`, without nulls; None if there is no such key.

    The key is looked up in each element of a list. Elements without the key are skipped if another
    element has it.
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
    first = first.removesuffix("[]")
    return _values(value[first], rest) if first in value else None


def _as_text(value: Any, column: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | tuple | bytes):
        message = f"expected text or a number in column {column}, got {value!r:.40}"
        raise BadRecord("without text in data.column", message)
    return str(value)


def _no_column(name: str, column: str | None, columns: Iterable[str]) -> str:
    if column is None:
        there = listed([*columns], MAX_LISTED_COLUMNS) or "none"
        return f"{name}: name the column to read by --set data.column=COLUMN; there are {there}"
    return f"{name}: {_expected_column(column, columns)}"


def _expected_column(column: str, columns: Iterable[str]) -> str:
    there = listed([*columns], MAX_LISTED_COLUMNS) or "none"
    return f"expected a column {column} (data.column), got {there}"


def _check_columns(name: str, column: str, wanted: list[str], names: Sequence[str]) -> None:
    """Raise TextError unless each name in `wanted` occurs exactly once in `names`."""
    for each in wanted:
        if each not in names:
            raise TextError(_no_column(name, column, names))
        if names.count(each) > 1:
            raise TextError(
                f"{name}: expected one column {each} (data.column), got {names.count(each)} of "
                f"that name; rename all but one"
            )


# --- JSON ---


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("two keys of one name")
    return found


# Numbers are read as text: 1.50 must not become 1.5.
DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=str
)


def _json_lines(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, DECODER.decode(line)
            except (ValueError, RecursionError) as error:
                message = f"expected a JSON object on each line, got {error}"
                yield number, BadRecord("not JSON", message)


def _json_values(file: io.TextIOWrapper, name: str) -> Iterator[tuple[int, Any]]:
    """Yield the elements of a JSON array, or of a sequence of JSON values.

    Raises:
        TextError: the file is not JSON.
    """
    text = file.read(CHUNK_BYTES).lstrip()
    is_array = text.startswith("[")
    at, number, is_all = int(is_array), 0, False
    while True:
        at += len(GAP.match(text, at)[0])  # type: ignore[index]  # it matches the empty string
        if is_all and (text[at:].strip() == "]" if is_array else at == len(text)):
            return
        try:
            value, end = DECODER.raw_decode(text, at)
            error, may_be_cut = "", end == len(text)  # 12 may be the start of 123
        except (ValueError, RecursionError) as caught:
            error, position = str(caught), getattr(caught, "pos", -1)
            may_be_cut = position > len(text) - MAX_CUT_CHARACTERS or "Unterminated" in error
        if error and (is_all or not may_be_cut or len(text) - at > MAX_FIELD_CHARACTERS):
            raise TextError(f"{name}: expected JSON, got {error} (after {number:,} records)")
        if error or (may_be_cut and not is_all):
            block = file.read(max(CHUNK_BYTES, len(text) - at))
            text, at, is_all = text[at:] + block, 0, not block
        else:
            number, at = number + 1, end
            yield number, value


# --- rows ---


class _Table:
    """The rows of a .csv (RFC 4180) or of a .tsv, which has no quotation marks.

    The csv module is not used because its limit on the length of a field is global.
    """

    def __init__(self, lines: Iterable[str], kind: str, name: str, column: str) -> None:
        self._lines, self._taken, self._put_back = iter(lines), list[str](), list[str]()
        self._has_quotes, self._number = kind == ".csv", 1
        first = next(self._lines, "")
        self.delimiter = "\t"
        if kind == ".csv" and (declared := re.fullmatch(r"sep=(.)\s*", first)):  # by Excel
            self.delimiter, self._number, first = declared[1], 2, next(self._lines, "")
        elif kind == ".csv":
            self.delimiter = self._find_delimiter(first, column)
        try:
            self.columns = self._split(first, self.delimiter)
        except BadRecord as bad:
            raise TextError(f"{name}:{self._number}: {bad}; correct the names of columns") from None
        self._wanted = _keys(column, self.columns)
        _check_columns(name, column, self._wanted, self.columns)

    def records(self) -> Iterator[tuple[int, dict[str, str] | BadRecord]]:
        """Yield the line number and the wanted values of each row."""
        places = [(name, self.columns.index(name)) for name in self._wanted]
        size = len(self.columns)
        while line := self._next():
            self._number += 1
            number = self._number
            if not line.strip("\r\n"):
                continue
            try:
                row = self._split(line, self.delimiter)
            except BadRecord as bad:
                self._return_taken()
                yield number, bad
                continue
            if len(row) == size:
                yield number, {name: row[i] for name, i in places}
            else:
                many = "few" if len(row) < size else "many"
                yield (
                    number,
                    BadRecord(
                        f"with too {many} columns",
                        f"expected {counted(size, 'column')}, as in the first row, got {len(row)}",
                    ),
                )

    def _next(self) -> str:
        return self._put_back.pop() if self._put_back else next(self._lines, "")

    def _return_taken(self) -> None:
        """Put back all lines of the last row but the first, to be read again."""
        self._put_back += reversed(self._taken)
        self._taken = []

    def _find_delimiter(self, line: str, column: str) -> str:
        """Return the delimiter that makes the wanted columns of the first row.

        If none does, return the delimiter that makes the most columns.
        """
        columns = dict[str, list[str]]()
        for delimiter in DELIMITERS:
            columns[delimiter] = []
            with suppress(BadRecord):
                columns[delimiter] = self._split(line, delimiter)
            self._return_taken()
        fitting = (d for d, names in columns.items() if {*_keys(column, names)} <= {*names})
        return next(fitting, None) or max(columns, key=lambda d: len(columns[d]))

    def _split(self, line: str, delimiter: str) -> list[str]:
        """Return the fields of the row that begins with `line`.

        Raises BadRecord for a misplaced quotation mark.
        """
        self._taken = []
        if not self._has_quotes or '"' not in line:
            return line.rstrip("\r\n").split(delimiter)
        fields, at = list[str](), 0
        while True:
            if line.startswith('"', at):
                field, line, at = self._quoted(line, at + 1)
            else:
                end = line.find(delimiter, at)
                end = len(line.rstrip("\r\n")) if end < 0 else end
                field, at = line[at:end], end
            fields.append(field)
            if line.startswith(delimiter, at):
                at += 1
            elif line[at:].strip("\r\n"):
                raise BadRecord(
                    "with a misplaced quotation mark",
                    f"expected {delimiter} or a line end after a closing quotation mark, got "
                    f"{line[at : at + 20]!r}",
                )
            else:
                return fields

    def _quoted(self, line: str, at: int) -> tuple[str, str, int]:
        """Return the quoted field that starts at `at`, its last line, and its end in that line."""
        parts, size = list[str](), 0
        while match := QUOTED.match(line, at):
            content, closing = match.groups()
            parts.append(content)
            if closing:
                return "".join(parts).replace('""', '"'), line, match.end()
            size += len(content)
            line, at = self._next(), 0
            self._taken.append(line)
            if not line or size > MAX_FIELD_CHARACTERS:
                break
        message = "a quotation mark is opened and never closed"
        raise BadRecord("with a quotation mark that is never closed", message)


class _Stream(io.RawIOBase):
    """A file object over chunks of bytes."""

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
