"""Bold text and weighted cells for a terminal that shows colours (ANSI codes, 256 colours)."""

BLUE, RED = 33, 160  # colour numbers (of 256) that stand out on white and on black


def bold(text: str) -> str:
    """Return the text in bold."""
    return f"\x1b[1m{text}\x1b[22m"


def coloured(text: str, colour: int = BLUE) -> str:
    """Return the text in one of 256 colours, on the terminal's own background."""
    return f"\x1b[38;5;{colour}m{text}\x1b[0m"


def shaded(text: str, value: float) -> str:
    """Return the text, the more prominent the larger `value` is, from -1 to 1.

    Small values are dim, larger ones blue (negative ones red), the largest white on that colour.
    No background is set but for the largest, so they stand out on dark and on light terminals.
    Values beyond 1 or -1, and NaN, are shown as the largest.
    """
    colour, size = RED if value < 0 else BLUE, abs(value)
    if size < 1 / 6:
        return f"\x1b[2m{text}\x1b[0m"
    if size < 1 / 2:
        return coloured(text, colour)
    if size < 3 / 4:
        return f"\x1b[1;38;5;{colour}m{text}\x1b[0m"
    return f"\x1b[48;5;{colour};1;38;5;231m{text}\x1b[0m"
