"""The command `gpt explain`: show a lesson about attention."""

import difflib
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpt.cli.options import (
    DebugFlag,
    JsonFlag,
    flag,
    option,
    terminal_width,
)
from gpt.errors import GPTError, UsageError
from gpt.lessons import FOLLOW, FOLLOW_TITLE, LESSONS
from gpt.status import phase

if TYPE_CHECKING:
    from gpt.lessons.trained import Trained


def explain(
    lesson: Annotated[
        str | None,
        typer.Argument(
            metavar="LESSON", help="The lesson to show; without one, the lessons are listed."
        ),
    ] = None,
    run_argument: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run, as --run RUN.")
    ] = None,
    run: str | None = option("RUN", "Show the lesson in this run's trained model, too."),
    text: str | None = option(
        "TEXT",
        "With --run: a text of at most model.T (and 256) characters; default the start of the "
        "run's val split.",
    ),
    answer: bool = flag("--answer", "Show the answer to the lesson's exercise."),
    write: Path | None = option(
        "FILE.py",
        "Write the model that the lessons have built so far as one Python file, which trains on a "
        "text and needs torch alone.",
    ),
    seed: int = option(
        "N",
        "Seed of the tensors. 1337 gives the numbers of the notebooks that set it; the example of "
        "six words in `head` has seeds of its own.",
        default=1337,
        min=0,
        max=2**63 - 1,
    ),
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Explain attention one step at a time, with real tensors."""
    if run is not None and run_argument is not None:
        raise UsageError(f"expected one run, got {run_argument} and --run {run}; leave out one")
    run = run_argument if run is None else run
    _check_request(lesson, run, text, write)
    if lesson is None:
        typer.echo(json.dumps(LESSONS) if as_json else _lessons(terminal_width()))
        return
    if write is not None:
        _write(lesson, write)
        typer.echo(json.dumps({"file": str(write)}) if as_json else write)
        return
    trained = None if run is None else _load(run, seed, text)
    with phase("loading PyTorch"):
        from gpt.lessons.build import build_page
        from gpt.lessons.render import render

    page = build_page(lesson, seed, trained)
    if as_json:
        typer.echo(json.dumps(page.to_dict()))
    else:
        _show_in_pager(render(page, terminal_width(), colour=_has_colours(), answer=answer))
    if not page.holds:
        raise GPTError(f"{lesson}: a check fails; see the page")


def _check_request(
    lesson: str | None, run: str | None, text: str | None, write: Path | None
) -> None:
    """Raise UsageError if the lesson does not exist, or if options do not fit together."""
    if text is not None and run is None:
        raise UsageError("--text: name a trained run too, with --run")
    names = [*LESSONS, FOLLOW]
    for name, value in (("--run", run), ("--write", write)):
        if lesson is None and value is not None:
            raise UsageError(f"{name}: name a lesson too; there are {', '.join(names)}")
    if lesson == FOLLOW and run is None:
        raise UsageError(
            f"{FOLLOW}: this lesson shows a trained model; name its run with --run RUN"
        )
    if lesson == FOLLOW and write is not None:
        raise UsageError(f"{FOLLOW}: this lesson builds no model; leave out --write")
    if lesson not in [None, *names]:
        near = difflib.get_close_matches(str(lesson).lower(), names, n=1)
        meant = f"did you mean {near[0]}? The" if near else "the"
        raise UsageError(f"{lesson}: no such lesson; {meant} lessons are {', '.join(names)}")


def _load(run: str, seed: int, text: str | None) -> "Trained":
    """Load a run and compute its model's activations on `text`, or on the start of val."""
    from gpt import api

    with phase("loading the run"):
        model = api.load(run, device="cpu")

        from gpt.lessons.trained import trained_model

    return trained_model(
        model.run.resolve().name,
        model.module,
        model.vocabulary,
        seed,
        text and model.prepare(text),
        model.corpus(),
        model.checkpoint.mixture,
    )


def _write(lesson: str, path: Path) -> None:
    """Write a Python program that trains the model of a lesson to the new file `path`."""
    from gpt.inspection.output import check_out, write_out

    check_out(path, "--write", [".py"], overwrite=True)
    if path.exists():  # it may contain the learner's changes
        raise UsageError(f"--write {path}: expected a new file, but it exists; choose another name")
    with phase("loading PyTorch"):
        from gpt.lessons.standalone import write_program

    write_out(path, write_program(lesson, path.name).encode(), "--write")


def _lessons(width: int) -> str:
    """Format the list of lessons, in lines of at most `width` characters."""
    heading = "Lessons, each built on the last; show one with: gpt explain LESSON"
    lines = [*textwrap.wrap(heading, width), ""]
    for name, title in {**LESSONS, FOLLOW: FOLLOW_TITLE}.items():
        lines += textwrap.wrap(f"  {name:<15}{title}", width, subsequent_indent=" " * 17)
    return "\n".join(lines)


def _has_colours() -> bool:
    """Return whether stdout is a terminal with colours, and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def _show_in_pager(text: str) -> None:
    """Print `text`; on a terminal, in a pager if it is longer than the screen.

    The pager is the command in the environment variable PAGER, or less.
    """
    if not sys.stdout.isatty():
        typer.echo(text)
        return
    import pydoc

    os.environ.setdefault("LESS", "FRX")  # as git does: exit if it fits, keep colours and screen
    pydoc.pager(f"{text}\n")
