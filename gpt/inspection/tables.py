"""Tables for the terminal, laid out by rich as plain text."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt.text.display import in_one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

UNLIMITED_WIDTH = 10_000  # columns of a line that goes to a pipe or a file
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
        heading: the title of each column.
        rows: the cells of each row.
        align: "l" or "r" for each column.
        width: the columns of the terminal; None for a pipe or a file, which takes long lines.
        drop: the titles of columns to leave out, in this order, until the table fits `width`.
    """
    from rich.measure import measure_renderables

    console = _console(UNLIMITED_WIDTH)
    shown, droppable = [*range(len(heading))], [*drop]
    while True:
        table = make_table(
            [heading[i] for i in shown],
            [[row[i] for i in shown] for row in rows],
            "".join(align[i] for i in shown),
        )
        measured = measure_renderables(console, console.options, [table]).maximum
        if width is None or measured <= width or not droppable:
            return render([(0, table)], width)
        shown.remove(heading.index(droppable.pop(0)))


def make_table(
    heading: Sequence[str],
    rows: Sequence[Sequence[str]],
    align: str,
    *,
    width: int | None = None,
) -> "Table":
    """Make a table with two spaces between its columns.

    Args:
        heading: the title of each column; hidden if all are empty.
        rows: the cells of each row.
        align: "l" or "r" for each column.
        width: cut the cells to fit these columns: the last one takes what the others leave.
    """
    from rich.table import Table

    fills = width is not None and align.endswith("l")
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        show_header=any(heading),
        width=width if fills else None,
    )
    for i, (title, side) in enumerate(zip(heading, align, strict=True)):
        last = i == len(heading) - 1
        table.add_column(
            title,
            justify="right" if side == "r" else "left",
            no_wrap=True,
            max_width=None if last or width is None else min(MAX_CELL_WIDTH, 3 * width // 8),
            ratio=1 if last and fills else None,
        )
    for row in rows:
        table.add_row(*map(in_one_line, row))
    return table


def render(parts: Sequence[tuple[int, "RenderableType"]], width: int | None) -> str:
    """Render parts one below the other, in lines of at most `width` columns.

    Each of the `parts` is an indent in columns and a string or another renderable of rich.
    """
    from rich.padding import Padding

    console = _console(width or UNLIMITED_WIDTH)
    with console.capture() as capture:
        for indent, part in parts:
            console.print(Padding(part, (0, 0, 0, indent), expand=False))
    return "\n".join(line.rstrip() for line in capture.get().split("\n")).rstrip("\n")


def _console(width: int) -> "Console":
    """Return a console that renders plain text and reads no markup."""
    from rich.console import Console

    return Console(
        file=io.StringIO(),
        width=width,
        color_system=None,
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
