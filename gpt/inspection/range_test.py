"""A learning-rate range test as a picture, and as a chart of a terminal."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHART_LINES = 10
MARGIN = 7  # columns before the chart: the loss of a line
MARKS = "abc"
AXIS = "learning rates, times those of the config"


def draw_range_test(
    factors: Sequence[float],
    losses: Sequence[float],
    smoothed: Sequence[float],
    marks: Mapping[str, float],
    title: str,
) -> "Figure":
    """The loss at each factor on the learning rates, smoothed, and lines at the named factors."""
    from matplotlib.figure import Figure  # takes its time

    figure = Figure((8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(factors, losses, ".", color="0.75", ms=4, label="of a step")
    axes.plot(factors, smoothed, color="C0", label="smoothed")
    for i, (name, factor) in enumerate(marks.items(), start=1):
        axes.axvline(factor, color=f"C{i}", lw=1, ls="--", label=f"{name}: x {factor:.2g}")
    axes.set(xscale="log", xlabel=AXIS, ylabel="train loss, nats")
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8)
    return figure


def chart(
    factors: Sequence[float],
    smoothed: Sequence[float],
    marks: Mapping[str, float],
    width: int = 80,
) -> str:
    """The smoothed loss in lines of at most `width` columns; a letter at each named factor.

    Factors are evenly spaced on the logarithm.
    """
    columns = width - MARGIN - 1
    low, high = min(smoothed), max(smoothed)
    left, right = math.log(factors[0]), math.log(factors[-1])

    def column(factor: float) -> int:
        return round((columns - 1) * (math.log(factor) - left) / ((right - left) or 1))

    lines = [[" "] * columns for _ in range(CHART_LINES)]
    for factor, loss in zip(factors, smoothed, strict=True):
        line = round((CHART_LINES - 1) * (high - loss) / ((high - low) or 1))
        lines[line][column(factor)] = "*"
    for letter, factor in zip(MARKS, marks.values(), strict=False):
        nearest = min(range(len(factors)), key=lambda i: abs(factors[i] - factor))
        line = round((CHART_LINES - 1) * (high - smoothed[nearest]) / ((high - low) or 1))
        lines[line][column(factors[nearest])] = letter
    labels = [f"{high - (high - low) * i / (CHART_LINES - 1):.2f}" for i in range(CHART_LINES)]
    drawn = [
        f"{label:>{MARGIN - 1}} |{''.join(cells).rstrip()}"
        for label, cells in zip(labels, lines, strict=True)
    ]
    ticks = [" "] * columns
    for power in range(math.ceil(left / math.log(10) - 1e-9), int(right // math.log(10)) + 1):
        text, at = f"{10.0**power:g}", column(10.0**power)
        if at + len(text) <= columns:
            ticks[at : at + len(text)] = text
    axis = f"{' ' * MARGIN}{''.join(ticks).rstrip()}"
    return "\n".join([*drawn, f"{' ' * MARGIN}{'-' * columns}", axis])
