"""What is in a text, as a page: one file that needs no network and runs no script.

The text may hold anything, markup too: all of it is escaped, and its control characters are
spelled out.
"""

from collections.abc import Iterator, Sequence
from html import escape

from gpt.evaluation.characters import name_of
from gpt.evaluation.text_report import TextReport
from gpt.inspection.document import embedded
from gpt.inspection.text_sections import Section, Table, percent, sections
from gpt.text.display import in_one_line, symbol

CHARTED = 72  # characters, the most frequent
BAR_WIDTH, CHART_HEIGHT, LABEL_HEIGHT = 14, 160, 16  # of the chart, in its own units


def text_page(report: TextReport) -> bytes:
    """The page as the content of an HTML file."""
    body = [f"<header><h1>What is in a text</h1><p>{_text(report.text)}</p></header>", "<main>"]
    for section in sections(report):
        chart = _chart(report) if section.heading == "Characters" else ""
        body += [*_section(section, chart)]
    return embedded("text_page").replace("{body}", "\n".join([*body, "</main>"])).encode()


def _section(section: Section, chart: str) -> Iterator[str]:
    warns = ' class="warnings"' if section.heading == "Warnings" else ""
    yield f"<section{warns}><h2>{escape(section.heading)}</h2>"
    if section.fields:
        rows = (f"<dt>{escape(label)}</dt><dd>{_text(text)}</dd>" for label, text in section.fields)
        yield f"<dl>{''.join(rows)}</dl>"
    yield chart
    for table in section.tables:
        yield from _table(table)
    for note in section.notes:
        yield f"<p>{_text(note)}</p>"
    yield "</section>"


def _table(table: Table) -> Iterator[str]:
    if table.caption:
        yield f"<h3>{_text(table.caption)}</h3>"
    yield '<div class="scroll"><table>'
    if any(table.heading):
        yield _row(table.heading, table.align, "th")
    for row in table.rows:
        yield _row(row, table.align, "td")
    yield "</table></div>"
    if table.total > len(table.rows):
        yield f"<p>and {table.total - len(table.rows):,} more</p>"


def _row(row: Sequence[str], align: str, tag: str) -> str:
    cells = (
        f'<{tag} class="{side}"><bdi>{_text(text)}</bdi></{tag}>'
        for text, side in zip(row, align, strict=True)
    )
    return f"<tr>{''.join(cells)}</tr>"


def _chart(report: TextReport) -> str:
    """Bars of the most frequent characters, each with its name."""
    shown = [*report.frequencies.items()][:CHARTED]
    most, total = max(count for _, count in shown), report.size.characters
    bars = []
    for i, (c, count) in enumerate(shown):
        height = CHART_HEIGHT * count / most
        x, y = i * BAR_WIDTH, CHART_HEIGHT - height
        label = f"{name_of(c)}: {count:,}, {percent(count / total)}"
        bars.append(
            f'<g><title>{_text(label)}</title><rect x="{x + 1}" y="{y:.1f}" '
            f'width="{BAR_WIDTH - 2}" height="{height:.1f}"/>'
            f'<text x="{x + BAR_WIDTH / 2}" y="{CHART_HEIGHT + 12}">{_text(symbol(c))}</text></g>'
        )
    size = f"0 0 {CHARTED * BAR_WIDTH} {CHART_HEIGHT + LABEL_HEIGHT}"
    return (
        f'<figure><svg viewBox="{size}" role="img" aria-label="How often each character occurs">'
        f"{''.join(bars)}</svg><figcaption>The {len(shown)} most frequent characters; the first "
        f"is {percent(most / total)} of the text.</figcaption></figure>"
    )


def _text(text: str) -> str:
    return escape(in_one_line(text))
