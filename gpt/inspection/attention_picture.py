"""Attention as a picture: a heat map for each head, layers down, heads across."""

import io
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure, FigureBase
from torch import Tensor

from gpt.errors import UsageError
from gpt.evaluation.attention_weights import Attention
from gpt.evaluation.head_analysis import AttentionAnalysis
from gpt.text.display import escaped, symbol
from gpt.text.vocabulary import Vocabulary

PICTURE_INCHES = 14.0  # width of all maps, unless that makes them too small or too large
MIN_SIDE, MAX_SIDE = 1.7, 7.0  # inches of the side of one map
LABEL_INCHES = 0.11  # smallest distance of two labels, which are then 6 points high
MAX_LABEL_CHARACTERS = 36
MAX_SINGLE_LABELS = 32  # longest text, in characters, whose maps grow until each has its label
MIN_DPI = 150  # dots per inch; more where a map has more positions than dots
COLOURS = "YlOrBr"
# matplotlib uses the later fonts for the characters that the earlier ones lack.
FONTS = (
    "DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Hiragino Sans", "Apple SD Gothic Neo",
    "Arial Unicode MS", "WenQuanYi Zen Hei", "Noto Sans",
)  # fmt: skip


def png(figure: Figure, dpi: float | None = None) -> bytes:
    """Return `figure` as a PNG file with `dpi` dots per inch, or its own resolution."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi or "figure")
    return content.getvalue()


def draw(attention: Attention, text: Sequence[str], title: str) -> Figure:
    """Draw n_layer x H heat maps (T, T): rows are query positions, columns key positions.

    All maps share one colour scale from 0 to 1, drawn as its square root so that small weights
    show. `text` has the characters of the text, or the names of its bytes. If there is no room for
    a label per character, each label has several characters.

    Raises:
        UsageError: `text` is too long for readable labels.
    """
    n_layer, H, T, _ = attention.weights.shape
    side = _side(n_layer, H, H, T)
    labels = _Labels(text, side)
    width, height = side * H + 1.4 + labels.inches, side * n_layer + 0.8 + labels.inches
    figure = _figure(width, height, T / side, title)
    _draw_maps(figure, attention, attention.weights, labels)
    return figure


def draw_analysis(
    analysis: AttentionAnalysis, text: Sequence[str], title: str, vocabulary: Vocabulary
) -> Figure:
    """Draw the weights, the lengths of the vectors that they add, and the logit lens.

    Each map of weights contains, in its masked half, the removal cost of its head, its
    previous-character score and its induction score. For `text` and its errors see `draw`.
    """
    n_layer, H, T, _ = analysis.weights.shape
    side = _side(n_layer, H, 2 * H, T)
    labels = _Labels(text, side)
    half = side * H + 1.4 + labels.inches
    lens_inches = 2 * half - 3
    lens_labels = _Labels(text, lens_inches)
    heights = [side * n_layer + 1.0 + labels.inches, 0.3 * n_layer + 1.4 + lens_labels.inches]
    figure = _figure(2 * half, sum(heights), T / side, title)
    parts: Any = figure.subfigures(2, 1, height_ratios=heights)  # NumPy array of SubFigure
    left, right = parts[0].subfigures(1, 2)
    maps = _draw_maps(left, analysis, analysis.weights, labels)
    left.suptitle(
        "attention weights; cost: the rise of the text's loss without the head (nats)", fontsize=9
    )
    for (layer, head), axes in np.ndenumerate(maps) if T > 1 else ():
        scores = (
            f"cost {analysis.removal_costs[layer, head]:+.3f}\n"
            f"previous {analysis.previous[layer, head]:.2f}\n"
            f"induction {analysis.induction[layer, head]:.2f}"
        )
        size = min(3.5 * side, 9)
        axes.text(0.97, 0.97, scores, fontsize=size, ha="right", va="top", transform=axes.transAxes)
    added = analysis.weights * analysis.value_norms[:, :, None]  # (n_layer, H, T, T)
    _draw_maps(right, analysis, added, labels, float(added.max()) or 1.0)  # 0 if untrained
    right.suptitle("|weight x value|: the length of the vector that each key adds", fontsize=9)
    _draw_lens(parts[1], analysis, vocabulary, lens_labels, lens_inches / T)
    return figure


class _Labels:
    """Labels for an axis of `inches`: one per character, or per several if the text is long."""

    def __init__(self, text: Sequence[str], inches: float) -> None:
        T = len(text)
        size = math.ceil(LABEL_INCHES * T / inches)  # characters of a label
        starts = range(0, T, size)
        self.texts = ["".join(map(_sign, text[t : t + size])) for t in starts]
        self.centres = [(t + min(t + size, T) - 1) / 2 for t in starts]
        self.points = min(0.8 * 72 * size * inches / T, 11)
        self.inches = max(map(len, self.texts)) * 0.7 * self.points / 72  # length of the longest

    def clear(self, axes: Axes) -> None:
        """Remove the labels of `axes`, and set the style of later ones."""
        axes.set_xticks([])
        axes.set_yticks([])
        axes.tick_params(length=0, labelsize=self.points, pad=2, labelfontfamily=_fonts())
        axes.spines[:].set_color("#d6d3d1")

    def set_columns(self, axes: Axes) -> None:
        """Write the labels below the columns of `axes`."""
        is_long = max(map(len, self.texts)) > 1
        axes.set_xticks(self.centres, self.texts, rotation=-90 if is_long else 0)


def _draw_maps(
    figure: FigureBase,
    attention: Attention,
    maps: Tensor,
    labels: _Labels,
    largest: float = 1.0,
) -> Any:
    """Draw `maps` (n_layer, H, T, T) with one colour scale from 0 to `largest`; return the axes."""
    n_layer, H, T, _ = maps.shape
    future = np.triu(np.ones((T, T), bool), 1)  # stays white
    grid = figure.subplots(n_layer, H, squeeze=False)
    for (layer, head), axes in np.ndenumerate(grid):
        shown = np.ma.array(maps[layer, head].numpy(), mask=future)
        image = axes.imshow(shown, cmap=COLOURS, norm=PowerNorm(0.5, 0, largest))
        labels.clear(axes)
    for layer, axes in enumerate(grid[:, 0]):
        axes.set_ylabel(f"layer {layer + 1}")
        axes.set_yticks(labels.centres, labels.texts)
    for head in range(H):
        grid[0, head].set_title(f"head {head + 1}{attention.member_suffix(head)}", fontsize=10)
        labels.set_columns(grid[-1, head])
    figure.supxlabel("key position", fontsize=9)
    figure.supylabel("query position", fontsize=9)
    ticks = largest * np.array([0, 0.01, 0.1, 0.25, 0.5, 1])
    bar = figure.colorbar(image, ax=grid, shrink=0.6, aspect=30, pad=0.01, ticks=ticks)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.ax.set_yticklabels([f"{tick:.2g}" for tick in ticks])
    return grid


def _draw_lens(
    figure: FigureBase,
    analysis: AttentionAnalysis,
    vocabulary: Vocabulary,
    labels: _Labels,
    cell_inches: float,
) -> None:
    """Draw the logit lens: a row for the embeddings and for each layer, a column per position."""
    lens = analysis.lens
    axes = figure.subplots()
    axes.imshow(lens.probabilities.numpy(), cmap=COLOURS, norm=PowerNorm(0.5, 0, 1), aspect="auto")
    labels.clear(axes)
    labels.set_columns(axes)
    rows = [
        ("embeddings" if row == 0 else f"layer {row}")
        + (f", loss {losses.mean():.3f}" if len(losses) else "")
        for row, losses in enumerate(lens.losses)
    ]
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    if cell_inches > LABEL_INCHES:
        for (row, t), i in np.ndenumerate(lens.predicted.numpy()):
            axes.text(
                t,
                row,
                _sign(vocabulary.names[i]),
                fontsize=min(0.7 * 72 * cell_inches, 11),
                fontfamily=_fonts(),
                color="white" if lens.probabilities[row, t] > 0.4 else "black",
                ha="center",
                va="center",
                parse_math=False,
                in_layout=False,
            )
    figure.suptitle(
        "logit lens: the most likely next character after each layer, its probability", fontsize=9
    )


def _side(n_layer: int, H: int, columns: int, T: int) -> float:
    """Return the side of a map in inches, if `columns` maps are side by side.

    Raises:
        UsageError: the labels of T positions would not be readable.
    """
    single_labels = LABEL_INCHES * T if T <= MAX_SINGLE_LABELS else 0.0
    side = max(MIN_SIDE, PICTURE_INCHES / columns, single_labels)
    side = min(side, max(MAX_SIDE / 2, 2 * LABEL_INCHES * T), MAX_SIDE)
    if math.ceil(LABEL_INCHES * T / side) > MAX_LABEL_CHARACTERS:
        raise UsageError(
            f"a picture of {n_layer} x {H} heads: expected a text of at most "
            f"{int(side / LABEL_INCHES * MAX_LABEL_CHARACTERS)} characters, so that its labels are "
            f"readable, got {T}; cut the text, or make a page with --out NAME.html"
        )
    return side


def _figure(width: float, height: float, dots_per_inch: float, title: str) -> Figure:
    figure = Figure((width, height), dpi=max(MIN_DPI, dots_per_inch), layout="constrained")
    title = title if _has_shapes(title) else ascii(title)
    figure.suptitle(title, fontsize=10, fontfamily=_fonts(), parse_math=False)
    return figure


def _sign(character: str) -> str:
    """Return the sign of `character`, or its escape sequence if no font has a shape for it."""
    return symbol(character) if _has_shapes(symbol(character)) else escaped(character)


def _has_shapes(text: str) -> bool:
    """Return whether the fonts have a shape for every character of `text`."""
    files = [font_manager.get_font(font_manager.findfont(name)) for name in _fonts()]
    return all(any(file.get_char_index(ord(c)) for file in files) for c in text)


@cache
def _fonts() -> list[str]:
    """Return those of FONTS that are installed."""
    return [name for name in FONTS if name in font_manager.get_font_names()]
