"""Characters from a text or a model, made safe to look at, and to tell apart."""

import unicodedata
from itertools import accumulate

UNSAFE_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
ZERO_WIDTH_CATEGORIES = {"Mn", "Me", "Cf"}
UNSAFE_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}

SIGNS = {"\n": "↵", "\t": "⇥", " ": "␣"}


def visible(text: str) -> str:
    """The text with control and direction characters spelled out, so that a terminal obeys none.

    New lines and tabs stay. ESC becomes `\\x1b`, a right-to-left override `\\u202e`.
    """
    return "".join(map(_visible, text))


def symbol(c: str) -> str:
    """A sign that shows the character where it stands alone: `a`, `↵`, `␣`, `\\x1b`, `\\u200b`.

    An accent that needs a letter below it is set on a dotted circle. The name of a byte beyond
    ASCII, `\\xe3`, is one already.
    """
    if len(c) > 1:
        return c
    category = unicodedata.category(c)[0]
    if c in SIGNS or category == "M":
        return SIGNS.get(c, f"◌{c}")
    return escaped(c) if category in "CZ" else c


def escaped(c: str) -> str:
    """The character as Python spells it in ASCII: `\\x1b`, `\\u202e`."""
    return c.encode("unicode_escape").decode()


def in_one_line(text: str) -> str:
    """The text made `visible`, with signs for its line ends and tabs."""
    return visible(text.translate({ord(c): SIGNS[c] for c in "\n\t"}))


def columns(text: str) -> int:
    """Count the columns that the text takes in a terminal.

    Marks that are drawn over the character before them (Mn, Me) and format characters (Cf) take
    none: Thai and Hindi vowels, joiners.
    """
    return sum(
        0
        if unicodedata.category(c) in ZERO_WIDTH_CATEGORIES
        else 2
        if unicodedata.east_asian_width(c) in "WF"
        else 1
        for c in text
    )


def first_columns(text: str, width: int) -> str:
    """As many of its first characters as, made visible, take at most `width` columns."""
    taken = accumulate(columns(_visible(c)) for c in text)
    return text[: sum(column <= width for column in taken)]


def _visible(c: str) -> str:
    unsafe = (
        unicodedata.category(c) in UNSAFE_CATEGORIES
        or unicodedata.bidirectional(c) in UNSAFE_DIRECTIONS
    )
    return escaped(c) if unsafe and c not in "\n\t" else c
