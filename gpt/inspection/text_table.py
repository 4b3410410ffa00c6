"""What is in a text, for a terminal: lines that are no wider than it."""

from collections.abc import Iterator

from gpt.evaluation.text_report import TextReport
from gpt.inspection.text_sections import Section, Table, sections
from gpt.text.display import columns, first_columns, in_one_line

LABEL_COLUMNS = 14
LONGEST_CELL = 30  # columns, but of the last in a row
LISTED = 8  # rows of a table; of one among several,
LISTED_EACH = 3


def text_table(report: TextReport, width: int = 80) -> str:
    """The report in lines of at most `width` columns; of long tables, the first rows."""
    blocks = [in_one_line(report.text)]
    blocks += ["\n".join(_lines(section, width)) for section in sections(report)]
    return "\n\n".join(blocks)


def _lines(section: Section, width: int) -> Iterator[str]:
    yield section.heading.upper()
    for label, text in section.fields:
        yield from _wrapped(text, width, f"  {label}".ljust(LABEL_COLUMNS))
    listed = LISTED if len(section.tables) == 1 else LISTED_EACH
    for table in section.tables:
        yield from _rows(table, listed, width)
    for note in section.notes:
        yield from _wrapped(note, width, "  ")


def _rows(table: Table, listed: int, width: int) -> Iterator[str]:
    if table.caption:
        yield f"  {table.caption}"
    indent = 4 if table.caption else 2
    if not table.rows:
        return
    rows = [row for row in (table.heading, *table.rows[:listed]) if any(row)]
    widths = [min(max(map(columns, cells)), LONGEST_CELL) for cells in zip(*rows, strict=True)]
    if table.align.endswith("l"):  # excerpts, as long as there is room
        widths[-1] = max(width - indent - sum(widths[:-1]) - 2 * len(widths[:-1]), 0)
    for row in rows:
        cells = (
            _cell(text, size, side)
            for text, size, side in zip(row, widths, table.align, strict=True)
        )
        yield first_columns(" " * indent + "  ".join(cells), width).rstrip()
    if table.total > listed:
        yield f"{' ' * indent}and {table.total - listed:,} more"


def _cell(text: str, width: int, side: str) -> str:
    cut = first_columns(text, width)
    gap = " " * (width - columns(cut))
    return f"{gap}{cut}" if side == "r" else f"{cut}{gap}"


def _wrapped(text: str, width: int, label: str) -> Iterator[str]:
    """Lines of whole words; a CJK character takes two columns, which textwrap does not know."""
    line, words = label, in_one_line(text).split(" ")
    for i, word in enumerate(words):
        if i and columns(f"{line} {word}") > width:
            yield line
            line = " " * len(label) + word
        else:
            line += f" {word}" if i else word
    yield line
