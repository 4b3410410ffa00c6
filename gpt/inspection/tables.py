"""Tables for the terminal, laid out by rich as plain text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt.text.display import in_one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

UNLIMITED_WIDTH = 10_000  # columns of a line that goes to a pipe or a file
GAP = 2  # columns between two columns of a table
MAX_CELL_WIDTH = 30  # columns of a cell before the last column


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
        align: "l" or "r" for each column.
        width: the columns of the terminal; None for a pipe or a file, which takes long lines.
        drop: the titles of columns to leave out, in this order, until the table fits `width`.
    """
    from rich.cells import cell_len

    widths = [
        max(map(cell_len, map(in_one_line, cells))) for cells in zip(heading, *rows, strict=True)
    ]
    kept = [*range(len(heading))]
    for title in drop if width is not None else ():
        if sum(widths[i] + GAP for i in kept) - GAP > width:
            kept.remove(heading.index(title))
    table = make_table(
        [heading[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        "".join(align[i] for i in kept),
    )
    return render([(0, table)], width)


def make_table(
    heading: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int | None = None
) -> "Table":
    """Make a table for `render`; see `render_table`. A heading of empty titles is hidden.

    With `width`, the cells are cut: a last column of text takes the columns that the others leave.
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


def render(parts: Sequence[tuple[int, "RenderableType"]], width: int | None) -> str:
    """Render parts one below the other as plain text, in lines of at most `width` columns.

    Each of the `parts` is an indent in columns and a string or another renderable of rich.
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
