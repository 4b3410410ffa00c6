"""Find characters that are probably unwanted, such as control characters and mojibake."""

import re
from collections import Counter
from dataclasses import dataclass

from gpt.evaluation.characters import MAX_FINDINGS, CountedText, Finding, name_of

LONGEST_MATCH = 6  # number of characters that a match of a detector has at most
# In UTF-8, the first byte of a non-ASCII character is followed by bytes from 0x80 to 0xBF. Decoded
# as cp1252 or Latin-1, these bytes are the characters below. Quotation marks and dashes are left
# out, because they also follow a capital letter in clean text. For cp1251, a match has 3 pairs.
MISREAD_CP1252 = "[\x80-\xaa\xac-\xba\xbc-\xbf€ƒ†‡ˆ‰Š‹ŒŽ•˜™š›œžŸ]"
MISREAD_CP1251 = "[ЂЃ‚ѓ„…†‡€‰Љ‹ЊЌЋЏђ‘’“”•–—™љ›њќћџ\xa0ЎўЈ¤Ґ¦§Ё©Є«¬\xad®Ї°±Ііґµ¶·ё№є»јЅѕї]"
DETECTORS = {  # kind: (regular expression, what to do)
    "replacement character": (
        re.compile("\ufffd"),
        "some program could not decode the text; convert the original again",
    ),
    "mojibake": (
        re.compile(
            f"[ÂÃÐÑ]{MISREAD_CP1252}|â[€‚ˆ†\x80\x82\x86\x88].|ï»¿|ï¿½|ð[Ÿ\x9f]..|锟斤拷"
            f"|(?:[РС]{MISREAD_CP1251}){{3}}"
        ),
        "UTF-8 was decoded in another encoding; convert the original again",
    ),
    "control": (
        re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f]"),
        "remove them, or the model will write them, too",
    ),
    "invisible or direction": (
        re.compile("[\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]"),
        "remove them, or the model will write them, too",
    ),
}


@dataclass(frozen=True)
class Suspicion:
    """The strings in a text that one of DETECTORS matches, such as control characters."""

    kind: str
    count: int
    distinct: int
    findings: list[Finding]


def find_suspicious(text: CountedText) -> list[Suspicion]:
    """Return a Suspicion for each of DETECTORS (in their order) that matches any part of `text`."""
    found = []
    for kind, (pattern, _) in DETECTORS.items():
        counts, first, end = Counter[str](), dict[str, int](), 0
        for start, part in text.unusual_parts(LONGEST_MATCH):
            for match in pattern.finditer(part, max(end - start, 0)):
                matched, end = match[0], start + match.end()
                counts[matched] += 1
                first.setdefault(matched, start + match.start())
        findings = [
            text.finding(matched, _name(matched), count, first[matched])
            for matched, count in counts.most_common(MAX_FINDINGS)
        ]
        if findings:
            found.append(Suspicion(kind, counts.total(), len(counts), findings))
    return found


def _name(matched: str) -> str:
    """Return the original text if `matched` is UTF-8 read in a wrong encoding; else names."""
    for encoding in ("cp1252", "latin-1", "cp1251", "gbk"):
        try:
            original = matched.encode(encoding).decode()
        except UnicodeError:
            continue
        if original != matched:
            return f"was {original} (UTF-8 read as {encoding})"
    return ", ".join(map(name_of, matched))
