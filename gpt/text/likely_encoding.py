"""Guess the encoding of bytes that are not UTF-8."""

import codecs
import unicodedata
from collections import Counter
from itertools import pairwise

MIN_WIDE_CHARACTERS = 8  # sample size from which UTF-16 or UTF-32 is no coincidence
ENCODINGS = (  # candidates; of two that fit about as well, the first is chosen
    *("cp1252", "cp1251", "cp1250", "cp932", "euc_jp", "gb18030", "big5", "cp949", "koi8_r"),
    *("cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874", "iso8859_2"),
    *("cp850", "cp866", "cp852", "cp857", "cp737", "mac_roman", "mac_cyrillic", "mac_latin2"),
    *("utf_16_le", "utf_16_be"),
)
ORDER_PENALTY = 0.002  # for each place in ENCODINGS
TYPOGRAPHIC = "¿¡«»“”„‘’‚–—…•·°§№©®€£\xa0´`。、「」！？，；："


def likely_encoding(sample: bytes) -> str | None:
    """Return the most likely encoding of `sample`; None if it does not look like text."""
    if wide := likely_wide(sample):
        return wide
    penalties = encoding_penalties(sample)
    return min(penalties, key=penalties.__getitem__, default=None)


def encoding_penalties(sample: bytes) -> dict[str, float]:
    """Return how badly each encoding fits a sample that is not ASCII; absent ones cannot be."""
    import charset_normalizer

    if b"\0" in sample or sample.isascii():
        return {}
    matches = charset_normalizer.from_bytes(sample, cp_isolation=[*ENCODINGS], threshold=0.4)
    return {
        name: match.chaos - match.coherence + 2 * _misfits(str(match)) + ORDER_PENALTY * place
        for match in matches
        for place, name in enumerate(ENCODINGS)
        if name in match.could_be_from_charset
    }


def _misfits(text: str) -> float:
    """Return the fraction of non-ASCII characters that are symbols or out of place in a word."""
    pairs = [(before, c) for before, c in pairwise(f" {text} ") if c > "\x7f"]
    odd = sum(
        unicodedata.category(c)[0] not in "LM"
        or (c.isupper() and before.islower())
        or ("a" <= before.lower() <= "z" and c > "\u024f" and unicodedata.category(c) != "Mn")
        for before, c in pairs
        if c not in TYPOGRAPHIC
    )
    return odd / max(len(pairs), 1)


def likely_wide(sample: bytes) -> str | None:
    """Return the variant of UTF-16 or UTF-32 that zero bytes reveal; None if there are none."""
    if b"\0" not in sample:
        return None
    best = (0, "")
    for encoding in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(sample)
        except UnicodeDecodeError:
            continue
        if len(text) < MIN_WIDE_CHARACTERS or any(map(_never_in_text, text)):
            continue
        pages = Counter(ord(c) >> 8 for c in text)
        ascii_only = pages.pop(0, 0)
        common = ascii_only + max(pages.values(), default=0)  # characters of an alphabet and ASCII
        low = sum(ord(c) & 0xFF == 0 for c in text)
        if common > 0.6 * len(text) and low <= 0.1 * ascii_only:  # UTF-8 may contain a NUL, too
            best = max(best, (common, encoding))
    return best[1] or None


def _never_in_text(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") and c not in "\t\n\r\f\x0b\x1a"
