"""A lesson's page as text for a terminal."""

import math
import re
import textwrap
from typing import Any

from gpt.lessons.page import Page
from gpt.text.display import bold, shaded, visible

Part = dict[str, Any]


def render(page: Page, width: int, *, colour: bool = False, answer: bool = False) -> str:
    """The page as text of at most `width` columns; a wider table is split.

    With `colour` terms are bold and cells shaded by their value. A trained model's characters are
    shown as a terminal can safely show them.
    """
    heading = textwrap.wrap(f"{page.name}: {page.title}", width)
    blocks = ["\n".join([*heading, "=" * max(map(len, heading))])]
    for before, part in zip([{}, *page.parts], page.parts, strict=False):
        block = _render(part, width, colour, answer)
        if "check" in before and "check" in part:  # checks stand together
            blocks[-1] += f"\n{block}"
        else:
            blocks.append(block)
    following = f"gpt explain {page.next}" if page.next else "gpt attend, on a run of yours"
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
        text = f"Exercise: {part['exercise']}"
        shown = f"Answer: {part['answer']}" if answer else "The answer: the same with --answer."
        terms = ["Exercise", "Answer"] * colour
        return "\n".join([_paragraph(text, width, terms), _paragraph(shown, width, terms)])
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
    """A line of code, indented by 4; one that does not fit is continued below, further in."""
    margin = 4 + len(line) - len(line.lstrip())
    return textwrap.fill(
        line.strip(),
        width,
        initial_indent=" " * margin,
        subsequent_indent=" " * (margin + 8),
        break_on_hyphens=False,
    )


def _outcome(part: Part) -> str:
    """`equal: max |difference| 3e-8`, `differ by 2.2`, `within 5 standard errors: at most 1.7`."""
    difference = float(part["largest_difference"])
    if part["relation"] == "equal":
        size = f"{difference:.1g}".replace("e-0", "e-")
        return f"{'equal' if part['holds'] else 'NOT equal'}: max |difference| {size}"
    if part["relation"] != "differ":
        return f"{'' if part['holds'] else 'NOT '}{part['relation']}: at most {difference:.1f}"
    return f"{'differ' if part['holds'] else 'do NOT differ: only'} by {difference:.2g}"


def _cell(value: float | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        text = f"{value:.4f}"
        return text.lstrip("-") if float(text) == 0 else text
    return value if isinstance(value, str) else f"{value:,}"


def _cells(part: Part, width: int, colour: bool) -> str:
    """The table's rows, in blocks of columns side by side that fit the width."""
    values, columns = part["values"], [visible(name) for name in part["columns"]]
    texts = [[_cell(value) for value in row] for row in values]
    names = [visible(name) for name in part["rows"]] or [""] * len(values)
    margin = max(map(len, names)) + 2
    cell = max(8, *(len(text) + 1 for line in [columns, *texts] for text in line))
    total, fit = len(texts[0]), max(1, (width - margin) // cell)
    beside = math.ceil(total / math.ceil(total / fit))  # columns in a block; blocks alike
    numbers = [abs(value) for row in values for value in row if isinstance(value, float)]
    largest = max(numbers, default=0.0)

    def show(value: float | str | None, text: str) -> str:
        text = text.rjust(cell)
        shade = colour and isinstance(value, float) and total * len(values) > 1 and largest > 0
        return shaded(text, value / largest) if shade else text  # type: ignore[operator]

    blocks = []
    for start in range(0, total, beside):
        lines = [" " * margin + "".join(c.rjust(cell) for c in columns[start : start + beside])]
        lines = lines if columns else []
        for name, row, line in zip(names, values, texts, strict=True):
            shown = map(show, row[start : start + beside], line[start : start + beside])
            lines.append(f"{name:<{margin}}{''.join(shown)}".rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
