"""Read the cells of a lesson, and render them for a terminal, as a notebook or as a program.

The functions at the end print the tables and checks of the lessons.
"""

import builtins
import inspect
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gpt.device import computing_with
from gpt.lessons import LESSONS
from gpt.terminal import render_table

MAX_ROUNDING = 1e-5  # tensors count as equal up to this difference, relative to max(1, max |x|)
MIN_DIFFERENCE = 1e-3  # absolute difference above which two tensors count as different
CODE_INDENT = 2  # columns by which a terminal indents code
SHOWN = re.compile(r"^from (gpt\.lessons\.\w+) import ([\w, ]+)  # show its code$", re.MULTILINE)
PLAIN_FORMULA = {  # pattern of LaTeX: its replacement in a terminal
    r"\\sqrt\{([^{}]*)\}": r"sqrt(\1)",
    r"\\cdot": "*",
    r"\\(mathrm)?|[{}]": "",
}


@dataclass(frozen=True)
class Cell:
    """A part of a lesson: Markdown, code, or the Markdown of the answers to its exercises."""

    kind: str  # "markdown", "code" or "answer"
    text: str


def read_lesson(name: str, run: str | None = None, text: str | None = None) -> list[Cell]:
    """Return the cells of the lesson `name`.

    `run` and `text` replace the constants RUN and TEXT of the lesson `follow`.
    """
    source = Path(__file__).with_name(f"lesson_{name}.py").read_text("utf-8")
    source = source.replace("RUN = None", f"RUN = {run!r}")
    source = source.replace("TEXT = None", f"TEXT = {text!r}")
    docstring, body = source[3:].split('"""\n', 1)
    cells = [Cell("markdown", f"# {name}: {LESSONS[name]}")]
    for is_prose, lines in groupby(body.splitlines(), lambda line: line.startswith("#")):
        text = "\n".join(lines).strip()
        if is_prose:
            text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
            kind = "answer" if text.startswith("Answers") else "markdown"
            cells.append(Cell(kind, text.removeprefix("Answers").strip()))
        elif text:
            cells.append(Cell("code", SHOWN.sub(_sources, text)))
    return [*cells, Cell("markdown", docstring.partition("`. ")[2])]


def _sources(match: re.Match[str]) -> str:
    """Return the source code of the names that an import marked `# show its code` imports."""
    module = import_module(match[1])
    names = match[2].split(", ")
    return "\n\n\n".join(inspect.getsource(getattr(module, name)).strip() for name in names)


def run_cell(code: str, namespace: dict[str, Any]) -> str:
    """Execute the code of a cell in `namespace`; return what it prints."""
    printed = io.StringIO()
    with redirect_stdout(printed), computing_with(1):
        exec(compile(code, "lesson", "exec"), namespace)
    return printed.getvalue().rstrip()


def to_terminal(cells: list[Cell], width: int, *, colour: bool, answer: bool) -> str:
    """Run the cells; return their text, code and output in lines of at most `width` columns.

    With `colour`, ANSI codes highlight code. With `answer`, answers to exercises are included.
    """
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.padding import Padding
    from rich.syntax import Syntax
    from rich.text import Text

    out = io.StringIO()
    system: Literal["256"] | None = "256" if colour else None
    console = Console(file=out, width=width, force_terminal=colour, color_system=system)
    namespace: dict[str, Any] = {"__name__": "lesson"}
    for cell in cells:
        if cell.kind == "code":
            code = Syntax(cell.text, "python", background_color="default", word_wrap=True)
            console.print(Padding(code, (0, 0, 0, CODE_INDENT)), "")
            if printed := run_cell(cell.text, namespace):
                console.print(Text(f"{printed}\n"), soft_wrap=True)
        elif cell.kind == "markdown" or answer:
            text = re.sub(r"\$+([^$]+)\$+", lambda m: _plain_formula(m[1]), cell.text)
            console.print(Markdown(text, code_theme="ansi_dark"), "")
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def _plain_formula(formula: str) -> str:
    """Return a LaTeX formula as plain text."""
    for pattern, replacement in PLAIN_FORMULA.items():
        formula = re.sub(pattern, replacement, formula)
    return formula


def to_notebook(cells: list[Cell]) -> str:
    """Return the cells as a Jupyter notebook, not executed. Answers are collapsed."""
    from nbformat import v4, writes

    notebook = v4.new_notebook()
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    for number, cell in enumerate(cells):
        new = v4.new_code_cell if cell.kind == "code" else v4.new_markdown_cell
        text = cell.text
        if cell.kind == "answer":
            text = f"<details><summary>Answers</summary>\n\n{text}\n\n</details>"
        notebook.cells.append(new(text, id=f"cell-{number}"))
    return str(writes(notebook)) + "\n"


def to_program(cells: list[Cell], *, answer: bool) -> str:
    """Return the cells as a Python program to edit and run, with prose as comments."""
    parts = []
    for cell in cells:
        if cell.kind == "code":
            parts.append(f"# %%\n{cell.text}\n")
        elif cell.kind == "markdown" or answer:
            lines = "\n".join(f"# {line}".rstrip() for line in cell.text.splitlines())
            parts.append(f"# %% [markdown]\n{lines}\n")
    return "\n".join(parts)


def check(claim: str, got: Tensor | float | None, expected: Tensor | float) -> None:
    """Print whether `got` equals `expected` up to rounding, and by how much they differ."""
    if got is None:
        print(f"… {claim}: not written yet (the function returns None)")
        return
    left, right = (torch.as_tensor(x, dtype=torch.float32).detach() for x in (got, expected))
    if left.shape != right.shape:
        print(f"✗ {claim}: NOT equal, got shape {tuple(left.shape)}, expected {tuple(right.shape)}")
        return
    difference = float((left - right).abs().max())
    if difference <= MAX_ROUNDING * max(1.0, float(right.abs().max())):
        print(f"✓ {claim} (equal{f' within {difference:.0e}' if difference else ''})")
    else:
        place = int((left - right).abs().nan_to_num(torch.inf).argmax())
        pair = f"got {left.flatten()[place]:.4f}, expected {right.flatten()[place]:.4f}"
        print(f"✗ {claim}: NOT equal, {pair}")


def check_differ(claim: str, left: Tensor, right: Tensor) -> None:
    """Print whether two tensors differ by more than rounding."""
    difference = float((left - right).detach().abs().max())
    if difference > MIN_DIFFERENCE:
        print(f"✓ {claim} (differ by {difference:.2g})")
    else:
        print(f"✗ {claim}: do NOT differ, only by {difference:.0e}")


def table(
    caption: str, rows: Mapping[str, Iterable[Tensor | float]], columns: Iterable[object] = ()
) -> None:
    """Print a table of numbers with a named row for each entry of `rows`, and column names."""
    lines = [
        [name, *(_number(torch.as_tensor(x).detach().item()) for x in row)]
        for name, row in rows.items()
    ]
    count = len(lines[0]) - 1
    titles = [*map(str, columns)] or [""] * count
    if caption:
        print(caption)
    print(render_table(["", *titles], lines, "l" + "r" * count))


def _number(value: float) -> str:
    """Format integers as they are, other numbers with 4 decimals, tiny and huge ones as 1e-07."""
    if value == value // 1 and abs(value) < 1e6:
        return str(int(value))
    is_tiny = abs(value) < 5e-5
    return f"{value:.0e}" if is_tiny or abs(value) >= 1e6 else f"{value:.4f}"


def heat_map(
    caption: str, matrix: Tensor, rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> None:
    """Print a matrix as a table; in a notebook, draw it as a heat map, too."""
    names = rows or [f"t={t}" for t in range(len(matrix))]
    values = matrix.detach()
    table(caption, dict(zip(names, values, strict=True)), columns or names)
    if hasattr(builtins, "get_ipython"):
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(4, 4))
        axes.imshow(values.clamp(min=-1e3), cmap="Blues")
        axes.set_title(caption, fontsize=8, wrap=True)
        axes.set_xticks(range(len(values[0])), columns or names)
        axes.set_yticks(range(len(names)), names)
        plt.show()
        plt.close(figure)
