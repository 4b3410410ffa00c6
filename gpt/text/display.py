"""Make characters safe to look at, and highlight them in a terminal (ANSI codes, 256 colours)."""

import unicodedata

UNSAFE_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
UNSAFE_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
SIGNS = {"\n": "↵", "\t": "⇥", " ": "␣"}
BLUE, RED = 33, 160  # colour numbers (of 256) that stand out on white and on black


def visible(text: str) -> str:
    r"""Escape control and direction characters, so that a terminal obeys none.

    ESC becomes `\x1b`, a right-to-left override `\u202e`. New lines and tabs stay.
    """
    return "".join(map(_visible, text))


def _visible(c: str) -> str:
    unsafe = (
        unicodedata.category(c) in UNSAFE_CATEGORIES
        or unicodedata.bidirectional(c) in UNSAFE_DIRECTIONS
    )
    return escaped(c) if unsafe and c not in "\n\t" else c


def symbol(c: str) -> str:
    r"""Return a sign that shows a character on its own: `a`, `↵`, `␣`, `\x1b`, `\u200b`.

    An accent is set on a dotted circle. The name of a non-ASCII byte, `\xe3`, is returned as it
    is.
    """
    if len(c) > 1:
        return c
    category = unicodedata.category(c)[0]
    if c in SIGNS or category == "M":
        return SIGNS.get(c, f"◌{c}")
    return escaped(c) if category in "CZ" else c


def escaped(c: str) -> str:
    r"""Return the character as Python spells it in ASCII: `\x1b`, `\u202e`."""
    return c.encode("unicode_escape").decode()


def in_one_line(text: str) -> str:
    """Return `visible(text)` with signs for line ends and tabs."""
    return visible(text.translate({ord(c): SIGNS[c] for c in "\n\t"}))


def bold(text: str) -> str:
    """Return the text in bold."""
    return f"\x1b[1m{text}\x1b[22m"


def coloured(text: str, colour: int = BLUE) -> str:
    """Return the text in one of 256 colours, on the terminal's own background."""
    return f"\x1b[38;5;{colour}m{text}\x1b[0m"


def shaded(text: str, value: float) -> str:
    """Return the text, the more prominent the larger `value` is, from -1 to 1.

    Small values are dim, larger ones blue (negative ones red), the largest white on that colour.
    The others have no background, so they stand out on dark and on light terminals. Values beyond
    1 or -1, and NaN, are shown as the largest.
    """
    colour, size = RED if value < 0 else BLUE, abs(value)
    if size < 1 / 6:
        return f"\x1b[2m{text}\x1b[0m"
    if size < 1 / 2:
        return coloured(text, colour)
    if size < 3 / 4:
        return f"\x1b[1;38;5;{colour}m{text}\x1b[0m"
    return f"\x1b[48;5;{colour};1;38;5;231m{text}\x1b[0m"
