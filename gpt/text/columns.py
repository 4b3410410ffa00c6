"""What `data.column` selects from a record, and from the columns of a table.

It names a column, or several with commas between them, or a key of nested objects (`post.text`).
A key of a list stands for that key of each element (`messages.content`, also written
`messages[].content`). Several values are joined by line ends, numbers are read as text, and nulls
are left out. In the exact name of a column, commas and dots have no meaning.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from gpt.errors import TextError, listed

MAX_LISTED_COLUMNS = 20  # number of column names in a message


class BadRecord(Exception):
    """A record that cannot be read. `reason` describes it in a list of skipped records."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def text_of(record: Any, column: str) -> str | BadRecord | None:
    """Return the text of a record; None if all its values are null."""
    try:
        if isinstance(record, BadRecord):
            raise record
        texts = _texts_of(record, column)
        "".join(texts).encode()
    except BadRecord as bad:
        return bad
    except RecursionError:
        return BadRecord("with too many levels of lists", "with too many levels of lists")
    except UnicodeEncodeError:
        message = f"column {column} holds half of a surrogate pair"
        return BadRecord("with half of a surrogate pair", message)
    return "\n".join(texts) if texts else None


def _texts_of(record: Any, column: str) -> list[str]:
    """Return the values of a record as text. Raises BadRecord."""
    parts = record if _is_list(record) else [record]
    if not all(isinstance(part, dict) for part in parts):
        raise BadRecord("not a JSON object", f"expected a JSON object, got {record!r:.40}")
    texts = []
    for key in split_column(column, record):
        if (values := _values(record, key)) is None:
            expected = _no_column(column, ["a list"] if _is_list(record) else record)
            if nested := _nested_path(record, key):
                expected += f"; {key} is in {nested}: --set 'data.column={nested}'"
            raise BadRecord("without data.column", expected)
        for value in values:
            if isinstance(value, dict | tuple | bytes):
                message = f"expected text or a number in column {column}, got {value!r:.40}"
                raise BadRecord("without text in data.column", message)
            texts.append(str(value).lower() if isinstance(value, bool) else str(value))
    return texts


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


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
    first, rest = first_key(key)
    return _values(value[first], rest) if first in value else None


def _nested_path(record: Any, key: str) -> str | None:
    """Return the path of a key that is one level deeper in a record, such as `a[].b`."""
    for name, value in record.items() if isinstance(record, dict) else ():
        if isinstance(value, dict | list) and _values(value, key):
            return f"{name}{'[]' if _is_list(value) else ''}.{key}"
    return None


def first_key(key: str) -> tuple[str, str]:
    """Split `a[].b.c` into `a` and `b.c`."""
    first, _, rest = key.partition(".")
    return first.removesuffix("[]"), rest


def split_column(column: str, names: Iterable[str]) -> list[str]:
    """Return the keys that `column` lists, or `column` alone if `names` contains it."""
    return [column] if column in names else [key.strip() for key in column.split(",")]


def check_columns(name: str, column: str, wanted: list[str], names: Sequence[str]) -> None:
    """Raise TextError unless each name in `wanted` occurs exactly once in `names`."""
    for each in wanted:
        if each not in names:
            raise TextError(f"{name}: {_no_column(column, names)}")
        if names.count(each) > 1:
            raise TextError(
                f"{name}: expected one column {each} (data.column), got {names.count(each)} of "
                f"that name; rename all but one"
            )


def _no_column(column: str, names: Iterable[str]) -> str:
    return f"expected a column {column} (data.column), got {list_columns(names)}"


def list_columns(names: Iterable[str]) -> str:
    """Return the names of columns for a message."""
    return listed([*names], MAX_LISTED_COLUMNS) or "none"
