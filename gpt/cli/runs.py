"""The command `gpt runs`: list or delete runs."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpt.cli.options import JsonFlag, duration, flag, option, show, show_json, terminal_width
from gpt.errors import GPTError, without_middle
from gpt.terminal import render_table, visible

if TYPE_CHECKING:
    from gpt.runs.folder import RunSummary

HEADING = ("RUN", "TEXT", "STEPS", "VAL LOSS", "BITS/BYTE", "PARAMETERS", "SIZE", "AGE", "STATE")
ALIGN = "llrrrrrrl"
DROPPED = ("SIZE", "PARAMETERS", "TEXT", "BITS/BYTE", "AGE")  # omitted one by one to save width
MAX_NAME = 20  # a longer name of a run or a text is shown without its middle


def runs(
    delete: list[str] | None = option(
        "RUN",
        "Delete a run or sweep: its folder, or its name under runs/. Asks first. Repeat for more.",
    ),
    yes: bool = flag("--yes", "Delete without asking."),
    as_json: JsonFlag = False,
) -> None:
    """List the runs under runs/, newest first, or delete one."""
    from gpt.runs.folder import delete_run, find_to_delete, list_runs

    if delete:
        folders = [find_to_delete(name) for name in delete]
        for folder in folders:
            if not yes:
                _confirm(folder)
            delete_run(folder)
            if not as_json:
                show(f"deleted {folder}\n")
        if as_json:
            show_json({"deleted": [*map(str, folders)]})
        return
    listed = list_runs()
    if as_json:
        show_json({"runs": [asdict(run) for run in listed]})
    elif not listed:
        show("no runs under runs/; start one with: gpt train\n")
    else:
        rows = [_row(run) for run in listed]
        width = terminal_width() if sys.stdout.isatty() else None
        show(render_table(HEADING, rows, ALIGN, width=width, drop=DROPPED) + "\n")


def _confirm(run: Path) -> None:
    """Ask whether to delete `run`; raise GPTError unless the answer is yes."""
    typer.echo(visible(f"Delete {run} and its checkpoints? [y/N] "), nl=False, err=True)
    answer = sys.stdin.readline().strip().lower()
    if not sys.stdin.isatty():
        typer.echo(err=True)  # no newline was typed after the question: end its line
    if answer not in ("y", "yes"):
        raise GPTError("nothing was deleted; --yes deletes without asking")


def _row(run: "RunSummary") -> tuple[str, ...]:
    """Return the table cells of `run`. A val loss in nats per byte is followed by `/byte`."""
    is_of_sweep = "/" in run.name  # names in a sweep can differ in the middle: show them whole
    per_byte = "/byte" if run.unit == "byte" else ""
    return (
        run.name if is_of_sweep else without_middle(run.name, MAX_NAME),
        without_middle(Path(run.text or "-").name, MAX_NAME),
        "-" if run.step is None else f"{run.step:,}/{run.steps:,}",
        "-" if run.val_loss is None else f"{run.val_loss:.4f}{per_byte}",
        "-" if run.bits_per_byte is None else f"{run.bits_per_byte:.3f}",
        "-" if run.parameters is None else f"{run.parameters:,}",
        f"{run.bytes / 1e6:,.1f} MB",
        duration(max(run.age_s, 1), digits=0),
        run.state,
    )
