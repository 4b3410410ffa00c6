"""Guess the encoding of bytes that are not UTF-8."""

import codecs
import unicodedata
from itertools import pairwise

HIGH_BYTE_RATIO = 4  # smallest ratio of distinct low bytes to distinct high bytes in UTF-16
ENCODINGS = (  # candidates, the preferred ones first
    *("cp1252", "cp1251", "cp1250", "cp932", "euc_jp", "gb18030", "big5", "cp949", "koi8_r"),
    *("cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874", "iso8859_2"),
    *("cp850", "cp866", "cp852", "cp857", "cp737", "mac_roman", "mac_cyrillic", "mac_latin2"),
    *("utf_16_le", "utf_16_be"),
)
ORDER_PENALTY = 0.002  # added to the penalty of a candidate for each place in ENCODINGS
TYPOGRAPHIC = "¿¡«»“”„‘’‚–—…•·°§№©®€£\xa0´`。、「」！？，；："


def likely_encoding(sample: bytes) -> str | None:
    """Return the most likely encoding of `sample`; None if it does not look like text."""
    if wide := likely_wide(sample):
        return wide
    if b"\0" in sample or sample.isascii():
        return None
    import charset_normalizer

    matches = charset_normalizer.from_bytes(sample, cp_isolation=[*ENCODINGS], threshold=0.4)
    penalties = {
        name: match.chaos - match.coherence + 2 * _misfits(str(match)) + ORDER_PENALTY * place
        for match in matches
        for place, name in enumerate(ENCODINGS)
        if name in match.could_be_from_charset
    }
    return min(penalties, key=penalties.__getitem__, default=None)


def _misfits(text: str) -> float:
    """Return the fraction of the non-ASCII characters that are unlikely in real text.

    These are symbols that are not in TYPOGRAPHIC, a capital that follows a small letter, and a
    non-Latin letter (above U+024F) that follows an ASCII letter.
    """
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
    """Return `utf-16-le` or `utf-16-be` if NUL bytes in `sample` indicate it; otherwise None."""
    even, odd = sample[::2], sample[1::2]
    for encoding, high, low in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        # text in an alphabet has many distinct low bytes and few high ones, such as 0 for a space
        if 0 in high and HIGH_BYTE_RATIO * len(set(high)) <= len(set(low)):
            text = codecs.getincrementaldecoder(encoding)("replace").decode(sample)
            if all(unicodedata.category(c)[0] != "C" or c in "\t\n\r\f" for c in text):
                return encoding
    return None
