"""`gpt runs`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpt.cli.options import DebugFlag, JsonFlag, show, terminal_width
from gpt.errors import GPTError, UsageError
from gpt.text.display import visible

if TYPE_CHECKING:
    from gpt.runs.listing import RunSummary


COLUMNS = ("RUN", "TEXT", "STEPS", "VAL LOSS", "BITS/BYTE", "PARAMETERS", "SIZE", "AGE", "STATE")
LEFT_ALIGNED = ("RUN", "TEXT", "STATE")
# in this order, until a line fits the terminal
DROPPED = ("SIZE", "PARAMETERS", "TEXT", "BITS/BYTE", "AGE")


def runs(
    delete: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Delete this run or sweep: its folder, or its name under runs/. Asks first.",
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Do not ask; needed where standard input is not a terminal."),
    ] = False,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """List the runs under runs/, the newest first, or delete one."""
    if delete is not None:
        from gpt.runs.folder import delete_run, find_to_delete

        if not yes:
            _confirm(find_to_delete(delete))
        deleted = delete_run(delete)
        show(json.dumps({"deleted": str(deleted)}) if as_json else f"deleted {deleted}")
    else:
        from gpt.runs.listing import list_runs

        listed = list_runs()
        show(json.dumps({"runs": [asdict(run) for run in listed]}) if as_json else _table(listed))
    show("\n")


def _confirm(run: Path) -> None:
    """Ask whether to delete `run`. Raises GPTError unless the answer is yes."""
    if not sys.stdin.isatty():
        raise UsageError(
            f"--delete {run} asks before it deletes, and standard input is not a terminal; "
            f"add --yes"
        )
    typer.echo(visible(f"Delete {run} and its checkpoints? [y/N] "), nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise GPTError("nothing was deleted")


def _table(listed: "list[RunSummary]") -> str:
    if not listed:
        return "no runs under runs/; start one with: gpt train"
    rows = [COLUMNS]
    for run in listed:
        rows.append(
            (
                run.name if "/" in run.name else _short(run.name),  # one in a sweep ends alike
                _short(Path(run.text).name) if run.text else "-",
                "-" if run.step is None else f"{run.step:,}/{run.steps:,}",
                _loss(run),
                "-" if run.bits_per_byte is None else f"{run.bits_per_byte:.3f}",
                "-" if run.parameters is None else f"{run.parameters:,}",
                f"{run.bytes / 1e6:,.1f} MB",
                _age(run.age_s),
                run.state,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = [*range(len(COLUMNS))]
    for name in DROPPED:
        if sys.stdout.isatty() and sum(widths[i] + 2 for i in shown) - 2 > terminal_width():
            shown.remove(COLUMNS.index(name))
    lines = []
    for row in rows:
        cells = [
            row[i].ljust(widths[i]) if COLUMNS[i] in LEFT_ALIGNED else row[i].rjust(widths[i])
            for i in shown
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _loss(run: "RunSummary") -> str:
    """Nats per character, or marked as per byte: those of two units cannot be compared."""
    if run.val_loss is None:
        return "-"
    return f"{run.val_loss:.4f}{'/byte' if run.unit == 'byte' else ''}"


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
