"""Show a comparison of runs as tables for the terminal."""

import json
from typing import Any

from gpt.errors import listed, shown
from gpt.evaluation.comparison import Comparison
from gpt.evaluation.intervals import Interval
from gpt.terminal import PlainTable, in_one_line, render, render_table

DROPPED_COLUMNS = ("steps", "final")  # columns that are left out, in this order, to save width
MAX_VALUE_CHARACTERS = 24  # a longer value of a setting is shown without its middle
LEGEND = (
    "val loss: of the best checkpoint, in nats per character; final: at the end of training",
    "n: number of seeds; s.e.: standard error over them; s to X: seconds until a val loss of X",
    "by text: for other text, with these models; paired over blocks of the val split",
    "by seeds: for other seeds, on this text, by Welch's method",
)


def comparison_text(comparison: Comparison, width: int | None) -> str:
    """Return the tables as text, with a legend. If `width` is small, some columns are left out."""
    tables = [
        render_table(*table, width=width, drop=DROPPED_COLUMNS) for table in _tables(comparison)
    ]
    names = [
        f"row {row.number}: {in_one_line(listed([run.name for run in row.runs], 1))}"
        for row in comparison.rows
    ]
    legend = LEGEND if comparison.differences else LEGEND[:2]
    above, below = (render([(0, line) for line in each], width) for each in (names, legend))
    return "\n\n".join([above, *tables, below])


def _tables(comparison: Comparison) -> list[PlainTable]:
    """Return the tables: settings that differ, results, and differences."""
    rows, tables = comparison.rows, list[PlainTable]()
    if keys := [*dict.fromkeys(key for row in rows for key in row.settings)]:
        lines = [["row", *keys]]
        for row in rows:
            values = [_value(row.settings.get(key, "-")) for key in keys]
            lines.append([str(row.number), *(shown(each, MAX_VALUE_CHARACTERS) for each in values)])
        if len(lines[0]) >= len(lines):  # transpose a table that is wider than long
            lines = [[*column] for column in zip(*lines, strict=True)]
        tables.append((lines[0], lines[1:], "l" + "r" * (len(lines[0]) - 1)))
    tables.append(_results(comparison))
    if comparison.differences:
        differences = [
            (str(each.row), f"{each.difference:+.4f}", _interval(each.text), _interval(each.seeds))
            for each in comparison.differences
        ]
        heading = ("row", "minus row 1", "95 % by text", "95 % by seeds")
        tables.append((heading, differences, "rrrr"))
    return tables


def _results(comparison: Comparison) -> PlainTable:
    reached = f"s to {_number(comparison.reached, 'g')}"
    heading = ["row", "n", "val loss", "s.e.", "final", "steps", "seconds", reached, "parameters"]
    lines = []
    for row in comparison.rows:
        lines.append([
            str(row.number),
            str(len(row.runs)),
            f"{row.loss.mean:.4f}",
            _number(row.loss.standard_error, ".4f"),
            _number(row.final_loss.mean if row.final_loss else None, ".4f"),
            _number(row.steps, ",.0f"),
            _number(row.seconds, ",.1f"),
            _number(row.seconds_to, ",.1f"),
            _number(row.parameters, ","),
        ])  # fmt: skip
    return heading, lines, "r" * len(heading)


def _interval(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.low:+.4f} to {interval.high:+.4f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _value(value: Any) -> str:
    """Format the value of a setting: a string as it is, else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
