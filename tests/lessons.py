"""Run lessons for the tests, with 5 steps of training a row instead of 300."""

import dataclasses
import re
from functools import cache
from typing import Any

from gpt.lessons.render import Cell, read_lesson, run_cell, to_terminal

SECONDS = re.compile(r"\(\d+\.\d s\)")  # the only output that need not repeat


def short(text: str) -> str:
    """Return the text of a lesson with 5 steps a row."""
    return text.replace("STEPS = 300", "STEPS = 5")


@cache
def cells_of(name: str, run: str | None = None) -> list[Cell]:
    return [dataclasses.replace(cell, text=short(cell.text)) for cell in read_lesson(name, run)]


@cache
def shown(name: str, run: str | None = None) -> str:
    """Return the lesson as a terminal of 80 columns shows it."""
    return to_terminal(cells_of(name, run), 80, colour=False, answer=False)


@cache
def printed(name: str, run: str | None = None) -> str:
    """Return what the code of the lesson prints, without seconds."""
    namespace: dict[str, Any] = {"__name__": "lesson"}
    outputs = [
        run_cell(cell.text, namespace) for cell in cells_of(name, run) if cell.kind == "code"
    ]
    return SECONDS.sub("", "\n".join(filter(None, outputs)))
