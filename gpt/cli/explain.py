"""The command `gpt explain`: show a lesson about attention."""

import difflib
import json
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from gpt.cli.options import (
    DebugFlag,
    JsonFlag,
    flag,
    one_run,
    option,
    show_in_pager,
    terminal_colour,
    terminal_width,
)
from gpt.errors import GPTError, UsageError
from gpt.lessons import LESSONS
from gpt.status import phase


def explain(
    lesson: Annotated[
        str | None, typer.Argument(help="The lesson to show; without one, the lessons are listed.")
    ] = None,
    run_argument: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run, as --run RUN.")
    ] = None,
    run: str | None = option("RUN", "Show the lesson in this run's trained model, too."),
    text: str | None = option(
        "TEXT",
        "With --run: a text of at most model.T (and 256) characters; by default the model writes "
        "one.",
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
    run, width, colour = one_run(run_argument, run), terminal_width(), terminal_colour()
    if lesson is None and run is not None:
        raise UsageError(f"--run: name a lesson too; there are {', '.join(LESSONS)}")
    if text is not None and run is None:
        raise UsageError("--text: name a trained run too, with --run")
    if lesson is None and write is not None:
        raise UsageError(f"--write: name a lesson too; there are {', '.join(LESSONS)}")
    if lesson is None:
        typer.echo(json.dumps(LESSONS) if as_json else _lessons(width))
        return
    if lesson not in LESSONS:
        near = difflib.get_close_matches(lesson.lower(), LESSONS, n=1)
        meant = f"did you mean {near[0]}? The" if near else "the"
        raise UsageError(f"{lesson}: no such lesson; {meant} lessons are {', '.join(LESSONS)}")
    if write is not None:
        _write(lesson, write)
        typer.echo(json.dumps({"file": str(write)}) if as_json else write)
        return
    trained = None
    if run is not None:
        from gpt import api

        with phase("loading the run"):
            model = api.load(run, device="cpu")

            from gpt.lessons.trained import trained_model

        name, text = model.run.resolve().name, text and model.prepare(text)
        trained = trained_model(name, model.module, model.vocabulary, seed, text)

    with phase("loading PyTorch"):
        from gpt.lessons.build import build_page
        from gpt.lessons.render import render

    page = build_page(lesson, seed, trained)
    if as_json:
        typer.echo(json.dumps(page.to_dict()))
    else:
        show_in_pager(render(page, width, colour=colour, answer=answer))
    if not page.holds:
        raise GPTError(f"{lesson}: a check fails; see the page")


def _write(lesson: str, path: Path) -> None:
    """Write the model of a lesson to a new file."""
    from gpt.inspection.output import check_out, write_out

    check_out(path, "--write", [".py"])
    if path.exists():  # it may contain the learner's changes
        raise UsageError(f"--write {path}: expected a new file, but it exists; choose another name")
    with phase("loading PyTorch"):
        from gpt.lessons.standalone import write_program

    write_out(path, write_program(lesson, path.name).encode(), "--write")


def _lessons(width: int) -> str:
    """Format the list of lessons, in lines of at most `width` characters."""
    heading = "Lessons, each built on the last; show one with: gpt explain LESSON"
    lines = [*textwrap.wrap(heading, width), ""]
    for name, title in LESSONS.items():
        lines += textwrap.wrap(f"  {name:<15}{title}", width, subsequent_indent=" " * 17)
    return "\n".join(lines)
