"""Show the description of a text: as tables for the terminal, or as a page."""

from typing import TYPE_CHECKING

from gpt.evaluation.characters import name_of
from gpt.evaluation.text_report import TextReport
from gpt.inspection.html_page import render_page
from gpt.inspection.tables import make_table, render
from gpt.inspection.text_sections import percent, sections_of
from gpt.text.display import in_one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

LABEL_WIDTH = 12  # columns of the terminal
MAX_ROWS, MAX_ROWS_OF_SEVERAL = 8, 3  # rows of a section's only table; of each of its tables
MAX_BARS = 72  # most frequent characters in the page's chart


def text_table(report: TextReport, width: int = 80) -> str:
    """Render `report` as lines of at most `width` columns; long tables are cut."""
    from rich.table import Table

    parts: list[tuple[int, RenderableType]] = [(0, in_one_line(report.text))]
    for section in sections_of(report):
        parts.append((0, f"\n{section.heading.upper()}"))
        fields = Table.grid(padding=(0, 2, 0, 0))
        fields.add_column(width=LABEL_WIDTH)
        fields.add_column(overflow="fold")
        for label, text in section.fields:
            fields.add_row(label, in_one_line(text))
        if section.fields:
            parts.append((2, fields))
        max_rows = MAX_ROWS if len(section.tables) == 1 else MAX_ROWS_OF_SEVERAL
        for table in section.tables:
            indent = 4 if table.caption else 2
            if table.caption:
                parts.append((2, in_one_line(table.caption)))
            if rows := table.rows[:max_rows]:
                shown = make_table(table.heading, rows, table.align, width=width - indent)
                parts.append((indent, shown))
            if table.total > max_rows:
                parts.append((indent, f"and {table.total - max_rows:,} more"))
        parts += [(2, in_one_line(note)) for note in section.notes]
    return render(parts, width)


def text_page(report: TextReport) -> bytes:
    """Render `report` as an HTML file that needs no network and runs no script."""
    return render_page(
        "text_report",
        report=report,
        sections=sections_of(report),
        frequent=[*report.frequencies.items()][:MAX_BARS],
        max_bars=MAX_BARS,
        name_of=name_of,
        percent=percent,
    )
