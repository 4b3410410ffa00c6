"""Draw the attention of one head in a terminal: a row for each query, a column for each key."""

from collections.abc import Sequence

from gpt.evaluation.head_analysis import AttentionAnalysis
from gpt.inspection.tables import render
from gpt.text.display import symbol, visible

BLOCKS = "·░▒▓█"  # signs for weights from 0 to 1, in ascending order
BLOCKS_LEGEND = "Weights: · under 2 %, ░ to 14 %, ▒ to 39 %, ▓ to 77 %, █ to 100 %."


def draw_head(
    analysis: AttentionAnalysis,
    text: Sequence[str],
    title: str,
    *,
    layer: int,
    head: int,
    width: int = 80,
    unit: str = "character",
) -> str:
    """Draw the weights of a head as lines of at most `width` columns.

    Rows are query positions, columns key positions. A larger weight covers more of its cell. If
    the text is too long for `width`, only its first characters are shown. Their weights do not
    depend on the later characters, because attention is causal.

    Args:
        analysis: the attention to the text.
        text: the characters of the text, or the names of its bytes.
        title: the name of the model.
        layer: the layer of the head, counted from 0.
        head: the head, counted from 0.
        width: the width of the terminal in columns.
        unit: the noun for an element of `text`: `character` or `byte`.
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
        weights = row[: len(lines) + 1]  # draw square roots: small weights are visible
        cells = "".join(BLOCKS[round(4 * weight**0.5)] * cell for weight in weights)
        lines.append(f"{set_cell_size(sign, margin)}{cells}")
    short = (sign.removeprefix("\\x") for sign in signs[:n])  # leaves two digits of a byte
    keys = (sign if cell_len(sign) <= cell else "?" for sign in short)
    lines.append(" " * margin + "".join(set_cell_size(key, cell) for key in keys).rstrip())

    heading = (
        f"{title}: layer {layer + 1} of {n_layer}, head {head + 1} of {H}. Rows are query "
        f"positions, columns key positions; the future is blank."
    )
    if n < T:
        heading += f" The first {n} of {T} {unit}s are shown; --out FILE.html shows all."
    notes = [BLOCKS_LEGEND]
    if T > 1:
        loss, cost = analysis.losses.mean(), analysis.removal_costs[layer, head]
        counts = analysis.with_counts
        scored = "Loss" if counts is None else "The network's loss"
        notes += [
            f"Previous-character score {analysis.previous[layer, head]:.2f}, induction score "
            f"{analysis.induction[layer, head]:.2f} (both at most 1).",
            f"{scored} on this text: {loss:.4f} nats per {unit}; with this head removed "
            f"{loss + cost:.4f} ({cost:+.4f}).",
        ]
        if counts is not None:
            alone, mixed = counts.lens.losses.mean(-1).tolist()
            notes.append(
                f"With counts: network alone {loss:.4f}, counts alone {alone:.4f}, mixed "
                f"{mixed:.4f} (mean weight of the network {counts.weights[:-1, -1].mean():.2f})."
            )
    above, below = (
        render([(0, note) for note in part], width) for part in ([visible(heading)], notes)
    )
    return "\n".join([above, "", *lines, "", below])
