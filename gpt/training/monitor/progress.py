"""The progress bar: one line of the terminal, whatever its width; a widget in a notebook."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm
from tqdm.utils import disp_len, disp_trim

SHORTEST_BAR = 8  # columns, with the strokes at its ends


class TerminalBar(tqdm):  # type: ignore[type-arg]  # generic in its stubs alone
    """A tqdm that drops whole fields, the least important first, until its line fits.

    The postfix is a list of fields, separated by `, `, the most important first. The first of
    them and the time that is left are dropped last.
    """

    monitor_interval = 0  # no thread: every update looks at the clock (miniters=1)

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        """Writes over the line, and clears what is behind and below it."""

        def write(line: str) -> None:
            file.write(f"\r{line}\x1b[J")
            file.flush()

        return write

    def __str__(self) -> str:
        """The line, at most one column less wide than the terminal."""
        facts = self.format_dict
        n, total, elapsed = facts["n"], facts["total"], facts["elapsed"]
        rate = facts["rate"] or (n - facts["initial"]) / max(elapsed, 1e-9)
        left = self.format_interval((total - n) / rate) if rate else "?"
        count = [self.format_sizeof(x) if facts["unit_scale"] else str(x) for x in (n, total)]
        first, _, rest = (facts["postfix"] or "").partition(", ")
        second, _, others = rest.partition(", ")
        fields = {  # as they are shown
            "name": facts["prefix"].removesuffix(": "),
            "percent": f"{n / total:4.0%}",
            "bar": " " * SHORTEST_BAR,
            "count": f"{'/'.join(count)}",
            "time": f"{self.format_interval(elapsed)}<{left}",
            "first": first,
            "second": second,
            "others": others,
        }
        fields = {name: field for name, field in fields.items() if field}
        width = (facts["ncols"] or 80) - 1
        for name in ("others", "bar", "percent", "second", "count", "name", "time"):
            if disp_len("  ".join(fields.values())) > width:
                fields.pop(name, None)
        if "bar" in fields:
            spare = width - disp_len("  ".join(fields.values()))
            columns, fmt = SHORTEST_BAR + spare, "|{bar}|"
            fields["bar"] = self.format_meter(
                n, total, elapsed, ncols=columns, ascii=self.ascii, bar_format=fmt
            )
        return disp_trim("  ".join(fields.values()), width)


def training_bar(total: int, initial: int) -> "tqdm[Any]":
    """A bar over the steps of a run."""
    return _bar(total=total, initial=initial)


@contextmanager
def evaluation_bar(total: int) -> Iterator[Callable[[int], object]]:
    """A bar over the characters of an evaluation that takes more than a second; gives `advance`."""
    with _bar(
        total=total, desc="evaluating", unit="char", unit_scale=True, delay=1, leave=False
    ) as bar:
        yield bar.update


def _bar(**options: Any) -> "tqdm[Any]":
    """Return a widget in a notebook; elsewhere a line on stderr, if that is a terminal."""
    if "ipykernel" in sys.modules:
        from tqdm.auto import tqdm as notebook_bar

        return notebook_bar(**options)
    disable = None if sys.stderr else True  # pythonw has no stderr
    return TerminalBar(**options, disable=disable, dynamic_ncols=True, miniters=1)
