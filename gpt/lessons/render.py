"""Format a lesson's page as text for a terminal."""

import math
import re
import textwrap
from typing import Any

from gpt.lessons import FOLLOW
from gpt.lessons.lesson_page import Page
from gpt.text.display import bold, shaded, visible

Part = dict[str, Any]
CODE_COLUMNS = 76  # largest width of a line of code, indentation included


def render(page: Page, width: int, *, colour: bool = False, answer: bool = False) -> str:
    """Return the page as text for a terminal. Escape control characters.

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
    if page.next == FOLLOW:
        following += " --run RUN"
    footer = [f"code: {page.file}", f"from: {'; '.join(page.sources)}", f"next: {following}"]
    blocks.append("\n".join(_fill(line, width, indent=4) for line in footer))
    return "\n\n".join(blocks)


def _render(part: Part, width: int, colour: bool, answer: bool) -> str:
    if "section" in part:
        title = f"--- {part['section']} ---"
        return bold(title) if colour else title
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
        outcome = _outcome(part).replace(" ", "\xa0")  # no line ends within it
        mark = "✓" if part["holds"] else "✗"
        return _fill(f"{mark} {part['check']} ({outcome})", width, indent=4).replace("\xa0", " ")
    if "exercise" in part:
        run_again = f"Edit {part['edit']} and run again. --answer shows the answer."
        shown = f"Answer: {part['answer']}" if answer else run_again
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
    """Indent a line of code by 4 columns. Wrap it at the smaller of `width` and `CODE_COLUMNS`."""
    margin = " " * (4 + len(line) - len(line.lstrip()))
    return textwrap.fill(
        line.strip(),
        min(width, CODE_COLUMNS),
        initial_indent=margin,
        subsequent_indent=margin + 8 * " ",
        break_on_hyphens=False,
    )


def _outcome(part: Part) -> str:
    """Return the result of a check, such as `equal within 3e-8`."""
    difference = float(part["largest_difference"])
    if part["relation"] == "equal":
        size = _one_digit(difference)
        if not part["holds"]:
            return f"NOT equal: differ by {size}"
        return f"equal within {size}" if difference else "equal"
    return f"{'differ' if part['holds'] else 'do NOT differ: only'} by {difference:.2g}"


def _one_digit(value: float) -> str:
    """Return a number rounded to one significant digit, such as `7e-9` or `0`."""
    return f"{value:.1g}".replace("e-0", "e-")


def _cell(value: float | str | None) -> str:
    if isinstance(value, float):
        text = f"{value or 0.0:.4f}"  # not -0.0000
        return _one_digit(value) if float(text) == 0 != value else text
    return f"{value:,}" if isinstance(value, int) else value or ""


def _cells(part: Part, width: int, colour: bool) -> str:
    """Return a table as text. Split a table that is too wide into blocks of columns."""
    values, columns = part["values"], [visible(name) for name in part["columns"]]
    rows = [visible(name) for name in part["rows"]] or [""] * len(values)
    numbers = [value for row in values for value in row]
    margin = max(map(len, rows)) + 2
    cell = max(8, *(len(name) + 2 for name in columns), *(len(_cell(x)) + 1 for x in numbers))
    largest = max((abs(x) for x in numbers if isinstance(x, float)), default=0.0)
    shades = colour and len(numbers) > 1 and largest > 0

    def cell_text(value: float | str | None) -> str:
        text = _cell(value).rjust(cell)
        return shaded(text, value / largest) if shades and isinstance(value, float) else text

    total, fit = len(values[0]), max(1, (width - margin) // cell)
    step = math.ceil(total / math.ceil(total / fit))  # columns of a block: blocks of equal size
    blocks = []
    for start in range(0, total, step):
        block = slice(start, start + step)
        lines = [" " * margin + "".join(c.rjust(cell) for c in columns[block])] if columns else []
        for name, row in zip(rows, values, strict=True):
            lines.append(f"{name:<{margin}}{''.join(map(cell_text, row[block]))}".rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
