"""Characters from a text or a model, made safe to look at, and to tell apart."""

import unicodedata

UNSAFE_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
UNSAFE_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}

SIGNS = {"\n": "↵", "\t": "⇥", " ": "␣", "\x7f": "␡"}


def visible(text: str) -> str:
    """The text with control and direction characters spelled out, so that a terminal obeys none.

    New lines and tabs stay. ESC becomes `\\x1b`, a right-to-left override `\\u202e`.
    """
    return "".join(map(_visible, text))


def _visible(c: str) -> str:
    unsafe = (
        unicodedata.category(c) in UNSAFE_CATEGORIES
        or unicodedata.bidirectional(c) in UNSAFE_DIRECTIONS
    )
    return c.encode("unicode_escape").decode() if unsafe and c not in "\n\t" else c


def symbol(c: str) -> str:
    """A sign that shows the character where it stands alone: `a`, `↵`, `␣`, `␛`, `U+200B`.

    An accent that needs a letter below it is set on a dotted circle.
    """
    category = unicodedata.category(c)
    if c in SIGNS:
        return SIGNS[c]
    if c < " ":
        return chr(0x2400 + ord(c))  # Unicode's pictures of the control characters
    if category.startswith("M"):
        return f"◌{c}"
    return f"U+{ord(c):04X}" if category[0] in "CZ" else c
