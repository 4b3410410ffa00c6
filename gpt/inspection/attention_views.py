"""Show attention: one head in a terminal, or all heads on an interactive HTML page.

The page needs no network. For safety, it contains the text as JSON, and its script never inserts
the text as markup.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from gpt.evaluation.head_analysis import AttentionAnalysis
from gpt.inspection.pages import in_base64, render_page
from gpt.terminal import render, symbol, visible
from gpt.text.batches import to_torch
from gpt.text.vocabulary import Vocabulary

BLOCKS = "·░▒▓█"  # chosen by the square root of a weight, so that small weights are visible
BLOCKS_LEGEND = "Weights: · under 2 %, ░ to 14 %, ▒ to 39 %, ▓ to 77 %, █ to 100 %."
TOP_CHARACTERS = 8  # at each position, this many of the most likely next characters are shown


def draw_head(
    analysis: AttentionAnalysis,
    text: Sequence[str],
    title: str,
    chosen: tuple[int, int] = (0, 0),
    *,
    width: int = 80,
    unit: str = "character",
) -> str:
    """Draw the weights of the head `chosen` as lines of at most `width` columns.

    Rows are query positions, columns key positions. A larger weight covers more of its cell. If
    the text is too long for `width`, only its first characters are shown. Their weights do not
    depend on the later characters, because attention is causal. `chosen` is a pair: layer and
    head, counted from 0. `unit` is the noun for an element of `text`: `character` or `byte`.
    """
    from rich.cells import cell_len, set_cell_size

    (n_layer, H, T, _), (layer, head) = analysis.weights.shape, chosen
    signs = [symbol(c) for c in text]
    margin = max(map(cell_len, signs)) + 1
    has_wide = any(cell_len(sign) == 2 for sign in signs)
    cell = 2 if has_wide or margin + 2 * T <= width else 1  # width of a cell in terminal columns
    n = min(T, max(1, (width - margin) // cell))

    lines: list[str] = []
    for sign, row in zip(signs, analysis.weights[layer, head, :n].tolist(), strict=False):
        weights = row[: len(lines) + 1]
        cells = "".join(BLOCKS[round(4 * weight**0.5)] * cell for weight in weights)
        lines.append(f"{set_cell_size(sign, margin)}{cells}")
    short = (sign.removeprefix("\\x") for sign in signs[:n])  # a byte becomes its two hex digits
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
        notes += [
            f"Previous-character score {analysis.previous[layer, head]:.2f}, induction score "
            f"{analysis.induction[layer, head]:.2f} (both at most 1).",
            f"Loss of {visible(title)} on this text: {loss:.4f} nats per {unit}; with this head "
            f"removed {loss + cost:.4f} ({cost:+.4f}).",
        ]
    above, below = (
        render([(0, note) for note in part], width) for part in ([visible(heading)], notes)
    )
    return "\n".join([above, "", *lines, "", below])


def attention_page(
    analysis: AttentionAnalysis,
    text: str,
    title: str,
    vocabulary: Vocabulary,
    chosen: tuple[int, int] = (0, 0),
) -> bytes:
    """Return an HTML file that shows `analysis`: the attention of a model called `title` to `text`.

    `chosen` are the layer and the head that are shown first, counted from 0.

    The script of the page reads `data`. "weights" is base64 of little-endian uint16, where 65535
    means 1: for each layer, head and query position t, the weights on key positions 0 to t. "next"
    has a list for each position: pairs of a likely next character and its probability. "actual" has
    a pair for each character after the first: its predicted probability and its rank, from 1.
    """
    n_layer, H, T, _ = analysis.weights.shape
    past = torch.tril_indices(T, T)
    weights = analysis.weights[:, :, past[0], past[1]]  # (n_layer, H, T (T + 1) / 2)
    ids = vocabulary.encode(text)
    p = analysis.probabilities  # (T, V)
    top = p.topk(min(TOP_CHARACTERS, p.shape[1]))
    actual = p[:-1].gather(1, to_torch(ids[1:])[:, None])  # (T - 1, 1)
    ranks = (p[:-1] > actual).sum(1) + 1
    data = {
        "title": title,
        "chosen": chosen,
        "text": vocabulary.names_of(ids),
        "unit": vocabulary.unit,
        "signs": {name: sign for name in vocabulary.names if (sign := symbol(name)) != name},
        "layers": n_layer,
        "heads": H,
        "weights": in_base64(weights.mul(65535).round().numpy().astype("u2")),
        "next": [
            [*zip(vocabulary.names_of(likely), _rounded(values), strict=True)]
            for likely, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ],
        "actual": [*zip(_rounded(actual[:, 0].tolist()), ranks.tolist(), strict=True)],
        "previous": _rounded(analysis.previous.tolist()),
        "induction": _rounded(analysis.induction.tolist()),
        "losses": _rounded(analysis.losses.tolist()),
        "without": _rounded(analysis.losses_without.tolist()),
    }
    return render_page("attention", scripts=["attention.js"], data=data)


def _rounded(numbers: Any) -> Any:
    """Round a number, or nested lists of numbers, to five decimals; NaN becomes None."""
    if isinstance(numbers, list):
        return [_rounded(number) for number in numbers]
    return round(numbers, 5) if math.isfinite(numbers) else None
