"""Show the description of a text as tables for the terminal, or as an HTML page."""

from gpt.errors import counted
from gpt.evaluation.text_report import LONG_LINE_CHARACTERS, TextReport
from gpt.inspection.output import render_page
from gpt.terminal import Indented, in_one_line, make_table, render, symbol
from gpt.text.prompt import listed_characters

MAX_ROWS = 5  # largest number of findings of each kind in the terminal
FINDINGS_HEADING = ("", "", "times", "line", "first place")


def text_table(report: TextReport, width: int = 80) -> str:
    """Render `report` as lines of at most `width` columns, at most MAX_ROWS rows in a table."""
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
    """Return a table for each kind of findings: caption, number of distinct strings, rows."""
    tables = []
    for each in report.findings:
        rows: list[tuple[str, ...]] = [
            ("".join(map(symbol, f.text)), f.name, f"{f.count:,}", f"{f.line:,}", f.excerpt)
            for f in each.findings
        ]
        tables.append((f"{each.kind}: {counted(each.count, 'place')}", each.distinct, rows))
    return tables
