"""Bold text and shaded cells for a terminal that shows colours (ANSI codes, 256 colours)."""

BLUES = (231, 195, 153, 117, 75, 33, 27)  # from white, at zero, to the darkest, at the maximum
REDS = (231, 224, 217, 210, 203, 196, 160)  # the same for negative values
DARK_FROM = 5  # shades from this one on are written on in white


def bold(text: str) -> str:
    """The text in bold."""
    return f"\x1b[1m{text}\x1b[22m"


def shaded(text: str, value: float) -> str:
    """The text on blue, the darker the nearer the value is to 1; on red the nearer it is to -1.

    Both the background and the text get a colour, so that a dark terminal shows what a light one
    does. A value beyond 1 or -1, or NaN, is shown as the darkest.
    """
    shades = REDS if value < 0 else BLUES
    last = len(shades) - 1
    level = round(abs(value) * last) if abs(value) < 1 else last
    return f"\x1b[48;5;{shades[level]};38;5;{231 if level >= DARK_FROM else 16}m{text}\x1b[0m"
