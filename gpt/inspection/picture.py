"""Attention as a picture: a heat map for each head, layers down, heads across."""

import io
import math

import numpy as np
from matplotlib import font_manager
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from gpt.errors import UsageError
from gpt.evaluation.attention import Attention
from gpt.text.display import escaped, symbol

WIDTH, SMALLEST, LARGEST = 14.0, 1.7, 7.0  # inches: of the whole picture; of the side of one map
LABEL_INCHES = 0.11  # from one label to the next, at least: 6 points high
LABEL_CHARACTERS = 36  # in one label, at most
DPI = 150  # more where a map has more positions than dots
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


def png(attention: Attention, text: str, title: str) -> bytes:
    """The picture of `draw` as the content of a PNG file. Raises UsageError as `draw` does."""
    content = io.BytesIO()
    draw(attention, text, title).savefig(content, format="png")
    return content.getvalue()


def draw(attention: Attention, text: str, title: str) -> Figure:
    """A grid of n_layer x H heat maps (T, T): rows are query positions, columns key positions.

    All share one colour scale from 0 to 1, drawn as its square root, so that small weights show.
    Where the characters have no room for a label each, each label is a few of them in a row.

    Raises:
        UsageError: the text is so long that its labels would not be readable.
    """
    n_layer, H, T, _ = attention.weights.shape
    side = min(max(SMALLEST, WIDTH / H), max(LARGEST / 2, 2 * LABEL_INCHES * T), LARGEST)
    every = math.ceil(LABEL_INCHES * T / side)  # characters in a label
    if every > LABEL_CHARACTERS:
        raise UsageError(
            f"a picture of {n_layer} x {H} heads: expected a text of at most "
            f"{int(side / LABEL_INCHES * LABEL_CHARACTERS)} characters, so that its labels are "
            f"readable, got {T}; cut the text, or make a page with --out NAME.html"
        )
    points = min(0.8 * 72 * every * side / T, 11)  # the labels' size
    fonts = [name for name in FONTS if name in font_manager.get_font_names()]
    starts = range(0, T, every)
    labels = [_label(text[t : t + every], fonts) for t in starts]
    centres = [(t + min(t + every, T) - 1) / 2 for t in starts]
    future = np.triu(np.ones((T, T), bool), 1)  # left white

    margin = max(map(len, labels)) * 0.7 * points / 72
    figure = Figure(
        (side * H + 1.4 + margin, side * n_layer + 0.8 + margin),
        dpi=max(DPI, T / side),
        layout="constrained",
    )
    grid = figure.subplots(n_layer, H, squeeze=False)
    for layer, row in enumerate(grid):
        for head, axes in enumerate(row):
            weights = np.ma.array(attention.weights[layer, head].numpy(), mask=future)
            image = axes.imshow(weights, cmap="YlOrBr", norm=PowerNorm(0.5, 0, 1))
            axes.set_xticks([])
            axes.set_yticks([])
            axes.tick_params(length=0, labelsize=points, pad=2, labelfontfamily=fonts)
            axes.spines[:].set_color("#d6d3d1")
        row[0].set_ylabel(f"layer {layer + 1}")
        row[0].set_yticks(centres, labels)
    for head, axes in enumerate(grid[0]):
        axes.set_title(f"head {head + 1}", fontsize=10)
        grid[-1, head].set_xticks(centres, labels, rotation=-90 if max(map(len, labels)) > 1 else 0)
    title = title if _have_shapes(fonts, title) else ascii(title)
    figure.suptitle(title, fontsize=10, fontfamily=fonts, parse_math=False)
    figure.supxlabel("key position", fontsize=9)
    figure.supylabel("query position", fontsize=9)
    ticks = [0, 0.01, 0.1, 0.25, 0.5, 1]
    bar = figure.colorbar(image, ax=grid, shrink=0.6, aspect=30, pad=0.01, ticks=ticks)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.ax.set_yticklabels([f"{weight:.0%}" for weight in ticks])
    return figure


def _label(text: str, fonts: list[str]) -> str:
    """The characters' signs, spelled out where no font has a shape for one."""
    return "".join(symbol(c) if _have_shapes(fonts, symbol(c)) else escaped(c) for c in text)


def _have_shapes(fonts: list[str], text: str) -> bool:
    files = [font_manager.get_font(font_manager.findfont(name)) for name in fonts]
    return all(any(file.get_char_index(ord(c)) for file in files) for c in text)
