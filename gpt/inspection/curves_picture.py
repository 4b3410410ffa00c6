"""Draw the val losses of compared runs against steps, characters and seconds of training."""

import math

import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from gpt.errors import shown
from gpt.evaluation.comparison import Comparison, Row

CURVE_INCHES = (10.5, 3.8)  # width and height of the picture without its legend
LEGEND_LINE_INCHES = 0.22  # height of a line of the legend
MAX_LABEL_CHARACTERS = 110  # largest length of a line of the legend
CURVE_DPI = 150  # dots per inch
Y_MARGIN = 0.05  # space above the highest loss, as a fraction of the range of losses
# the colours of Okabe and Ito, which colour-blind readers can tell apart
ROW_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def draw_curves(comparison: Comparison) -> Figure:
    """Draw the val losses against steps, characters and seconds, in three panels.

    Each row of the comparison has runs that differ only by seed. A line shows their mean loss, and
    a band reaches from their lowest loss to their highest. Losses between two evaluations of a run
    are interpolated linearly.
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
    if losses:  # the losses at step 0 would flatten the curves
        panels[0].set_ylim(top=max(losses) + Y_MARGIN * np.ptp(losses))
    panels[0].set_ylabel("val loss, nats per character")
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower left",
        frameon=False,
        fontsize=9,
        title="line: mean over seeds; band: from the lowest to the highest",
        title_fontsize=9,
        alignment="left",
    )
    return figure


def _draw_row(axes: Axes, row: Row, x_axis: str) -> None:
    """Plot the val losses of the runs in `row` against `x_axis`, a field of their curves.

    The legend has the settings of `row`, such as `row 2: C 64 (n = 3)`, or its first run.
    """
    curves = [run.curve for run in row.runs if run.curve.steps]
    places = [np.array(getattr(curve, x_axis), float) for curve in curves]
    start, end = max(x[0] for x in places), min(x[-1] for x in places)
    grid: NDArray[np.float64] = np.unique(np.concatenate(places))
    grid = grid[(grid >= start) & (grid <= end)]
    if not len(grid):  # the evaluations of the runs do not overlap
        return
    losses = np.array([np.interp(grid, x, c.losses) for x, c in zip(places, curves, strict=True)])
    marker = "o" if len(grid) == 1 else None
    settings = [f"{key.rpartition('.')[2]} {value}" for key, value in row.settings.items()]
    text = f"row {row.number}: {', '.join(settings) or row.runs[0].name} (n = {len(row.runs)})"
    label = shown(text, MAX_LABEL_CHARACTERS).replace("$", r"\$")  # `$` would begin a formula
    (line,) = axes.plot(grid, losses.mean(0), marker=marker, label=label, linewidth=1.5)
    if len(curves) > 1:
        band = (losses.min(0), losses.max(0))
        axes.fill_between(grid, *band, color=line.get_color(), alpha=0.2, linewidth=0)
