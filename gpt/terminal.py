"""Text for the terminal: characters that are safe to print, tables, and status lines."""

import logging
import threading
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

log = logging.getLogger(__name__)

UNSAFE_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
UNSAFE_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
SIGNS = {"\n": "↵", "\t": "⇥", " ": "␣"}
DELAY_S = 0.5  # seconds before a phase is logged; shorter phases are not logged
UNLIMITED_WIDTH = 10_000  # width of lines for a pipe or a file, in terminal columns
GAP = 2  # number of spaces between two columns of a table
PlainTable = tuple[Sequence[str], Sequence[Sequence[str]], str]  # the arguments of make_table
Indented = tuple[int, "RenderableType"]  # indent in columns, and a string or object to print


def visible(text: str) -> str:
    r"""Escape the characters of `text` that are not safe to print.

    Escape line separators, surrogates, characters that change the direction of writing, and
    control characters such as ESC (`\x1b`). Keep LF and tabs.
    """
    return "".join(escaped(c) if c not in "\n\t" and _is_unsafe(c) else c for c in text)


def _is_unsafe(c: str) -> bool:
    direction = unicodedata.bidirectional(c)
    return unicodedata.category(c) in UNSAFE_CATEGORIES or direction in UNSAFE_DIRECTIONS


def symbol(c: str) -> str:
    r"""Return a visible form of a character, such as `↵` for a line end or `\x1b` for ESC."""
    if len(c) > 1:
        return c
    category = unicodedata.category(c)[0]
    if c in SIGNS or category == "M":
        return SIGNS.get(c, f"◌{c}")
    return escaped(c) if category in "CZ" else c


def escaped(c: str) -> str:
    r"""Return the character as a Python escape sequence in ASCII, such as `\x1b` or `\u202e`."""
    return c.encode("unicode_escape").decode()


def in_one_line(text: str) -> str:
    """Return `visible(text)` on one line, with `↵` for line ends and `⇥` for tabs."""
    return visible(text.translate({ord(c): SIGNS[c] for c in "\n\t"}))


@contextmanager
def phase(doing: str) -> Iterator[None]:
    """Log the start and the end of a `with` block that takes longer than DELAY_S.

    After DELAY_S, log `doing`, such as "measuring the training speed". At the end of the block, log
    its duration in seconds; this log record has the attribute `ended`. Programs that import gpt see
    both records only if they enable the logger `gpt.terminal`.
    """
    began, is_logged = time.perf_counter(), threading.Event()

    def start() -> None:
        is_logged.set()
        log.info("%s ...", doing)

    timer = threading.Timer(DELAY_S, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if is_logged.is_set():
            log.info("%s: %.1f s", doing, time.perf_counter() - began, extra={"ended": True})


def render_table(
    heading: Sequence[str],
    rows: Sequence[Sequence[str]],
    align: str,
    *,
    width: int | None = None,
    drop: Sequence[str] = (),
) -> str:
    """Render the table that `make_table` returns. If `width` is None, lines may have any length.

    If lines would exceed `width`, the columns titled `drop[0]`, `drop[1]` and so on are left out
    until the table fits. A last line names the omitted titles. Titles not in `heading` are ignored.
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

    `align` has a letter for each column: "l" (left, wrapped if too wide) or "r" (right). If all
    titles in `heading` are empty, the heading is hidden.
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
