"""The page of a lesson: paragraphs, code, small tables, and equalities that are checked live."""

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gpt.text.display import first_columns

DRAWING_WIDTH = 76  # columns
TERM = re.compile(r"\*\*(.+?)\*\*")  # **causal mask**: a word of the field at its first use


@dataclass
class Page:
    """A lesson's parts in order: plain data, for a terminal (`render.render`) or as JSON."""

    name: str
    title: str
    file: str
    next: str | None
    parts: list[dict[str, Any]] = field(default_factory=list)

    def paragraph(self, text: str) -> None:
        """Add a paragraph; a **term** between double asterisks is bold where the terminal can."""
        text = " ".join(text.split())
        self.parts.append({"paragraph": TERM.sub(r"\1", text), "terms": TERM.findall(text)})

    def verbatim(self, text: str) -> None:
        """Add a paragraph that quotes a text: its asterisks and spaces are its own."""
        self.parts.append({"paragraph": text, "terms": []})

    def formula(self, name: str, text: str) -> None:
        """Add a formula under its name."""
        self.parts.append({"formula": name, "text": text})

    def source(self, *steps: Callable[..., Any]) -> None:
        """Add the source of functions or classes, without docstrings and notes to mypy."""
        code = "\n\n".join(map(_without_docstrings, steps))
        self.parts.append({"source": [step.__qualname__ for step in steps], "code": code})

    def table(
        self,
        caption: str,
        values: Tensor | Sequence[float],
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
        mask: Tensor | None = None,
    ) -> None:
        """Add a tensor (rows, columns) or (columns,), shown to four digits.

        Cells where the boolean mask, of the same shape, is True stay blank: the future.
        """
        tensor = torch.as_tensor(values).detach()
        hidden = torch.zeros_like(tensor, dtype=torch.bool) if mask is None else mask
        shape = (-1, tensor.shape[-1])
        cells = [
            [None if blank else _json_number(value) for value, blank in zip(*row, strict=True)]
            for row in zip(*(t.reshape(shape).tolist() for t in (tensor, hidden)), strict=True)
        ]
        self.parts.append(
            {"table": caption, "rows": list(rows), "columns": list(columns), "values": cells}
        )

    def drawing(self, caption: str, lines: Sequence[str]) -> None:
        """Add a drawing made of characters; its lines are cut, never wrapped."""
        cut = [first_columns(line, DRAWING_WIDTH) for line in lines]
        self.parts.append({"drawing": caption, "lines": cut})

    def check(self, claim: str, left: Tensor, right: Tensor, tolerance: float = 1e-5) -> None:
        """Claim that two tensors are equal up to rounding, and check it."""
        difference = float((left - right).detach().abs().max())
        holds = difference <= tolerance * max(1.0, float(right.detach().abs().max()))
        self._add_check(claim, "equal", holds, difference)

    def check_differ(self, claim: str, left: Tensor, right: Tensor) -> None:
        """Claim that two tensors differ, and check it."""
        difference = float((left - right).detach().abs().max())
        self._add_check(claim, "differ", difference > 1e-3, difference)

    def check_mean(self, claim: str, errors: Tensor) -> None:
        """Claim that means equal what they should; errors, in standard errors, are at most 5."""
        largest = float(errors.detach().abs().max())
        self._add_check(claim, "within 5 standard errors", largest <= 5, largest)

    def exercise(self, task: str, answer: str) -> None:
        """Add the lesson's exercise: change a line, predict, run again. `--answer` shows both."""
        self.parts.append({"exercise": " ".join(task.split()), "answer": " ".join(answer.split())})

    @property
    def holds(self) -> bool:
        """Whether every check on the page came out as claimed."""
        return all(part.get("holds", True) for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """The page as plain data."""
        return {
            "lesson": self.name,
            "title": self.title,
            "file": self.file,
            "next": self.next,
            "holds": self.holds,
            "parts": self.parts,
        }

    def _add_check(self, claim: str, relation: str, holds: bool, difference: float) -> None:
        self.parts.append(
            {
                "check": claim,
                "relation": relation,
                "holds": holds,
                "largest_difference": _json_number(difference),
            }
        )


def _json_number(value: float) -> float | str:
    """JSON has no -inf, which masked scores hold: it is written as text."""
    return value if math.isfinite(value) else str(value)


def _without_docstrings(step: Callable[..., Any]) -> str:
    code = re.sub(r"  # type: ignore\[.*\]", "", textwrap.dedent(inspect.getsource(step)))
    lines = code.splitlines()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            first, last = node.body[0].lineno, node.body[0].end_lineno or 0
            for line in range(first - 1, last):
                lines[line] = "\0"
            if lines[last : last + 1] == [""]:
                lines[last] = "\0"
    return "\n".join(line for line in lines if line != "\0")
