"""Select the texts in a record, or in a row of a table, by the setting `data.column`.

The setting is the name of a column, several names separated by commas, or a path into nested
objects (`post.text`). In a list, the path is followed in each element (`messages.content`). The
selected values of a record are joined by line ends; numbers become text, and nulls are skipped. If
the whole setting is the name of a column, it is not split at its commas and dots.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from gpt.errors import TextError, listed

MAX_LISTED_COLUMNS = 20  # largest number of column names in a message


class BadRecord(Exception):
    """A record cannot be read. `args[0]` is the reason, `args[1:]` are details."""


def texts_of(record: Any, column: str) -> list[str]:
    """Return the values that `column` selects from `record`, as texts. Nulls are skipped.

    Raises:
        BadRecord: `record` is not an object, lacks the column, or has no text in it.
        RecursionError: `record` is nested too deeply.
    """
    if not isinstance(record, dict):
        raise BadRecord("not a JSON object", f"{record!r:.40}")
    texts = []
    for key in split_column(column, record):
        if (values := _values(record, key)) is None:
            keys = list_columns(record)
            raise BadRecord("without data.column", f"expected {column}, got {keys}")
        for value in values:
            if isinstance(value, dict | tuple | bytes):
                raise BadRecord("without text in data.column", f"{value!r:.40}")
            texts.append(str(value).lower() if isinstance(value, bool) else str(value))
    return texts


def _values(value: Any, key: str) -> list[Any] | None:
    """Return the values at the path `key`, such as `a.b`; None if `value` has no such path.

    Nulls are skipped. From a list, return the values of all elements that have the path. If the
    list has elements, but none of them has the path, return None.
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


def split_column(column: str, names: Iterable[str]) -> list[str]:
    """Split the setting `column` at its commas, unless all of it is one of the column `names`."""
    return [column] if column in names else [key.strip() for key in column.split(",")]


def check_columns(name: str, column: str, wanted: list[str], names: Sequence[str]) -> None:
    """Raise TextError unless each column in `wanted` occurs exactly once in `names`.

    The message quotes `name`, the name of the file, and `column`, the setting `data.column`.
    """
    if any(names.count(each) != 1 for each in wanted):
        raise TextError(
            f"{name}: expected one column {column} (data.column), got {list_columns(names)}"
        )


def list_columns(names: Iterable[str]) -> str:
    """Join the names of columns for a message, as in `a, b`. Without names, return `none`."""
    return listed([*names], MAX_LISTED_COLUMNS) or "none"
