"""The command `gpt runs`: list or delete runs."""

import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import typer

from gpt.cli.options import JsonFlag, duration, flag, option, show, show_json, terminal_width
from gpt.errors import CheckpointError, GPTError, Unreadable, listed, without_middle
from gpt.terminal import render_table, visible

HEADING = ("RUN", "TEXT", "STEPS", "VAL LOSS", "BITS/BYTE", "PARAMETERS", "SIZE", "AGE", "STATE")
ALIGN = "llrrrrrrl"
DROPPED = ("SIZE", "PARAMETERS", "TEXT", "BITS/BYTE", "AGE")  # omitted one by one to save width
MAX_NAME = 20  # a longer name of a run or a text is shown without its middle


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run on disk. Without a readable checkpoint, fields that need one are None."""

    name: str  # path below runs/; SWEEP/RUN for a run of a sweep
    state: str  # running, stopped, finished, empty (no checkpoint yet), damaged or unreadable
    text: str | None = None
    step: int | None = None
    steps: int | None = None
    val_loss: float | None = None  # val loss of the best checkpoint, in nats per `unit`
    bits_per_byte: float | None = None  # `val_loss` in bits per byte of UTF-8
    unit: str | None = None  # what an id stands for: "character" or "byte"
    parameters: int | None = None
    bytes: int = 0
    age_s: float = 0.0  # seconds since the last checkpoint; if none, since the folder changed


def runs(
    delete: list[str] | None = option(
        "RUN",
        "Delete a run or sweep: its folder, or its name under runs/. Asks first. Repeat for more.",
    ),
    yes: bool = flag("--yes", "Delete without asking."),
    as_json: JsonFlag = False,
) -> None:
    """List the runs under runs/, newest first, or delete one."""
    from gpt.runs.folder import delete_run, find_to_delete

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
    found = list_runs()
    if as_json:
        show_json({"runs": [asdict(run) for run in found]})
    elif not found:
        show("no runs under runs/; start one with: gpt train\n")
    else:
        rows = [_row(run) for run in found]
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


def list_runs() -> list[RunSummary]:
    """Summarise all runs in `runs/`, newest first. Unreadable runs have only a name and a state."""
    from gpt.runs.folder import RUNS, is_run, run_folders

    runs = []
    for run in run_folders():
        name = run.relative_to(RUNS).as_posix()
        try:
            if is_run(run):
                runs.append(_summarise(run, name))
        except (OSError, Unreadable):
            runs.append(RunSummary(name, "unreadable"))
    return sorted(runs, key=lambda run: run.age_s)


def _summarise(run: Path, name: str) -> RunSummary:
    from gpt.model.shapes import parameter_count
    from gpt.runs.format import INDEX, has_checkpoint
    from gpt.runs.lock import is_running
    from gpt.runs.read import read_summary

    size = 0
    for folder, _, names in os.walk(run):
        for file in names:
            with suppress(OSError):  # another process may remove the file
                size += Path(folder, file).lstat().st_size
    index = run / "checkpoints" / INDEX
    age_s = time.time() - (index if index.exists() else run).stat().st_mtime
    state = "running" if is_running(run) else ""
    summary = RunSummary(name, state, bytes=size, age_s=age_s)
    try:
        last, best = read_summary(run, "last"), read_summary(run, "best")
    except CheckpointError:
        return replace(summary, state=state or ("damaged" if has_checkpoint(run) else "empty"))
    source = last.config.data.source
    return replace(
        summary,
        state=state or ("finished" if last.finished else "stopped"),
        text=source if isinstance(source, str) else listed(source, 1),
        step=last.step,
        steps=last.config.train.steps,
        val_loss=best.val_loss,
        bits_per_byte=best.bits_per_byte,
        unit=last.vocabulary.unit,
        parameters=parameter_count(last.config.model, len(last.vocabulary)),
    )


def _row(run: RunSummary) -> tuple[str, ...]:
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
