"""Show the description of a text as tables for the terminal, or as an HTML page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt.errors import counted, listed
from gpt.evaluation.characters import RARE_COUNT
from gpt.evaluation.text_report import LONG_LINE_CHARACTERS, TextReport
from gpt.inspection.html_page import render_page
from gpt.tables import fields_grid, make_table, render
from gpt.text.display import in_one_line, symbol
from gpt.text.documents import describe_skipped

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_ROWS = 5  # largest number of findings of each kind in the terminal
MAX_ONLY_IN_VAL = 20  # largest number of listed characters that do not occur in train
FINDINGS_HEADING = ("", "", "times", "line", "first place")


def text_table(report: TextReport, width: int = 80) -> str:
    """Render `report` as lines of at most `width` columns, at most MAX_ROWS rows in a table."""
    parts: list[tuple[int, RenderableType]] = [(0, f"{in_one_line(report.text)}\n")]
    parts += [(0, f"Warning: {in_one_line(warning)}\n") for warning in report.warnings]
    parts.append((2, fields_grid(report_fields(report))))
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
    size, duplicates = report.size, report.duplicates
    files = f", from {counted(size.files, 'file')}" if size.files else ""
    ids = "" if size.distinct == size.V else f"; {size.V:,} ids"
    longest = f"; the longest: {duplicates.longest}" if duplicates.longest else ""
    fields = [
        ("characters", f"{size.characters:,} in {counted(size.lines, 'line')}"),
        ("bytes", f"{size.bytes:,} in UTF-8{files}{describe_skipped(size.skipped)}"),
        ("vocabulary", f"{counted(size.distinct, 'distinct character')}{ids}"),
        ("train, val", f"{size.train:,} and {size.val:,} {size.unit}"),
        (
            "duplicates",
            f"{100 * duplicates.share:.1f} % of {duplicates.scanned:,} characters of val are in "
            f"lines that are also in train, {100 * duplicates.long_share:.1f} % in such lines of "
            f"{LONG_LINE_CHARACTERS} characters or more{longest}",
        ),
    ]
    if report.only_in_val:
        names = [symbol(c) for c in report.only_in_val]
        fields.append(("only in val", listed(names, MAX_ONLY_IN_VAL, " ")))
    return fields


def finding_tables(report: TextReport) -> Sequence[tuple[str, int, Sequence[tuple[str, ...]]]]:
    """Return a table for the rare characters, and one for each kind of suspicious characters.

    A table is (caption, number of distinct strings found, rows); it has at most MAX_FINDINGS rows.
    """
    kinds = [(f"rare: each occurs fewer than {RARE_COUNT} times", report.rare, report.rarest)]
    for each in report.suspicious:
        kinds.append((f"{each.kind}: {counted(each.count, 'place')}", each.distinct, each.findings))
    tables = []
    for caption, total, findings in kinds:
        rows = [
            ("".join(map(symbol, f.text)), f.name, f"{f.count:,}", f"{f.line:,}", f.excerpt)
            for f in findings
        ]
        if rows:
            tables.append((caption, total, rows))
    return tables
