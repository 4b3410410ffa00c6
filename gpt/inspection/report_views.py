"""Show the reports of `gpt eval`, `gpt data` and `gpt compare` as tables, or as HTML pages."""

import json
from typing import TYPE_CHECKING

from gpt.errors import counted, listed, shown
from gpt.evaluation.characters import name_of
from gpt.evaluation.comparison import Comparison
from gpt.evaluation.intervals import Interval
from gpt.evaluation.text_report import LONG_LINE_CHARACTERS, TextReport
from gpt.inspection.pages import in_base64, render_page
from gpt.terminal import Indented, PlainTable, in_one_line, make_table, render, render_table, symbol
from gpt.text.vocabulary import listed_characters

if TYPE_CHECKING:
    from gpt.evaluation.evaluation_report import EvaluationReport  # imports torch, which is slow

MAX_TABLE_ROWS = 12  # largest number of rows of a table in the terminal
PAGE_IDS = 2**12  # number of ids that are shown at once
CURVE_POINTS = 512  # number of points in the curve of the loss over the text
CLAMPED_NATS = 6.0  # losses of at least this many nats get the strongest colour

MAX_ROWS = 5  # largest number of findings of each kind in the terminal
FINDINGS_HEADING = ("", "", "times", "line", "first place")

DROPPED_COLUMNS = ("steps", "final")  # columns that are left out, in this order, to save width
MAX_VALUE_CHARACTERS = 24  # a longer value of a setting is shown without its middle
LEGEND = (
    "val loss: of the best checkpoint, in nats per character; final: at the end of training",
    "n: number of seeds; s.e.: standard error over them; s to X: seconds until a val loss of X",
    "by text: for other text, with these models; paired over blocks of the val split",
    "by seeds: for other seeds, on this text, by Welch's method",
)


def evaluation_table(report: "EvaluationReport", title: str, width: int) -> str:
    """Render `report` under `title` as lines of at most `width` columns."""
    fields = make_table(("", ""), report_lines(report), "ll")
    parts: list[Indented] = [(0, f"{in_one_line(title)}\n"), (2, fields)]
    for heading, rows, align in report_tables(report):
        parts += [(0, " "), (2, make_table(heading, rows[:MAX_TABLE_ROWS], align))]
        if len(rows) > MAX_TABLE_ROWS:
            parts.append((2, f"and {len(rows) - MAX_TABLE_ROWS:,} more, all in --json"))
    return render(parts, width)


def report_tables(report: "EvaluationReport") -> list[PlainTable]:
    """Return the tables of `report`: calibration, and the loss by each property."""
    bins = report.calibration
    tables: list[PlainTable] = [
        (
            ("calibration, in %", *[""] * len(bins)),
            [
                ("probability", *[f"{100 * each.probability:.0f}" for each in bins]),
                ("right", *[f"{100 * each.accuracy:.0f}" for each in bins]),
                (f"of {report.unit}s", *[f"{100 * each.ids / report.ids:.0f}" for each in bins]),
            ],
            "l" + "r" * len(bins),
        )
    ]
    for property_, groups in report.groups.items():
        by_loss = sorted(groups, key=lambda g: -g.characters * g.loss)
        rows = [
            (symbol(g.value), f"{g.characters:,}", f"{g.loss:.4f}", f"{100 * g.accuracy:.1f} %")
            for g in (by_loss if property_ == "character" else groups)
        ]
        tables.append(((property_, "characters", "nats", "accuracy"), rows, "lrrr"))
    return tables


def report_lines(report: "EvaluationReport") -> list[tuple[str, str]]:
    """Return a label and a text for each line of the summary of `report`."""
    unit = report.unit
    sizes = f"{report.characters:,} characters, {report.bytes:,} bytes"
    per_byte = f" ({report.loss:.4f} per byte)" if unit == "byte" else ""
    interval = "none: the text is too short"
    if ends := report.interval:
        interval = f"{ends.low:.4f} to {ends.high:.4f} (95 %), for other text of this kind"
    references = [f"{each.name} {each.loss:.3f}" for each in report.references]
    lines = [
        ("text", f"{report.text}: {sizes}"),
        ("loss", f"{report.loss_per_character:.4f} nats per character{per_byte}"),
        ("interval", interval),
        (
            "bits",
            f"{report.bits_per_character:.3f} per character, {report.bits_per_byte:.3f} per byte",
        ),
        (
            "accuracy",
            f"{100 * report.accuracy:.1f} % of {unit}s are those predicted as most likely",
        ),
        (
            "calibration",
            f"expected error {100 * report.calibration_error:.1f} %: the mean difference between "
            f"the highest probability and how often it is right",
        ),
    ]
    if report.outside:
        share = report.outside / (report.outside + report.characters)
        outside = f"{counted(report.outside, 'character')} ({100 * share:.2f} %)"
        lines.insert(1, ("outside", f"not in the model's vocabulary: {outside}"))
    if references:
        lines.append(("compared", f"{', '.join(references)} nats, each given the train split"))
    if copies := report.memorisation:
        shares = (
            f"{100 * copies.copied:.1f} % of the {copies.length}-{unit} substrings of the model's "
            f"samples occur in its train split, and {100 * copies.copied_lines:.1f} % of their "
            f"lines; of those of the text, {100 * copies.in_text:.1f} % and "
            f"{100 * copies.lines_in_text:.1f} %"
        )
        lines.append(("copies", shares))
    return lines


def evaluation_page(report: "EvaluationReport", title: str) -> bytes:
    """Return an HTML file that shows `report`. Its `surprise` must not be None.

    The script of the page reads `data`. "pages" has a string for each page of the text: base64 of
    the fields `ids`, `likely`, `millinats` and `roots` of `Surprise`, one after the other. "width"
    is the number of bytes of an id.
    """
    surprise = report.surprise
    assert surprise is not None
    names, n = surprise.vocabulary.names, len(surprise.ids)
    columns = surprise.ids, surprise.likely, surprise.millinats, surprise.roots
    starts = range(0, n, PAGE_IDS)
    data = {
        "n": n,
        "k": surprise.likely.shape[1],
        "width": surprise.ids.itemsize,
        "page": PAGE_IDS,
        "clamped": CLAMPED_NATS,
        "root": surprise.root_of_1,
        "pages": [in_base64(*(column[at : at + PAGE_IDS] for column in columns)) for at in starts],
        "names": names,
        "signs": {name: sign for name in names if (sign := symbol(name)) != name},
        "titles": [name_of(name) if len(name) == 1 else name for name in names],
        "unit": surprise.vocabulary.unit,
    }
    return render_page(
        "evaluation",
        scripts=["evaluation.js"],
        report=report,
        run=title,
        fields=report_lines(report),
        tables=report_tables(report),
        curve=surprise.curve(CURVE_POINTS),
        data=data,
    )


def text_table(report: TextReport, width: int = 80) -> str:
    """Render `report` as lines of at most `width` columns; no table has more than MAX_ROWS rows."""
    parts: list[Indented] = [(0, f"{in_one_line(report.text)}\n")]
    parts += [(0, f"Warning: {in_one_line(warning)}\n") for warning in report.warnings]
    parts.append((2, make_table(("", ""), report_fields(report), "ll")))
    for caption, total, rows in finding_tables(report):
        table = make_table(FINDINGS_HEADING, rows[:MAX_ROWS], "llrrl")
        parts += [(2, f"\n{in_one_line(caption)}"), (4, table)]
        if total > MAX_ROWS:
            parts.append((4, f"and {total - MAX_ROWS:,} more"))
    return render(parts, width)


def text_page(report: TextReport) -> bytes:
    """Render `report` as an HTML file that needs no network and runs no script."""
    return render_page(
        "text_report",
        report=report,
        fields=report_fields(report),
        tables=finding_tables(report),
        heading=FINDINGS_HEADING,
    )


def report_fields(report: TextReport) -> list[tuple[str, str]]:
    """Return a label and a text for each line of the summary of `report`."""
    files = f", from {counted(report.files, 'file')}" if report.files else ""
    ids = "" if report.distinct == report.V else f"; {report.V:,} ids"
    fields = [
        ("characters", f"{report.characters:,} in {counted(report.lines, 'line')}{files}"),
        ("vocabulary", f"{counted(report.distinct, 'distinct character')}{ids}"),
        ("train, val", f"{report.train:,} and {report.val:,} {report.unit}"),
        (
            "duplicates",
            f"{100 * report.duplicate_share:.1f} % of val is in lines that are also in train, "
            f"{100 * report.long_duplicate_share:.1f} % in such lines of {LONG_LINE_CHARACTERS} "
            f"characters or more",
        ),
    ]
    if report.only_in_val:
        fields.append(("only in val", listed_characters(report.only_in_val)))
    return fields


def finding_tables(report: TextReport) -> list[tuple[str, int, list[tuple[str, ...]]]]:
    """Return (caption, number of distinct strings, rows of a table) for each kind of finding."""
    tables = []
    for each in report.findings:
        rows: list[tuple[str, ...]] = [
            ("".join(map(symbol, f.text)), f.name, f"{f.count:,}", f"{f.line:,}", f.excerpt)
            for f in each.findings
        ]
        tables.append((f"{each.kind}: {counted(each.count, 'place')}", each.distinct, rows))
    return tables


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
            values = [row.settings.get(key, "-") for key in keys]
            texts = [each if isinstance(each, str) else json.dumps(each) for each in values]
            lines.append([str(row.number), *(shown(each, MAX_VALUE_CHARACTERS) for each in texts)])
        if len(lines[0]) >= len(lines):  # transpose a table with at least as many columns as lines
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
