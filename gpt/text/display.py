"""Text from a model, made safe to look at."""

import unicodedata

UNSAFE_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
UNSAFE_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


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
