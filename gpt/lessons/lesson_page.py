"""The page of a lesson: paragraphs, code, small tables, and claims that are checked by code."""

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

MAX_ROUNDING = 1e-5  # largest difference of equal tensors, relative to max |x| if that is above 1
MIN_DIFFERENCE = 1e-3  # absolute difference above which two tensors count as different
Row = Tensor | Sequence[float | Tensor]
Rows = Row | Sequence[Sequence[float | Tensor]]
REMOVED = "\0"  # marks a removed line of code
TERM = re.compile(r"\*\*(.+?)\*\*")  # **causal mask**: a technical term, where it is first used


@dataclass
class Page:
    """The parts of a lesson, in order, as plain data for `render.render` or for JSON."""

    name: str
    title: str
    file: str  # path of the lesson's module
    next: str | None  # name of the next lesson
    sources: list[str]  # where its ideas and examples are from
    parts: list[dict[str, Any]] = field(default_factory=list)

    def section(self, title: str) -> None:
        """Begin a section with a title."""
        self.parts.append({"section": title})

    def paragraph(self, text: str) -> None:
        """Add a paragraph. Show a **term** in double asterisks in bold."""
        text = " ".join(text.split())
        self.parts.append({"paragraph": TERM.sub(r"\1", text), "terms": TERM.findall(text)})

    def verbatim(self, text: str) -> None:
        """Add a paragraph whose asterisks and spaces are shown as they are."""
        self.parts.append({"paragraph": text, "terms": []})

    def formula(self, name: str, text: str) -> None:
        """Add a formula with its name."""
        self.parts.append({"formula": name, "text": text})

    def source(self, *steps: Callable[..., Any]) -> None:
        """Add the source of functions or classes, as `shown_source` returns it."""
        code = "\n\n".join(map(shown_source, steps))
        self.parts.append({"source": [step.__qualname__ for step in steps], "code": code})

    def table(
        self,
        caption: str,
        values: Rows | Mapping[str, Row],
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
        mask: Tensor | None = None,
    ) -> None:
        """Add a table of numbers.

        Args:
            caption: what the numbers are.
            values: a matrix (rows, columns), one row (columns,), or a dict from row names to rows.
            rows: the names of the rows.
            columns: the names of the columns.
            mask: boolean, (rows, columns); cells where it is True stay blank.
        """
        if isinstance(values, Mapping):
            rows, values = list(values), torch.stack([*map(torch.as_tensor, values.values())])
        tensor = torch.as_tensor(values).detach()
        tensor = tensor.reshape(-1, tensor.shape[-1])
        cells = [list(map(_json_number, row)) for row in tensor.tolist()]
        for row, column in [] if mask is None else mask.nonzero().tolist():
            cells[row][column] = None
        self.parts.append(
            {"table": caption, "rows": list(rows), "columns": list(columns), "values": cells}
        )

    def by_position(self, caption: str, values: Tensor, mask: Tensor | None = None) -> None:
        """Add a `table` of values (T, T): a row per query position, a column per key position."""
        self.table(caption, values, names("t", len(values)), names("t", len(values)), mask)

    def drawing(self, caption: str, lines: Sequence[str]) -> None:
        """Add a drawing made of characters; its lines are never wrapped."""
        self.parts.append({"drawing": caption, "lines": list(lines)})

    def check(self, claim: str, left: Tensor, right: Tensor) -> None:
        """Add a claim that two tensors are equal, and whether this is true up to rounding."""
        largest = MAX_ROUNDING * max(1.0, float(right.detach().abs().max()))
        difference = float((left - right).detach().abs().max())
        self._check(claim, "equal", difference, holds=difference <= largest)

    def check_differ(self, claim: str, left: Tensor, right: Tensor) -> None:
        """Add a claim that two tensors differ, and whether this is true."""
        difference = float((left - right).detach().abs().max())
        self._check(claim, "differ", difference, holds=difference > MIN_DIFFERENCE)

    def _check(self, claim: str, relation: str, difference: float, *, holds: bool) -> None:
        result = {"holds": holds, "largest_difference": _json_number(difference)}
        self.parts.append({"check": claim, "relation": relation} | result)

    def exercise(self, task: str, answer: str) -> None:
        """Add an exercise and its answer. `task` asks what a change to the lesson's code does."""
        texts = {"exercise": " ".join(task.split()), "answer": " ".join(answer.split())}
        self.parts.append(texts | {"edit": self.file})

    @property
    def holds(self) -> bool:
        """True if every check on the page succeeded."""
        return all(part.get("holds", True) for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the page as plain data."""
        head = {"lesson": self.name, "title": self.title, "file": self.file, "next": self.next}
        return head | {"sources": self.sources, "holds": self.holds, "parts": self.parts}


def names(letter: str, count: int) -> list[str]:
    """Return `count` names of rows or columns: for the letter t, `t=0`, `t=1` and so on."""
    return [f"{letter}={i}" for i in range(count)]


def _json_number(value: float) -> float | str | None:
    """Return `value`, or str(value) if it is infinite or NaN: JSON has no such numbers."""
    return value if math.isfinite(value) else str(value)


def shown_source(step: Callable[..., Any]) -> str:
    """Return the source of a function or class without docstrings, annotations and mypy comments.

    Comments are kept. Each signature is on one line.
    """
    code = re.sub(r"  # type: ignore\[.*\]", "", textwrap.dedent(inspect.getsource(step)))
    lines = code.splitlines()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            last = node.body[0].end_lineno or 0
            last += lines[last : last + 1] == [""]
            _replace(lines, node.body[0].lineno, last)
        if isinstance(node, ast.FunctionDef):
            for argument in (*node.args.args, *node.args.kwonlyargs):
                argument.annotation = None
            signature = f"def {node.name}({ast.unparse(node.args)}):"
            _replace(lines, node.lineno, node.body[0].lineno - 1, " " * node.col_offset + signature)
        if isinstance(node, ast.AnnAssign):
            annotation = f": {ast.unparse(node.annotation)}"
            line = lines[node.lineno - 1].replace(annotation, "", 1)
            _replace(lines, node.lineno, node.lineno, line if node.value else REMOVED)
    code = "\n".join(line for line in lines if line != REMOVED)
    return re.sub(r"^(class .*:\n)\n", r"\1", code, flags=re.MULTILINE)


def _replace(lines: list[str], first: int, last: int, line: str = REMOVED) -> None:
    """Replace line `first` (counted from 1) by `line`, and lines `first` + 1 to `last` by REMOVED.

    The numbers of all other lines stay the same.
    """
    lines[first - 1 : last] = [line, *[REMOVED] * (last - first)]
