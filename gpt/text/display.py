"""Make characters safe to print."""

import unicodedata

UNSAFE_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
UNSAFE_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
SIGNS = {"\n": "↵", "\t": "⇥", " ": "␣"}


def visible(text: str) -> str:
    r"""Escape the characters of `text` that are not safe to print.

    Escape line separators, surrogates, characters that change the direction of writing, and
    control characters such as ESC (`\x1b`). Keep LF and tabs.
    """
    return "".join(escaped(c) if c not in "\n\t" and _is_unsafe(c) else c for c in text)


def _is_unsafe(c: str) -> bool:
    direction = unicodedata.bidirectional(c)
    return unicodedata.category(c) in UNSAFE_CATEGORIES or direction in UNSAFE_DIRECTIONS


def symbol(c: str) -> str:
    r"""Return a visible form of a character, such as `↵` for a line end or `\x1b` for ESC."""
    if len(c) > 1:
        return c
    category = unicodedata.category(c)[0]
    if c in SIGNS or category == "M":
        return SIGNS.get(c, f"◌{c}")
    return escaped(c) if category in "CZ" else c


def escaped(c: str) -> str:
    r"""Return the character as a Python escape sequence in ASCII, such as `\x1b` or `\u202e`."""
    return c.encode("unicode_escape").decode()


def in_one_line(text: str) -> str:
    """Return `visible(text)` on one line, with `↵` for line ends and `⇥` for tabs."""
    return visible(text.translate({ord(c): SIGNS[c] for c in "\n\t"}))
