"""Show a comparison of runs as tables for the terminal, in Markdown, or as one table in CSV."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from gpt.errors import counted, listed, shown
from gpt.evaluation.comparison import Comparison, Row, RowDifference
from gpt.evaluation.intervals import StudentInterval
from gpt.inspection.tables import PlainTable, render, render_table
from gpt.text.display import in_one_line

MIB_BYTES = 2**20  # bytes of one mebibyte
DROPPED_COLUMNS = ("steps", "bits/byte", "MiB", "final")  # left out in this order to save width
MAX_VALUE_CHARACTERS = 24  # a longer value of a setting is shown without its middle


def comparison_text(comparison: Comparison, width: int | None) -> str:
    """Return the tables and conclusions as text. If `width` is small, some columns are left out."""
    tables = [
        render_table(*table, width=width, drop=DROPPED_COLUMNS) for table in _tables(comparison)
    ]
    names = render([(0, line) for line in _row_names(comparison)], width)
    sentences = render([(0, line) for line in _sentences(comparison)], width)
    return "\n\n".join([names, *tables, sentences])


def comparison_markdown(comparison: Comparison) -> str:
    """Return the tables and conclusions in Markdown."""
    tables = []
    for heading, rows, align in _tables(comparison):
        rule = ["---:" if side == "r" else "---" for side in align]
        cells = [[in_one_line(cell).replace("|", r"\|") for cell in row] for row in rows]
        tables.append("\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *cells)))
    return "\n\n".join([*_row_names(comparison), *tables, *_sentences(comparison)])


def comparison_csv(comparison: Comparison) -> str:
    """Return a CSV table of the rows, each with its loss minus the loss of the first row."""
    differences = {each.row: each for each in comparison.differences}
    records = [_record(row, differences.get(row.number)) for row in comparison.rows]
    file = io.StringIO()
    keys = dict.fromkeys(key for record in records for key in record)
    writer = csv.DictWriter(file, [*keys], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue()


def _record(row: Row, difference: RowDifference | None) -> dict[str, Any]:
    """Return the values of `row` for the CSV table, by column. Unknown values are None."""
    means = {"loss": row.loss, "final_loss": row.final_loss, "bits_per_byte": row.bits_per_byte}
    record: dict[str, Any] = {
        "row": row.number,
        "runs": " ".join(run.name for run in row.runs),
        "n": len(row.runs),
        "seeds": " ".join(str(run.seed) for run in row.runs if run.seed is not None),
    }
    record |= {key: _value(value) for key, value in row.settings.items()}
    for key, mean in means.items():
        record |= {key: mean and mean.mean, f"{key}_standard_error": mean and mean.standard_error}
    record |= {"steps": row.steps, "seconds": row.seconds}
    record |= {f"seconds_to_{loss:g}": seconds for loss, seconds in row.seconds_to.items()}
    record |= {"parameters": row.parameters, "memory_bytes": row.memory_bytes}
    if difference is not None:
        record["difference"] = difference.difference
        for key, interval in (("text", difference.text), ("seeds", difference.seeds)):
            record |= {
                f"{key}_low": interval and interval.low,
                f"{key}_high": interval and interval.high,
            }
        record |= {"is_different": difference.is_different, "conclusion": difference.conclusion}
    return record


def _tables(comparison: Comparison) -> list[PlainTable]:
    """Return the tables: settings that differ, results, and differences."""
    rows, tables = comparison.rows, list[PlainTable]()
    keys = [*dict.fromkeys(key for row in rows for key in row.settings)]
    cells = [
        [shown(_value(_rounded(row.settings.get(key, "-"))), MAX_VALUE_CHARACTERS) for key in keys]
        for row in rows
    ]
    numbers = [str(row.number) for row in rows]
    if keys and len(rows) > len(keys):  # the longer side goes downwards
        lines = [[number, *line] for number, line in zip(numbers, cells, strict=True)]
        tables.append((["row", *keys], lines, "r" * (len(keys) + 1)))
    elif keys:
        lines = [[key, *column] for key, column in zip(keys, zip(*cells, strict=True), strict=True)]
        tables.append((["setting", *numbers], lines, "l" + "r" * len(rows)))
    tables.append(_results(rows))
    if comparison.differences:
        tables.append(_differences(comparison))
    return tables


def _results(rows: Sequence[Row]) -> PlainTable:
    targets = [f"s to {loss:g}" for loss in rows[0].seconds_to]
    heading = ["row", "n", "val loss", "s.e.", "bits/byte", "final", "steps", "seconds", *targets,
               "parameters", "MiB"]  # fmt: skip
    lines = []
    for row in rows:
        mib = row.memory_bytes and row.memory_bytes / MIB_BYTES
        lines.append([
            str(row.number),
            str(len(row.runs)),
            f"{row.loss.mean:.4f}",
            _number(row.loss.standard_error, ".4f"),
            _number(row.bits_per_byte.mean if row.bits_per_byte else None, ".3f"),
            _number(row.final_loss.mean if row.final_loss else None, ".4f"),
            _number(row.steps, ",.0f"),
            _number(row.seconds, ",.1f"),
            *(_number(seconds, ",.1f") for seconds in row.seconds_to.values()),
            _number(row.parameters, ","),
            _number(mib, ",.0f"),
        ])  # fmt: skip
    return heading, lines, "r" * len(heading)


def _differences(comparison: Comparison) -> PlainTable:
    lines = [
        (str(each.row), f"{each.difference:+.4f}", _interval(each.text), _interval(each.seeds))
        for each in comparison.differences
    ]
    return ("row", "minus row 1", "95 % by text", "95 % by seeds"), lines, "rrrr"


def _row_names(comparison: Comparison) -> list[str]:
    """Return a line for each row, with the names of its runs: `row 1: base and 2 more`."""
    return [
        f"row {row.number}: {in_one_line(listed([run.name for run in row.runs], 1))}"
        for row in comparison.rows
    ]


def _sentences(comparison: Comparison) -> list[str]:
    """Return the conclusions, and sentences that explain the numbers in the tables."""
    sentences = [f"row {each.row}: {each.conclusion}" for each in comparison.differences]
    sentences += [
        "losses: nats per character of val; val loss: best checkpoint",
        "s.e.: standard error over seeds; MiB: estimated memory of training on this machine",
    ]
    if comparison.differences:
        blocks = "none, as the losses of blocks are unknown"
        if comparison.blocks > 1:
            blocks = (
                f"paired over {counted(comparison.blocks, 'block')} of {comparison.block:,} "
                f"characters, for these models"
            )
        sentences += [f"by text: {blocks}", "by seeds: Welch's interval, for this text"]
    if (m := len(comparison.differences)) > 1:
        sentences.append(
            f"{m} comparisons: each interval misses the true difference in 1 of 20 cases"
        )
    return sentences


def _interval(interval: StudentInterval | None) -> str:
    return "-" if interval is None else f"{interval.low:+.4f} to {interval.high:+.4f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _rounded(value: Any) -> Any:
    """Round a float to three significant digits."""
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _value(value: Any) -> str:
    """Format the value of a setting as JSON, or as plain text if it is a string."""
    return value if isinstance(value, str) else json.dumps(value)
