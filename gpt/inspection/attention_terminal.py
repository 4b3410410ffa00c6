"""Draw the attention of one head in a terminal: a cell for each query and key position."""

from collections.abc import Sequence
from typing import Literal

from gpt.evaluation.head_analysis import AttentionAnalysis
from gpt.inspection.tables import render
from gpt.text.display import coloured, symbol, visible

Style = Literal["colour", "blocks", "digits"]  # "colour" draws the blocks in blue
BLOCKS = "·░▒▓█"  # for weights from 0 to 1
BLOCKS_LEGEND = "Weights: · under 2 %, ░ to 14 %, ▒ to 39 %, ▓ to 77 %, █ to 100 %."
DIGITS_LEGEND = "Weights: 1 is .1 to .2, and so on; 9 is .9 or more, a dot less than .1."


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
    """Draw the weights of a head as lines of at most `width` columns.

    Rows are query positions, columns key positions. If the text is too long for `width`, only its
    first characters are shown: attention is causal, so later ones do not change their weights.

    Args:
        analysis: the attention to the text.
        text: the characters of the text, or the names of its bytes.
        title: the name of the model.
        layer: the layer of the head, counted from 0.
        head: the head, counted from 0 over all members of an ensemble.
        width: the columns of the terminal.
        style: "colour" for a terminal with 256 colours, "blocks" for one without colours, and
            "digits" for a file. A larger weight covers more of its cell, so that it stands out on
            dark and on light backgrounds.
        unit: what an element of `text` is, `character` or `byte`.
    """
    from rich.cells import cell_len, set_cell_size

    n_layer, H, T, _ = analysis.weights.shape
    signs = [symbol(c) for c in text]
    margin = max(map(cell_len, signs)) + 1
    has_wide = any(cell_len(sign) == 2 for sign in signs)
    cell = 2 if has_wide or margin + 2 * T <= width else 1  # columns of a cell
    n = min(T, max(1, (width - margin) // cell))

    lines: list[str] = []
    for sign, row in zip(signs, analysis.weights[layer, head, :n].tolist(), strict=False):
        weights = row[: len(lines) + 1]
        cells = "".join(_cell(weight, cell, style) for weight in weights).rstrip()
        shown = coloured(cells) if style == "colour" else cells
        lines.append(f"{set_cell_size(sign, margin)}{shown}")
    short = (sign.removeprefix("\\x") for sign in signs[:n])  # leaves two digits of a byte
    keys = (sign if cell_len(sign) <= cell else "?" for sign in short)
    lines.append(" " * margin + "".join(set_cell_size(key, cell) for key in keys).rstrip())

    heading = (
        f"{title}: layer {layer + 1} of {n_layer}, head {head + 1} of {H}"
        f"{analysis.member_suffix(head)}. Rows are query positions, columns key positions; the "
        f"future is blank."
    )
    if n < T:
        heading += f" The first {n} of {T} {unit}s are shown; --out FILE.html shows all."
    notes = [DIGITS_LEGEND if style == "digits" else BLOCKS_LEGEND]
    if T > 1:
        loss, cost = analysis.losses.mean(), analysis.removal_costs[layer, head]
        notes.append(
            f"Previous-character score {analysis.previous[layer, head]:.2f}, induction score "
            f"{analysis.induction[layer, head]:.2f} (both at most 1)."
        )
        notes.append(
            f"Loss on this text: {loss:.4f} nats per {unit}; with this head removed "
            f"{loss + cost:.4f} ({cost:+.4f})."
        )
    above, below = (
        render([(0, note) for note in part], width) for part in ([visible(heading)], notes)
    )
    return "\n".join([above, "", *lines, "", below])


def _cell(weight: float, width: int, style: Style) -> str:
    """Return the cell of a weight; blocks show its square root, so that small weights show."""
    if style == "digits":
        tenths = min(int(10 * weight), 9)
        return f"{tenths or '.':<{width}}"
    return BLOCKS[round((len(BLOCKS) - 1) * weight**0.5)] * width
