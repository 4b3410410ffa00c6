"""Lay out tables as plain text for the terminal, with rich."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt.text.display import in_one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

UNLIMITED_WIDTH = 10_000  # width of lines for a pipe or a file, in terminal columns
GAP = 2  # number of spaces between two columns of a table
LABEL_WIDTH = 12  # width of the labels of `fields_grid` in terminal columns
MAX_CELL_WIDTH = 30  # largest width of a cell, except in the last column, in terminal columns
PlainTable = tuple[Sequence[str], Sequence[Sequence[str]], str]  # the first arguments of make_table


def render_table(
    heading: Sequence[str],
    rows: Sequence[Sequence[str]],
    align: str,
    *,
    width: int | None = None,
    drop: Sequence[str] = (),
) -> str:
    """Render `rows` under `heading` as lines of plain text. Control characters are escaped.

    Args:
        heading: the distinct titles of the columns.
        rows: the cells of each row.
        align: one letter for each column: "l" for left or "r" for right.
        width: the width of the terminal in columns. With None, lines may have any length.
        drop: the titles of columns to leave out, in this order, until the table fits `width`. A
            last line names the columns left out. Titles not in `heading` are ignored.
    """
    from rich.cells import cell_len

    widths = [
        max(map(cell_len, map(in_one_line, cells))) for cells in zip(heading, *rows, strict=True)
    ]
    kept = [*range(len(heading))]
    for title in drop if width is not None else ():
        if title in heading and sum(widths[i] + GAP for i in kept) - GAP > width:
            kept.remove(heading.index(title))
    table = make_table(
        [heading[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        "".join(align[i] for i in kept),
    )
    dropped = [title for i, title in enumerate(heading) if i not in kept]
    note = [(0, f"left out, as the terminal is narrow: {', '.join(dropped)}")] if dropped else []
    return render([(0, table), *note], width)


def make_table(
    heading: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int | None = None
) -> "Table":
    """Return a table for `render`.

    Args:
        heading: the titles of the columns. If all are empty, the heading is hidden.
        rows: the cells of each row.
        align: one letter for each column: "l" for left or "r" for right.
        width: the width of the terminal in columns. If it is set, long cells are cut. A table
            whose last column is left-aligned then fills the width.
    """
    from rich.table import Table

    fills = width is not None and align.endswith("l")
    table = Table(
        box=None,
        padding=(0, GAP, 0, 0),
        pad_edge=False,
        show_header=any(heading),
        width=width if fills else None,
    )
    for i, (title, side) in enumerate(zip(heading, align, strict=True)):
        is_last = i == len(heading) - 1
        table.add_column(
            title,
            justify="right" if side == "r" else "left",
            no_wrap=True,
            max_width=None if is_last or width is None else min(MAX_CELL_WIDTH, 3 * width // 8),
            ratio=1 if is_last and fills else None,
        )
    for row in rows:
        table.add_row(*map(in_one_line, row))
    return table


def fields_grid(fields: Sequence[tuple[str, str]]) -> "Table":
    """Return a table for `render` with a label and a text in each row."""
    from rich.table import Table

    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(width=LABEL_WIDTH)
    grid.add_column(overflow="fold")
    for label, text in fields:
        grid.add_row(label, in_one_line(text))
    return grid


def render(parts: Sequence[tuple[int, "RenderableType"]], width: int | None) -> str:
    """Render `parts` as plain text, one below the other, in lines of at most `width` columns.

    A part is a pair: its indent in columns, and a string or another object that rich can render.
    """
    from rich.console import Console
    from rich.padding import Padding

    console = Console(
        width=width or UNLIMITED_WIDTH,
        color_system=None,
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with console.capture() as capture:
        for indent, part in parts:
            console.print(Padding(part, (0, 0, 0, indent), expand=False))
    return "\n".join(line.rstrip() for line in capture.get().split("\n")).rstrip("\n")
