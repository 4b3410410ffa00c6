"""Draw one head's attention in a terminal: a cell for each query and key position."""

import textwrap
from collections.abc import Sequence
from typing import Literal

from gpt.evaluation.head_analysis import AttentionAnalysis
from gpt.text.display import columns, symbol, visible
from gpt.text.terminal import coloured

Style = Literal["colour", "blocks", "digits"]  # colour: blocks in blue
BLOCKS = "·░▒▓█"  # from 0 to 1
LEGENDS = {
    "blocks": "Weights: · under 2 %, ░ to 14 %, ▒ to 39 %, ▓ to 77 %, █ to 100 %.",
    "digits": "Weights: 1 is .1 to .2, and so on; 9 is .9 or more, a dot less than .1.",
}


def draw_head(
    analysis: AttentionAnalysis,
    text: Sequence[str],
    title: str,
    *,
    layer: int,
    head: int,
    width: int = 80,
    style: Style = "digits",
    unit: str = "character",
) -> str:
    """The weights of a head, counted from 0, and what it does: lines of at most `width` columns.

    text: its characters, or the names of its bytes; `unit` says which.

    Rows are query positions, columns key positions. Of a text too long for the width the first
    characters are shown: attention is causal, so their weights do not depend on the rest.

    `style` is "colour" for a terminal of 256 colours, "blocks" for one without, and "digits" for a
    file. A block covers more of the cell the larger the weight is, so that large weights stand out
    on a dark background and on a light one.
    """
    n_layer, H, T, _ = analysis.weights.shape
    signs = [symbol(c) for c in text]
    margin = max(map(columns, signs)) + 1
    roomy = margin + 2 * T <= width or any(columns(sign) == 2 for sign in signs)
    cell = 2 if roomy else 1
    n = min(T, max(1, (width - margin) // cell))

    lines = []
    for t, row in enumerate(analysis.weights[layer, head, :n].tolist()):
        cells = "".join(_cell(weight, cell, style) for weight in row[: t + 1]).rstrip()
        shown = coloured(cells) if style == "colour" else cells
        lines.append(f"{_padded(signs[t], margin)}{shown}")
    short = (sign.removeprefix("\\x") for sign in signs[:n])  # of a byte two digits are left
    keys = (sign if columns(sign) <= cell else "?" for sign in short)
    lines.append(" " * margin + "".join(_padded(sign, cell) for sign in keys).rstrip())
    legend = LEGENDS["digits" if style == "digits" else "blocks"]
    lines.append(f"\n{textwrap.fill(legend, width)}")

    heading = (
        f"{title}: layer {layer + 1} of {n_layer}, head {head + 1} of {H}"
        f"{analysis.member_suffix(head)}. Rows are query positions, columns key positions; the "
        f"future is blank."
    )
    if n < T:
        heading += f" The first {n} of {T} {unit}s; --out FILE.html shows all."
    told = [textwrap.fill(line, width) for line in _scores(analysis, layer, head, unit)]
    return "\n".join([textwrap.fill(visible(heading), width), "", *lines, *told])


def _scores(analysis: AttentionAnalysis, layer: int, head: int, unit: str) -> list[str]:
    if not len(analysis.losses):
        return []  # nor is there a character before
    loss, cost = analysis.losses.mean(), analysis.removal_costs[layer, head]
    return [
        f"Previous-character score {analysis.previous[layer, head]:.2f}, induction score "
        f"{analysis.induction[layer, head]:.2f} (the most is 1).",
        f"Loss on this text: {loss:.4f} nats per {unit}; with this head removed "
        f"{loss + cost:.4f} ({cost:+.4f}).",
    ]


def _cell(weight: float, width: int, style: Style) -> str:
    """Return the cell of a weight; blocks show its square root, so that small weights show."""
    if style == "digits":
        tenths = min(int(10 * weight), 9)
        return f"{tenths or '.':<{width}}"
    return BLOCKS[round((len(BLOCKS) - 1) * weight**0.5)] * width


def _padded(sign: str, width: int) -> str:
    return sign + " " * (width - columns(sign))
