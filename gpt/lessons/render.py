"""Format a lesson's page as text for a terminal."""

import math
import re
import textwrap
from typing import Any

from gpt.lessons.lesson_page import Page
from gpt.text.display import bold, shaded, visible

Part = dict[str, Any]


def render(page: Page, width: int, *, colour: bool = False, answer: bool = False) -> str:
    """Return the page as text, with control characters of a model's text escaped.

    Args:
        page: the page.
        width: the number of columns of the terminal; wider tables are split.
        colour: show terms in bold, and shade cells by their values.
        answer: show the answer to the exercise.
    """
    heading = textwrap.wrap(f"{page.name}: {page.title}", width)
    blocks = ["\n".join([*heading, "=" * max(map(len, heading))])]
    for before, part in zip([{}, *page.parts], page.parts, strict=False):
        block = _render(part, width, colour, answer)
        if "check" in before and "check" in part:  # no empty line between checks
            blocks[-1] += f"\n{block}"
        else:
            blocks.append(block)
    following = f"gpt explain {page.next}" if page.next else "gpt attend, with one of your runs"
    blocks.append(f"source: {page.file}\nnext: {following}")
    return "\n\n".join(blocks)


def _render(part: Part, width: int, colour: bool, answer: bool) -> str:
    if "paragraph" in part:
        return _paragraph(part["paragraph"], width, part["terms"] if colour else [])
    if "formula" in part:
        text = f"{part['formula']}: {part['text']}"
        return textwrap.indent(_paragraph(text, width - 4, [part["formula"]] * colour), "    ")
    if "source" in part:
        return "\n".join(_code_line(line, width) for line in part["code"].splitlines())
    if "drawing" in part:
        return "\n".join([_fill(part["drawing"], width), *map(visible, part["lines"])])
    if "check" in part:
        return _fill(f"{part['check']} ({_outcome(part)})", width, indent=4)
    if "exercise" in part:
        shown = f"Answer: {part['answer']}" if answer else "To see the answer, add --answer."
        lines = (f"Exercise: {part['exercise']}", shown)
        return "\n".join(_paragraph(x, width, ["Exercise", "Answer"] * colour) for x in lines)
    return "\n".join([_fill(part["table"], width), _cells(part, width, colour)])


def _fill(text: str, width: int, indent: int = 0) -> str:
    text = visible(text)
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_on_hyphens=False)


def _paragraph(text: str, width: int, terms: list[str]) -> str:
    text = _fill(text, width)
    for term in terms:
        words = r"\s+".join(map(re.escape, term.split()))  # the line may break between them
        text = re.sub(rf"(?<!\w){words}(?!\w)", lambda match: bold(match[0]), text, count=1)
    return text


def _code_line(line: str, width: int) -> str:
    """Indent a line of code by 4 columns; wrap it at `width`, indenting the wrapped part more."""
    margin = " " * (4 + len(line) - len(line.lstrip()))
    further = f"{margin}{8 * ' '}"
    wrapped = textwrap.wrap(
        line.strip(),
        width,
        initial_indent=margin,
        subsequent_indent=further,
        break_on_hyphens=False,
    )
    return "\n".join(wrapped)


def _outcome(part: Part) -> str:
    """Return the result of a check, such as `equal: max |difference| 3e-8`."""
    difference = float(part["largest_difference"])
    if part["relation"] == "equal":
        size = f"{difference:.1g}".replace("e-0", "e-")
        return f"{'equal' if part['holds'] else 'NOT equal'}: max |difference| {size}"
    return f"{'differ' if part['holds'] else 'do NOT differ: only'} by {difference:.2g}"


def _cell(value: float | str | None) -> str:
    if isinstance(value, float):
        text = f"{value:.4f}"
        return text.lstrip("-") if float(text) == 0 else text
    return f"{value:,}" if isinstance(value, int) else value or ""


def _cells(part: Part, width: int, colour: bool) -> str:
    """Return a table as text, split into blocks of columns that fit the width."""
    values, columns = part["values"], [visible(name) for name in part["columns"]]
    rows = [visible(name) for name in part["rows"]] or [""] * len(values)
    texts = [[_cell(value) for value in row] for row in values]
    margin = max(map(len, rows)) + 2
    cell = max(8, *(len(text) + 1 for line in [columns, *texts] for text in line))
    texts = [[text.rjust(cell) for text in row] for row in texts]
    total, fit = len(texts[0]), max(1, (width - margin) // cell)
    step = math.ceil(total / math.ceil(total / fit))  # columns of a block: blocks of equal size
    numbers = [abs(value) for row in values for value in row if isinstance(value, float)]
    largest = max(numbers, default=0.0)
    if colour and total * len(values) > 1 and largest > 0:
        texts = [
            [
                shaded(x, v / largest) if isinstance(v, float) else x
                for v, x in zip(*pair, strict=True)
            ]
            for pair in zip(values, texts, strict=True)
        ]
    blocks = []
    for start in range(0, total, step):
        block = slice(start, start + step)
        lines = [" " * margin + "".join(c.rjust(cell) for c in columns[block])] if columns else []
        for name, row in zip(rows, texts, strict=True):
            lines.append(f"{name:<{margin}}{''.join(row[block])}".rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
