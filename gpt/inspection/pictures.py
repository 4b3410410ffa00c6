"""Draw pictures: attention as a heat map for each head, and the val losses of compared runs."""

import io
import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from cycler import cycler
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from gpt.errors import shown
from gpt.evaluation.comparison import Comparison, Row
from gpt.evaluation.head_analysis import AttentionAnalysis
from gpt.model.attention_maps import Attention
from gpt.terminal import escaped, symbol

PICTURE_INCHES = 14.0  # width of a row of maps, if MIN_SIDE and MAX_SIDE allow it
MIN_SIDE, MAX_SIDE = 1.7, 7.0  # smallest and largest side of a map in inches
LABEL_INCHES = 0.11  # smallest distance between labels; their letters are then 6 points high
MIN_DPI = 150  # smallest resolution in dots per inch; raised so that a cell is at least a dot
COLOURS = "YlOrBr"
# matplotlib draws each character in the first of these fonts that contains it.
FONTS = (
    "DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Hiragino Sans", "Apple SD Gothic Neo",
    "Arial Unicode MS", "WenQuanYi Zen Hei", "Noto Sans",
)  # fmt: skip
CURVE_INCHES = (10.5, 3.8)  # width and height of the picture without its legend
LEGEND_LINE_INCHES = 0.22  # height of a line of the legend
MAX_LABEL_CHARACTERS = 110  # largest length of a line of the legend
MAX_LABEL_SETTINGS = 3  # with more settings than this, the legend names a row after its first run
CURVE_DPI = 150  # dots per inch
Y_MARGIN = 0.05  # space above the highest loss, as a fraction of the range of losses
# the colours of Okabe and Ito, which colour-blind readers can tell apart
ROW_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def png(figure: Figure, dpi: float | None = None) -> bytes:
    """Return `figure` as a PNG file with `dpi` dots per inch, by default `figure.dpi`."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi or "figure")
    return content.getvalue()


def draw_heads(attention: Attention, text: Sequence[str], title: str) -> Figure:
    """Draw a heat map (T, T) for each head: rows are query positions, columns key positions.

    Colours show the square roots of the weights, so that small weights are visible. Each label has
    several characters if there is no room for a label per character. For an AttentionAnalysis, the
    empty half of each map also shows how much the loss rises without the head, and the scores
    `previous` and `induction` of the head.
    """
    n_layer, H, T, _ = attention.weights.shape
    side = min(max(MIN_SIDE, PICTURE_INCHES / H), MAX_SIDE)
    size = math.ceil(LABEL_INCHES * T / side)  # number of characters in a label
    signs = [symbol(c) if _has_glyphs(symbol(c)) else escaped(c) for c in text]
    labels = ["".join(signs[t : t + size]) for t in range(0, T, size)]
    centres = [(t + min(t + size, T) - 1) / 2 for t in range(0, T, size)]
    points = min(0.8 * 72 * size * side / T, 11)
    margin = max(map(len, labels)) * 0.7 * points / 72  # length of the longest label in inches
    width, height = side * H + 1.4 + margin, side * n_layer + 0.8 + margin
    figure = Figure((width, height), dpi=max(MIN_DPI, T / side), layout="constrained")
    title = title if _has_glyphs(title) else ascii(title)
    figure.suptitle(title, fontsize=10, fontfamily=_fonts(), parse_math=False)
    future = np.triu(np.ones((T, T), bool), 1)  # cells of later positions, which stay white
    grid = figure.subplots(n_layer, H, squeeze=False)
    for (layer, head), axes in np.ndenumerate(grid):
        shown = np.ma.array(attention.weights[layer, head].numpy(), mask=future)
        image = axes.imshow(shown, cmap=COLOURS, norm=PowerNorm(0.5, 0, 1))
        axes.set_xticks([])
        axes.set_yticks([])
        axes.tick_params(length=0, labelsize=points, pad=2, labelfontfamily=_fonts())
        axes.spines[:].set_color("#d6d3d1")
        if isinstance(attention, AttentionAnalysis) and T > 1:
            scores = (
                f"cost {attention.removal_costs[layer, head]:+.3f}\n"
                f"previous {attention.previous[layer, head]:.2f}\n"
                f"induction {attention.induction[layer, head]:.2f}"
            )
            place = {"ha": "right", "va": "top", "transform": axes.transAxes}
            axes.text(0.97, 0.97, scores, fontsize=min(3.5 * side, 9), **place)
    for layer, axes in enumerate(grid[:, 0]):
        axes.set_ylabel(f"layer {layer + 1}")
        axes.set_yticks(centres, labels)
    for head in range(H):
        grid[0, head].set_title(f"head {head + 1}", fontsize=10)
        is_long = max(map(len, labels)) > 1
        grid[-1, head].set_xticks(centres, labels, rotation=-90 if is_long else 0)
    figure.supxlabel("key position", fontsize=9)
    figure.supylabel("query position", fontsize=9)
    ticks = [0, 0.01, 0.1, 0.25, 0.5, 1]
    figure.colorbar(image, ax=grid, shrink=0.6, pad=0.01, ticks=ticks, format="{x:g}")
    return figure


def _has_glyphs(text: str) -> bool:
    """Return whether the installed FONTS have a glyph for every character of `text`."""
    files = [font_manager.get_font(font_manager.findfont(name)) for name in _fonts()]
    return all(any(file.get_char_index(ord(c)) for file in files) for c in text)


@cache
def _fonts() -> list[str]:
    """Return the names in FONTS that are installed."""
    return [name for name in FONTS if name in font_manager.get_font_names()]


def draw_curves(comparison: Comparison) -> Figure:
    """Draw the val losses against steps, characters and seconds, in three panels.

    Each row of the comparison has runs that differ only by seed. A line shows their mean loss at
    each evaluation, and a band reaches from their lowest loss to their highest.
    """
    width, height = CURVE_INCHES
    rows = [row for row in comparison.rows if any(run.curve.steps for run in row.runs)]
    figure = Figure(
        (width, height + LEGEND_LINE_INCHES * (len(rows) + 1)), CURVE_DPI, layout="constrained"
    )
    panels = figure.subplots(1, 3, sharey=True)
    for axes, x_axis in zip(panels, ("steps", "characters", "seconds"), strict=True):
        axes.set_prop_cycle(cycler(linestyle=["-", "--", ":"]) * cycler(color=ROW_COLOURS))
        for row in rows:
            _draw_row(axes, row, x_axis)
        axes.set_xlabel(f"{x_axis} of training")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlim(0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    curves = [run.curve for row in rows for run in row.runs]
    pairs = [pair for curve in curves for pair in zip(curve.steps, curve.losses, strict=True)]
    losses = [loss for step, loss in pairs if step > 0 and not math.isnan(loss)]
    if losses:  # exclude step 0, whose high losses would flatten the curves
        panels[0].set_ylim(top=max(losses) + Y_MARGIN * np.ptp(losses))
    panels[0].set_ylabel("val loss (or on a part of val), nats per character")
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower left",
        frameon=False,
        title="line: mean over seeds; band: from the lowest to the highest",
        alignment="left",
    )
    return figure


def _draw_row(axes: Axes, row: Row, x_axis: str) -> None:
    """Plot the val losses of the runs in `row` against `x_axis`, a field of their curves.

    Each evaluation that all runs have is a point, at the mean of `x_axis` over the runs.
    """
    curves = [run.curve for run in row.runs if run.curve.steps]
    n = min(len(curve.steps) for curve in curves)
    x = np.mean([getattr(curve, x_axis)[:n] for curve in curves], axis=0)
    losses = np.array([curve.losses[:n] for curve in curves])
    marker = "o" if n == 1 else None
    settings = [f"{key.rpartition('.')[2]} {value}" for key, value in row.settings.items()]
    is_short = 0 < len(settings) <= MAX_LABEL_SETTINGS
    name = ", ".join(settings) if is_short else row.runs[0].name
    text = f"row {row.number}: {name} (n = {len(row.runs)})"
    label = shown(text, MAX_LABEL_CHARACTERS).replace("$", r"\$")  # `$` would begin a formula
    (line,) = axes.plot(x, losses.mean(0), marker=marker, label=label, linewidth=1.5)
    if len(curves) > 1:
        band = (losses.min(0), losses.max(0))
        axes.fill_between(x, *band, color=line.get_color(), alpha=0.2, linewidth=0)
