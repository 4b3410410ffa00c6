"""Attention as a picture: a heat map for each head, layers down, heads across."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
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

WIDTH, SMALLEST, LARGEST = 14.0, 1.7, 7.0  # inches: of the whole picture; of the side of one map
LABEL_INCHES = 0.11  # from one label to the next, at least: 6 points high
LABEL_CHARACTERS = 36  # in one label, at most
SINGLE_LABELS = 32  # longest text, in characters, that has one label per character in any grid
DPI = 150  # more where a map has more positions than dots
COLOURS = "YlOrBr"
# The second and later ones are asked for the characters that those before lack.
FONTS = [
    "DejaVu Sans",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
    "WenQuanYi Zen Hei",
    "Noto Sans",
]


def png(figure: Figure, dpi: float | None = None) -> bytes:
    """Return the figure as the content of a PNG file, with `dpi` dots per inch or its own."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi or "figure")
    return content.getvalue()


def draw(attention: Attention, text: Sequence[str], title: str) -> Figure:
    """A grid of n_layer x H heat maps (T, T): rows are query positions, columns key positions.

    The text is given by its T characters, or the names of its bytes.

    All share one colour scale from 0 to 1, drawn as its square root, so that small weights show.
    Where the characters have no room for a label each, each label is a few of them in a row.

    Raises:
        UsageError: the text is so long that its labels would not be readable.
    """
    n_layer, H, T, _ = attention.weights.shape
    side, labels = _side_and_labels(n_layer, H, H, text)
    margin = labels.inches
    figure = _figure(side * H + 1.4 + margin, side * n_layer + 0.8 + margin, T / side)
    _title(figure, title)
    whose = [attention.member_suffix(head) for head in range(H)]
    _draw_maps(figure, attention.weights, whose, labels)
    return figure


def draw_analysis(
    analysis: AttentionAnalysis, text: Sequence[str], title: str, vocabulary: Vocabulary
) -> Figure:
    """The weights as `draw` does, |weight x value| beside them, and the logit lens below.

    In each map of weights, where the future is masked, stands what the head's removal costs, its
    previous-character score and its induction score.

    Raises:
        UsageError: as `draw`.
    """
    n_layer, H, T, _ = analysis.weights.shape
    side, labels = _side_and_labels(n_layer, H, 2 * H, text)
    half = side * H + 1.4 + labels.inches
    lens_labels = _labels(text, 2 * half - 3)
    heights = [side * n_layer + 1.0 + labels.inches, 0.3 * n_layer + 1.4 + lens_labels.inches]
    figure = _figure(2 * half, sum(heights), T / side)
    _title(figure, title)
    parts: Any = figure.subfigures(2, 1, height_ratios=heights)  # numpy's array of SubFigure
    left, right = parts[0].subfigures(1, 2)
    whose = [analysis.member_suffix(head) for head in range(H)]
    maps = _draw_maps(left, analysis.weights, whose, labels)
    _heading(left, "attention weights; cost: the rise of the text's loss without the head (nats)")
    if T > 1:
        for (layer, head), axes in np.ndenumerate(maps):
            scores = (
                f"cost {analysis.removal_costs[layer, head]:+.3f}\n"
                f"previous {analysis.previous[layer, head]:.2f}\n"
                f"induction {analysis.induction[layer, head]:.2f}"
            )
            axes.text(
                0.97,
                0.97,
                scores,
                fontsize=min(3.5 * side, 9),
                ha="right",
                va="top",
                transform=axes.transAxes,
            )
    added = analysis.weights * analysis.value_norms[:, :, None]  # (n_layer, H, T, T)
    _draw_maps(right, added, whose, labels, largest=float(added.max()) or 1.0)  # 0: untrained
    _heading(right, "|weight x value|: the length of what each key adds to the stream")
    _draw_lens(parts[1], analysis, vocabulary, lens_labels, 2 * half - 3)
    return figure


def _draw_maps(
    figure: FigureBase, maps: Tensor, whose: list[str], labels: "_Labels", largest: float = 1.0
) -> Any:  # numpy's array of Axes
    """Heat maps (n_layer, H, T, T) with one colour scale from 0 to `largest`.

    `whose` says of each head which member's it is, see `Attention.whose`.
    """
    n_layer, H, T, _ = maps.shape
    future = np.triu(np.ones((T, T), bool), 1)  # left white
    grid = figure.subplots(n_layer, H, squeeze=False)
    for (layer, head), axes in np.ndenumerate(grid):
        shown = np.ma.array(maps[layer, head].numpy(), mask=future)
        image = axes.imshow(shown, cmap=COLOURS, norm=PowerNorm(0.5, 0, largest))
        labels.prepare(axes)
    for layer, axes in enumerate(grid[:, 0]):
        axes.set_ylabel(f"layer {layer + 1}")
        axes.set_yticks(labels.centres, labels.texts)
    for head in range(H):
        grid[0, head].set_title(f"head {head + 1}{whose[head]}", fontsize=10)
        labels.set_columns(grid[-1, head])
    figure.supxlabel("key position", fontsize=9)
    figure.supylabel("query position", fontsize=9)
    shares = np.array([0, 0.01, 0.1, 0.25, 0.5, 1])
    bar = figure.colorbar(image, ax=grid, shrink=0.6, aspect=30, pad=0.01, ticks=largest * shares)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.ax.set_yticklabels([f"{largest * share:.2g}" for share in shares])
    return grid


def _draw_lens(
    figure: FigureBase,
    analysis: AttentionAnalysis,
    vocabulary: Vocabulary,
    labels: "_Labels",
    inches: float,
) -> None:
    """A row for the embeddings and each layer: the likeliest next character at each position."""
    lens = analysis.lens
    rows, T = lens.predicted.shape
    axes = figure.subplots()
    axes.imshow(lens.probabilities.numpy(), cmap=COLOURS, norm=PowerNorm(0.5, 0, 1), aspect="auto")
    labels.prepare(axes)
    labels.set_columns(axes)
    names = ["embeddings", *(f"layer {layer}" for layer in range(1, rows))]
    losses = [f", loss {row.mean():.3f}" if len(row) else "" for row in lens.losses]
    axes.set_yticks(range(rows), map("".join, zip(names, losses, strict=True)), fontsize=8)
    if inches / T > LABEL_INCHES:
        for (row, t), i in np.ndenumerate(lens.predicted.numpy()):
            axes.text(
                t,
                row,
                _label([vocabulary.names[i]], labels.fonts),
                fontsize=min(0.7 * 72 * inches / T, 11),
                fontfamily=labels.fonts,
                color="white" if lens.probabilities[row, t] > 0.4 else "black",
                ha="center",
                va="center",
                parse_math=False,
                in_layout=False,
            )
    _heading(figure, "logit lens: the likeliest next character after each layer, its probability")


@dataclass(frozen=True)
class _Labels:
    """The labels of an axis: a few characters each, their centres, and how they are written."""

    texts: list[str]
    centres: list[float]
    points: float
    fonts: list[str]

    @property
    def inches(self) -> float:
        """What the longest one takes, about."""
        return max(map(len, self.texts)) * 0.7 * self.points / 72

    def prepare(self, axes: Axes) -> None:
        """No labels yet, but as these are to be written."""
        axes.set_xticks([])
        axes.set_yticks([])
        axes.tick_params(length=0, labelsize=self.points, pad=2, labelfontfamily=self.fonts)
        axes.spines[:].set_color("#d6d3d1")

    def set_columns(self, axes: Axes) -> None:
        """Write them below the columns."""
        long = max(map(len, self.texts)) > 1
        axes.set_xticks(self.centres, self.texts, rotation=-90 if long else 0)


def _side_and_labels(
    n_layer: int, H: int, columns: int, text: Sequence[str]
) -> tuple[float, _Labels]:
    """The side of a map in inches, with so many side by side, and the labels of its axes."""
    T = len(text)
    one_each = LABEL_INCHES * T if T <= SINGLE_LABELS else 0.0
    side = max(SMALLEST, WIDTH / columns, one_each)
    side = min(side, max(LARGEST / 2, 2 * LABEL_INCHES * T), LARGEST)
    if math.ceil(LABEL_INCHES * T / side) > LABEL_CHARACTERS:
        raise UsageError(
            f"a picture of {n_layer} x {H} heads: expected a text of at most "
            f"{int(side / LABEL_INCHES * LABEL_CHARACTERS)} characters, so that its labels are "
            f"readable, got {T}; cut the text, or make a page with --out NAME.html"
        )
    return side, _labels(text, side)


def _labels(text: Sequence[str], inches: float) -> _Labels:
    """The labels of an axis of so many inches."""
    T = len(text)
    every = math.ceil(LABEL_INCHES * T / inches)  # characters in a label
    fonts = [name for name in FONTS if name in font_manager.get_font_names()]
    starts = range(0, T, every)
    return _Labels(
        texts=[_label(text[t : t + every], fonts) for t in starts],
        centres=[(t + min(t + every, T) - 1) / 2 for t in starts],
        points=min(0.8 * 72 * every * inches / T, 11),
        fonts=fonts,
    )


def _figure(width: float, height: float, dots_per_inch: float) -> Figure:
    return Figure((width, height), dpi=max(DPI, dots_per_inch), layout="constrained")


def _title(figure: Figure, title: str) -> None:
    fonts = [name for name in FONTS if name in font_manager.get_font_names()]
    title = title if _have_shapes(fonts, title) else ascii(title)
    figure.suptitle(title, fontsize=10, fontfamily=fonts, parse_math=False)


def _heading(figure: FigureBase, text: str) -> None:
    figure.suptitle(text, fontsize=9)


def _label(text: Sequence[str], fonts: list[str]) -> str:
    """The characters' signs, spelled out where no font has a shape for one."""
    return "".join(symbol(c) if _have_shapes(fonts, symbol(c)) else escaped(c) for c in text)


def _have_shapes(fonts: list[str], text: str) -> bool:
    files = [font_manager.get_font(font_manager.findfont(name)) for name in fonts]
    return all(any(file.get_char_index(ord(c)) for file in files) for c in text)
