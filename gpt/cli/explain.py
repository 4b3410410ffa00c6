"""The command `gpt explain`: show a lesson about attention, or write it to a file."""

import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from gpt.cli.options import flag, option, terminal_width
from gpt.errors import GPTError, UsageError
from gpt.files import check_out, write_atomically
from gpt.lessons import FOLLOW, LESSONS, TEXTBOOK
from gpt.terminal import Indented, make_table, phase, render


def explain(
    lesson: Annotated[
        str | None,
        typer.Argument(
            metavar="LESSON", help="The lesson to show; without one, the lessons are listed."
        ),
    ] = None,
    run: str | None = option("RUN", "With `follow`: the run to look into; default the newest."),
    text: str | None = option(
        "TEXT",
        "With `follow`: at most 256 characters, and at most model.T; default the start of the "
        "run's val split.",
    ),
    answer: bool = flag("--answer", "Show the answers to the lesson's exercises."),
    write: Path | None = option(
        "FILE.py|FILE.ipynb",
        "Write the lesson as a program or as a Jupyter notebook, to edit and run, instead of "
        "showing it. `gpt explain textbook --write FILE.py` writes the whole model as one program "
        "that needs no package but torch.",
    ),
) -> None:
    """Explain a GPT, built up one step at a time with real tensors."""
    _check_request(lesson, run, text, write)
    if lesson is None:
        heading = "Lessons, each built on the last; show one with: gpt explain LESSON"
        lessons = make_table(("", ""), [*LESSONS.items()], "ll")
        whole = f"The whole model as one program: gpt explain {TEXTBOOK} --write FILE.py"
        parts: list[Indented] = [(0, f"{heading}\n"), (2, lessons), (0, f"\n{whole}")]
        typer.echo(render(parts, terminal_width()))
        return
    with phase("loading PyTorch"):
        from gpt.lessons.render import read_lesson, to_terminal

    if write is not None:
        _write(lesson, run, text, write, answer)
        return
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    colour = sys.stdout.isatty() and not is_plain
    with phase(f"running the lesson {lesson}"):
        cells = read_lesson(lesson, run, text)
        shown = to_terminal(cells, terminal_width(), colour=colour, answer=answer)
    after = dict(pairwise(LESSONS)).get(lesson)
    following = f"gpt explain {after}" if after else "gpt attend, with one of your runs"
    import pydoc

    os.environ.setdefault("LESS", "FRX")  # F: exit if it all fits; R: show colours; X: do not clear
    pydoc.pager(f"{shown}\ncode: gpt/lessons/lesson_{lesson}.py; next: {following}\n")
    if "✗" in shown:
        raise GPTError(f"{lesson}: a check fails; see the line that begins with ✗")


def _check_request(
    lesson: str | None, run: str | None, text: str | None, write: Path | None
) -> None:
    """Raise UsageError if the lesson does not exist, or if options do not fit together."""
    for name, value in (("--run", run), ("--text", text), ("--write", write)):
        if lesson is None and value is not None:
            raise UsageError(f"{name}: give a lesson, too; lessons are {', '.join(LESSONS)}")
        if lesson != FOLLOW and name != "--write" and value is not None:
            raise UsageError(
                f"{name} works only with the lesson {FOLLOW}, which shows a trained model"
            )
    if lesson == TEXTBOOK and (write is None or write.suffix != ".py"):
        raise UsageError(f"{TEXTBOOK}: it is a program, not a lesson; add --write FILE.py")
    if lesson not in [None, TEXTBOOK, *LESSONS]:
        raise UsageError(f"{lesson}: no such lesson; lessons are {', '.join(LESSONS)}")


def _write(lesson: str, run: str | None, text: str | None, path: Path, answer: bool) -> None:
    """Write the lesson to a new file `path`."""
    from gpt.lessons import render

    if os.path.lexists(path):  # it may contain the learner's changes
        raise UsageError(f"--write {path}: expected a new file, but it exists; choose another name")
    check_out(path, "--write", [".py", ".ipynb"])
    if lesson == TEXTBOOK:
        content = Path(render.__file__).with_name("textbook.py").read_text("utf-8")
    elif path.suffix.lower() == ".ipynb":
        content = render.to_notebook(render.read_lesson(lesson, run, text))
    else:
        content = render.to_program(render.read_lesson(lesson, run, text), answer=answer)
    write_atomically(path, [content.encode()])
    typer.echo(path)
