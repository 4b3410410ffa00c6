"""Find characters that are probably damage or tricks; a model would learn them like any other."""

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from gpt.evaluation import characters
from gpt.evaluation.characters import MAX_FINDINGS, CountedText, Finding, spread_slices
from gpt.text.likely_encoding import TYPOGRAPHIC, encoding_penalties
from gpt.text.vocabulary import code_points

MAX_COUNTED_PLACES = 10_000  # places whose words are counted one by one; later ones are not
MAX_WORD_SIDE = 30  # characters of a word before and after a place
CATEGORIES = {  # Unicode's general categories that are rare in clean text
    "Cc": "control",
    "Cf": "invisible or direction",
    "Zl": "line separator",
    "Zp": "line separator",
    "Zs": "unusual space",
    "Co": "private use",
    "Cn": "unassigned",
}
USUAL = "\n\t \u3000"  # clean characters of these categories
JOINER = "\u200d"  # joins emoji to one picture
REPLACEMENT_CHARACTER, MOJIBAKE, MIXED = (
    "replacement character",
    "mojibake",
    "mixed scripts in a word",
)
KINDS = (REPLACEMENT_CHARACTER, MOJIBAKE, MIXED, *dict.fromkeys(CATEGORIES.values()))

# Scripts with spaces between words. Japanese, for example, mixes scripts without spaces.
SCRIPTS = (
    "LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC", "SYRIAC",
    "THAANA", "ETHIOPIC", "CHEROKEE", "COPTIC", "DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI",
    "ORIYA", "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA", "MONGOLIAN",
)  # fmt: skip

# Encodings that UTF-8 is often decoded by. A single misread character is recognised with those of
# the Latin script. With the others, a letter before a quotation mark may look like one.
LATIN = ("cp1252", "cp1250", "cp1254", "mac_roman", "cp850", "cp437")
MISREAD_AS = (*LATIN, "cp1251", "koi8_r", "cp866", "cp1253", "mac_cyrillic")
NOT_MISREAD = "«»“”„‘’‚‹›…–—πΩ∞∑∏∫Ёё"  # characters that follow letters in clean texts, too
LIKELY = re.compile("[\xa0-\xff\u2010-\u2030\u20ac\u2122\ufeff\ufffd]")  # misread even if alone
CYRILLIC = re.compile("[\u0400-\u045f]")  # misread even if alone, if read as Ð or Ñ first
MIN_ADJACENT = 0.2  # fraction of misread characters that follow another one, in other scripts
# Encodings whose mojibake is recognised by encoding it again.
RECODED = ("cp1252", "cp1251", "koi8_r", "mac_roman", "cp850", "cp866")
CJK = ("gbk", "big5", "cp932", "euc_jp", "cp949")
MIN_LEAD = 0.3  # least difference of the penalties of the wrong encoding and the right one
MIN_LETTERS = 0.4  # fraction of letters among the non-ASCII characters of misread text
MIN_NON_ASCII = 20  # non-ASCII characters needed to recognise an encoding
MIN_UTF8_BYTES = 0.7  # fraction of valid bytes among the non-ASCII ones in UTF-8 misread as CJK
REPLACEMENTS = {  # U+FFFD in UTF-8 decoded as CJK, and uninitialised memory
    "锟斤拷": "was \ufffd\ufffd (UTF-8 read as gbk)",
    "嚙踝蕭": "was \ufffd\ufffd (UTF-8 read as big5)",
    "占쏙옙": "was \ufffd\ufffd (UTF-8 read as cp949)",
    "鐃緒申": "was \ufffd\ufffd (UTF-8 read as euc_jp)",
    "ｿｽ": "was \ufffd (UTF-8 read as cp932)",
    "烫烫烫": "was bytes 0xCC (read as gbk)",
    "屯屯屯": "was bytes 0xCD (read as gbk)",
}
RECODED_CHARACTERS = 2**15  # characters that are encoded again to recognise a wrong encoding
EMOJI = re.compile("[\U0001f000-\U0001faff\u2190-\u2bff\ufe0f\u20e3]")  # and their selectors


@dataclass(frozen=True)
class Suspicion:
    """Places of one of KINDS: their number, how many are distinct, and the most frequent ones."""

    kind: str
    count: int
    distinct: int
    findings: list[Finding]


def find_suspicious(text: CountedText) -> list[Suspicion]:
    """Return the suspicious places of `text` by kind, in the order of KINDS.

    Most kinds are single characters, see `kind_of`. A word has mixed scripts if two adjacent
    letters have different SCRIPTS (a small part of UTS 39, section 5). Mojibake is text that was
    decoded by a wrong encoding.
    """
    joiners_are_clean = _joiners_are_clean(text)
    by_kind: dict[str, list[int]] = {}
    for i in np.argsort(-text.counts, stable=True).tolist():
        kind = kind_of(text.characters[i])
        if kind and text.counts[i] and not (text.characters[i] == JOINER and joiners_are_clean):
            by_kind.setdefault(kind, []).append(i)
    found = [
        Suspicion(kind, int(text.counts[ids].sum()), len(ids), text.character_findings(ids))
        for kind, ids in by_kind.items()
    ]
    mojibake = (_misread(text), _replacements(text), _recoded(text))
    found.append(max(mojibake, key=lambda each: sum(len(f.text) * f.count for f in each.findings)))
    found.append(_mixed_scripts(text))
    return sorted(
        (suspicion for suspicion in found if suspicion.count),
        key=lambda suspicion: KINDS.index(suspicion.kind),
    )


def kind_of(character: str) -> str | None:
    """Return the one of KINDS that `character` belongs to; None if it is not suspicious."""
    if character == "\ufffd":
        return REPLACEMENT_CHARACTER
    return None if character in USUAL else CATEGORIES.get(unicodedata.category(character))


def script_of(character: str) -> str:
    """Return the one of SCRIPTS that a letter belongs to; "" for other characters."""
    first, *_ = unicodedata.name(character, "-").split()
    return first if first in SCRIPTS and unicodedata.category(character)[0] == "L" else ""


def _joiners_are_clean(text: CountedText) -> bool:
    """Return whether each joiner stands between emoji, as in family emoji."""
    joiner = text.characters.find(JOINER)
    emoji = np.array([bool(EMOJI.match(c)) for c in text.characters])
    for _, part in text.parts(lambda occurring: joiner >= 0 and occurring[joiner], overlap=2):
        places = np.flatnonzero(part[1:-1] == joiner) + 1
        if not (emoji[part[places - 1]] & emoji[part[places + 1]]).all():
            return False
    return True


def _mixed_scripts(text: CountedText) -> Suspicion:
    """Find words with a letter that is followed by a letter of another script."""
    order = ["", *SCRIPTS]
    scripts = np.array([order.index(script_of(c)) for c in text.characters], np.uint8)  # (V,)
    total, first, counts = 0, dict[str, int](), Counter[str]()
    for start, part in text.parts(lambda occurring: len({*scripts[occurring]} - {0}) > 1):
        here, after = scripts[part[:-1]], scripts[part[1:]]
        places = start + np.flatnonzero((here != after) & (here > 0) & (after > 0))
        for position in places[: max(MAX_COUNTED_PLACES - total, 0)].tolist():
            before = text.text(position - MAX_WORD_SIDE, position + 1)
            following = text.text(position + 1, position + 1 + MAX_WORD_SIDE)
            beginning = "".join(takewhile(_in_word, reversed(before)))[::-1]
            word = beginning + "".join(takewhile(_in_word, following))
            counts[word] += 1
            first.setdefault(word, position)
        total += len(places)
    findings = []
    for word, count in counts.most_common(MAX_FINDINGS):
        name = " and ".join(dict.fromkeys(filter(None, map(script_of, word))))
        findings.append(text.finding(word, name, count, first[word]))
    return Suspicion(MIXED, total, len(counts), findings)


def _in_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LM"


def _misread(text: CountedText) -> Suspicion:
    """Find UTF-8 that was decoded by one of MISREAD_AS; return the encoding with most places.

    Such a character appears as one character for its first byte, followed by one for each of the
    continuation bytes that the first byte announces.
    """
    best = Suspicion(MOJIBAKE, 0, 0, [])
    tables = {encoding: _byte_of(encoding) for encoding in MISREAD_AS}
    for (encoding, bytes_of), spans in zip(
        tables.items(), _sequences(text, [*tables.values()]), strict=True
    ):
        places = spans.shape[1]
        starts = spans[0].tolist()[:MAX_COUNTED_PLACES]
        words = [text.text(*span) for span in spans[:, :MAX_COUNTED_PLACES].T.tolist()]
        meant = {w: bytes(bytes_of[c] for c in w).decode(errors="ignore") for w in words}
        certain = any(
            _is_likely(meant[word], word, text.text(at - 1, at), latin=encoding in LATIN)
            for word, at in zip(words, starts, strict=True)
        )
        adjacent = int(np.isin(spans[1], spans[0]).sum())
        certain |= adjacent >= max(1, 0 if encoding in LATIN else MIN_ADJACENT * places)
        if certain and places > best.count:
            counts = Counter(words)
            first = dict(zip(reversed(words), reversed(starts), strict=True))
            findings = [
                text.finding(w, f"was {meant[w]} (UTF-8 read as {encoding})", n, first[w])
                for w, n in counts.most_common(MAX_FINDINGS)
            ]
            best = Suspicion(MOJIBAKE, places, len(counts), findings)
    return best


def _byte_of(encoding: str) -> dict[str, int]:
    """Return the non-ASCII byte that each character is decoded from.

    In LATIN encodings, the control characters U+0080 to U+009F stand for the same bytes, as in
    Latin-1.
    """
    controls = {chr(byte): byte for byte in range(0x80, 0xA0)} if encoding in LATIN else {}
    defined = {bytes([byte]).decode(encoding, "ignore"): byte for byte in range(0x80, 0x100)}
    return controls | {c: byte for c, byte in defined.items() if c and c not in "Ёё"}


def _sequences(text: CountedText, tables: list[dict[str, int]]) -> list[NDArray[np.int64]]:
    """Find UTF-8 sequences, given the byte of each character in N encodings.

    Returns:
        For each encoding the starts and the ends of the sequences in ascending order, (2, places).
    """
    codes = code_points(text.characters)  # (V,), sorted
    values = np.zeros((len(codes), len(tables)), np.uint8)
    for column, table in enumerate(tables):
        wanted = code_points("".join(table))
        at = np.searchsorted(codes, wanted).clip(max=len(codes) - 1)
        there = codes[at] == wanted
        values[at[there], column] = np.array([*table.values()])[there]
    # One bit for each encoding, so that all of them are searched in one pass.
    continues = _packed((values & 0xC0) == 0x80)
    leads = {
        n: _packed((values >= low) & (values < high))
        for n, low, high in ((2, 0xC2, 0xE0), (3, 0xE0, 0xF0), (4, 0xF0, 0xF5))
    }
    found: list[list[NDArray[np.int64]]] = [[np.empty((2, 0), np.int64)] for _ in tables]
    for start, part in text.parts(lambda occurring: continues[occurring].any(), overlap=4):
        after = np.append(continues[part], np.zeros(4, np.uint16))
        for n, lead in leads.items():
            bits = lead[part]
            for i in range(1, n):
                bits = bits & after[i : i + len(part)]
            places = np.flatnonzero(bits[: characters.PART_IDS])
            for column, spans in enumerate(found):
                starts = places[(bits[places] >> column & 1) > 0] + start
                spans.append(np.stack([starts, starts + n]))
    joined = [np.concatenate(spans, axis=1) for spans in found]
    return [spans[:, np.argsort(spans[0], kind="stable")] for spans in joined]


def _packed(bits: NDArray[np.bool_]) -> NDArray[np.uint16]:
    """Pack at most 16 columns of `bits` (V, N) into one integer for each row, (V,)."""
    packed: NDArray[np.uint16] = np.bitwise_or.reduce(
        bits << np.arange(bits.shape[1], dtype=np.uint16), axis=1
    )
    return packed


def _is_likely(meant: str, word: str, before: str, *, latin: bool) -> bool:
    """Return whether one character was misread.

    Args:
        meant: the original character.
        word: the characters that it was decoded to.
        before: the character before `word`.
        latin: whether the wrong encoding is one of LATIN.
    """
    if meant == "\ufffd" or (word[0] in "ÐÑ" and CYRILLIC.match(meant)):
        return True
    in_word = "a" <= before.lower() <= "z"
    in_order = word[1] in NOT_MISREAD or ("\u2500" <= word[1] <= "\u259f" and not in_word)
    return bool(LIKELY.match(meant)) and (latin or in_word) and (len(word) > 2 or not in_order)


def _replacements(text: CountedText) -> Suspicion:
    """Find the words of REPLACEMENTS."""
    findings = []
    for word, name in REPLACEMENTS.items():
        ids = [text.characters.find(c) for c in word]
        if min(ids) < 0:
            continue
        places = [np.zeros(0, np.int64)]
        for start, part in text.parts(partial(_all_occur, ids), overlap=2):
            same = [part[i : len(part) - len(ids) + i + 1] == id for i, id in enumerate(ids)]
            places.append(start + np.flatnonzero(np.logical_and.reduce(same)))
        found = np.concatenate(places)
        if len(found):
            findings.append(text.finding(word, name, len(found), int(found[0])))
    total = sum(finding.count for finding in findings)
    return Suspicion(MOJIBAKE, total, len(findings), findings)


def _all_occur(ids: list[int], occurring: NDArray[np.bool_]) -> bool:
    return bool(occurring[ids].all())


def _recoded(text: CountedText) -> Suspicion:
    """Find text that was decoded by a wrong encoding, by encoding a sample with it again."""
    nothing = Suspicion(MOJIBAKE, 0, 0, [])
    parts = spread_slices(len(text.ids), RECODED_CHARACTERS, RECODED_CHARACTERS // 8)
    sample = "".join(text.text(part.start, part.stop) for part in parts)
    sample = sample.translate(dict.fromkeys(map(ord, TYPOGRAPHIC)))
    non_ascii = [c for c in sample if c > "\x7f"]
    letters = sum(c.isalpha() for c in non_ascii)
    if len(non_ascii) < MIN_NON_ASCII or letters < MIN_LETTERS * len(non_ascii):
        return nothing
    for encoding in (*RECODED, *CJK):
        content = sample.encode(encoding, "ignore")
        if len(content.decode(encoding, "ignore")) < len(sample) - 0.2 * len(non_ascii):
            continue
        meant = _meant(content, encoding)
        if meant and content.decode(meant, "ignore") != content.decode(encoding, "ignore"):
            ids = [i for i, c in enumerate(text.characters) if c > "\x7f" and text.counts[i]]
            first = int(text.first[ids].min())
            word = text.text(first, first + MAX_WORD_SIDE).split()[0]
            was = word.encode(encoding, "ignore").decode(meant, "ignore")
            finding = text.finding(word, f"was {was} ({meant} read as {encoding})", 1, first)
            return Suspicion(MOJIBAKE, int(text.counts[ids].sum()), len(ids), [finding])
    return nothing


def _meant(content: bytes, encoding: str) -> str | None:
    """Return the encoding of `content` if it is clearly not `encoding`; else None."""
    non_ascii, valid = (
        sum(byte > 0x7F for byte in each)
        for each in (content, content.decode(errors="ignore").encode())
    )
    if not non_ascii or valid >= MIN_UTF8_BYTES * non_ascii:
        return "utf-8" if non_ascii and encoding in CJK else None  # _misread finds the others
    penalties = {} if encoding in CJK else encoding_penalties(content)
    meant = min(penalties, key=penalties.__getitem__, default=encoding)
    is_clear = penalties.get(encoding, 1.0) > penalties.get(meant, 1.0) + MIN_LEAD
    return meant if is_clear and not meant.startswith("utf_16") else None
