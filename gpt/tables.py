"""Lay out tables as plain text for the terminal, with rich."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt.text.display import in_one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

UNLIMITED_WIDTH = 10_000  # width of lines for a pipe or a file, in terminal columns
GAP = 2  # number of spaces between two columns of a table
PlainTable = tuple[Sequence[str], Sequence[Sequence[str]], str]  # the arguments of make_table
Indented = tuple[int, "RenderableType"]  # columns of indent, and a string or object for rich


def render_table(
    heading: Sequence[str],
    rows: Sequence[Sequence[str]],
    align: str,
    *,
    width: int | None = None,
    drop: Sequence[str] = (),
) -> str:
    """Render the table that `make_table` makes. With `width` None, lines may have any length.

    The columns with the titles in `drop` are left out, in this order, until the table fits `width`
    columns. A last line names them. Titles not in `heading` are ignored.
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


def make_table(heading: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> "Table":
    """Return a table for `render`. Control characters are escaped.

    `align` has a letter for each column: "l" (wrapped in a narrow terminal) or "r". If all titles
    in `heading` are empty, the heading is hidden.
    """
    from rich.table import Table

    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=any(heading))
    for title, side in zip(heading, align, strict=True):
        if side == "r":
            table.add_column(in_one_line(title), justify="right", no_wrap=True)
        else:
            table.add_column(in_one_line(title), overflow="fold")
    for row in rows:
        table.add_row(*map(in_one_line, row))
    return table


def render(parts: Sequence[Indented], width: int | None) -> str:
    """Render `parts` as plain text, one below the other, in lines of at most `width` columns."""
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
