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
    log,
    option,
    terminal_width,
)
from gpt.errors import GPTError, UsageError
from gpt.lessons import FOLLOW, FOLLOW_TITLE, LESSONS
from gpt.status import phase

if TYPE_CHECKING:
    from gpt.api.model import Model
    from gpt.lessons.trained import Trained
    from gpt.text.corpus import Corpus


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
        "With --run: at most 256 characters, and at most model.T; default the start of the "
        "run's val split.",
    ),
    answer: bool = flag("--answer", "Show the answer to the lesson's exercise."),
    write: Path | None = option(
        "FILE.py",
        "Write a Python program instead of showing the lesson. Given a text file, the program "
        "trains the model of LESSON. It needs no package but torch.",
    ),
    seed: int = option(
        "N",
        "Seed of the random tensors. 1337 gives the numbers of the notebooks that set this seed. "
        "The example of six words in `head` has its own seeds.",
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
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        colour = sys.stdout.isatty() and not is_plain
        _show_in_pager(render(page, terminal_width(), colour=colour, answer=answer))
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
            raise UsageError(f"{name}: name a lesson too; lessons are {', '.join(names)}")
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
    """Load a run, and run its model on `text`; see `trained_model` for the default text."""
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
        _text_of_run(model),
    )


def _text_of_run(model: "Model") -> "Corpus | None":
    """Return the text of the run; log a warning and return None if it cannot be read."""
    from gpt.api.resolve import run_text

    try:
        return run_text(model)
    except GPTError as error:
        log.warning("%s; continuing without the run's text", error)
        return None


def _write(lesson: str, path: Path) -> None:
    """Write a new file `path`: a Python program that trains the model of a lesson."""
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


def _show_in_pager(text: str) -> None:
    """Print `text`. On a terminal, use the command in the environment variable PAGER, or less."""
    if not sys.stdout.isatty():
        typer.echo(text)
        return
    import pydoc

    os.environ.setdefault("LESS", "FRX")  # as git: exit if the text fits, keep colours and screen
    pydoc.pager(f"{text}\n")
