"""Find characters that are probably damage or tricks; a model would learn them like any other."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from gpt.evaluation import characters
from gpt.evaluation.characters import LISTED, CountedText, Finding
from gpt.evaluation.spread import spread_slices
from gpt.text.likely_encoding import SINGLE_BYTE, TYPOGRAPHIC, likely_encoding, plausibility
from gpt.text.vocabulary import code_points

COUNTED_PLACES = 10_000  # largest number of places whose words are counted one by one
LONGEST_WORD = 30  # characters before and after a place
CATEGORIES = {  # Unicode's general categories that are rare in clean text
    "Cc": "control",
    "Cf": "invisible or direction",
    "Zl": "line separator",
    "Zp": "line separator",
    "Zs": "unusual space",
    "Co": "private use",
    "Cn": "unassigned",
}
USUAL = "\n\t \u3000"
JOINER = "\u200d"
REPLACED, MOJIBAKE, MIXED = "replacement character", "mojibake", "mixed scripts in a word"
KINDS = (REPLACED, MOJIBAKE, MIXED, *dict.fromkeys(CATEGORIES.values()))

# Scripts with spaces between words. Japanese, for example, mixes scripts without spaces.
SCRIPTS = (
    "LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC", "SYRIAC",
    "THAANA", "ETHIOPIC", "CHEROKEE", "COPTIC", "DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI",
    "ORIYA", "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA", "MONGOLIAN",
)  # fmt: skip

# Encodings that UTF-8 is often decoded by. In those of the Latin script a single misread character
# is recognised; in the others a letter and a quotation mark may look like one.
LATIN = ("cp1252", "cp1250", "cp1254", "mac_roman", "cp850", "cp437")
MISREAD_AS = (*LATIN, "cp1251", "koi8_r", "cp866", "cp1253", "mac_cyrillic")
NOT_MISREAD = "«»“”„‘’‚‹›…–—πΩ∞∑∏∫Ёё"  # follow letters in clean texts, too
LIKELY = re.compile("[\xa0-\xff\u2010-\u2030\u20ac\u2122\ufeff\ufffd]")  # misread, if alone
CYRILLIC = re.compile("[\u0400-\u045f]")  # likewise, where its first byte is a Latin letter
RUNS = 0.2  # fraction of misread characters beside another one, in scripts other than Latin
RECODED = ("cp1252", "cp1251", "koi8_r", "mac_roman", "cp850", "cp866")
CJK = ("gbk", "big5", "cp932", "euc_jp", "cp949")
CLEARLY = 0.3  # lead in plausibility of the right encoding over the wrong one
LETTERS = 0.4  # smallest share of letters among non-ASCII characters of misread text
MIN_NON_ASCII = 20  # characters needed to recognise an encoding
UTF8_BYTES = 0.7  # smallest share of valid bytes among non-ASCII ones in UTF-8 misread as CJK
REPLACED_TWICE = {  # two U+FFFD in UTF-8 decoded as CJK; and uninitialised memory
    "锟斤拷": "was \ufffd\ufffd (UTF-8 read as gbk)",
    "嚙踝蕭": "was \ufffd\ufffd (UTF-8 read as big5)",
    "占쏙옙": "was \ufffd\ufffd (UTF-8 read as cp949)",
    "鐃緒申": "was \ufffd\ufffd (UTF-8 read as euc_jp)",
    "ｿｽ": "was \ufffd (UTF-8 read as cp932)",
    "烫烫烫": "was bytes 0xCC (read as gbk)",
    "屯屯屯": "was bytes 0xCD (read as gbk)",
}
SAMPLE = 2**15  # characters examined to recognise an encoding read as another one
JOINED = re.compile("[\U0001f000-\U0001faff\u2190-\u2bff\ufe0f\u20e3]")  # emoji, their selectors

Places = Iterator[NDArray[np.int64]]
"""Ascending positions in a text, in several arrays."""


@dataclass(frozen=True)
class Suspicion:
    """Places of one of KINDS: their number, how many are distinct, and the most frequent ones."""

    kind: str
    count: int
    distinct: int
    findings: list[Finding]


def find_suspicious(text: CountedText) -> list[Suspicion]:
    """Return the suspicious places of a text, by kind, in the order of KINDS.

    Most kinds are single characters (`kind_of`). A word has mixed scripts if two adjacent letters
    have different SCRIPTS, taken from the first words of their Unicode names (a small part of UTS
    39, section 5). Mojibake is text that was decoded by a wrong encoding: see `_misread` and
    `_recoded`.
    """
    joiners = _between_emoji(text)
    by_kind: dict[str, list[int]] = {}
    for i in np.argsort(-text.counts, stable=True).tolist():
        kind = kind_of(text.characters[i])
        if kind and text.counts[i] and (text.characters[i] != JOINER or not joiners):
            by_kind.setdefault(kind, []).append(i)
    found = [
        Suspicion(kind, int(text.counts[ids].sum()), len(ids), text.characters_found(ids[:LISTED]))
        for kind, ids in by_kind.items()
    ]
    mojibake = (_misread(text), _replaced_twice(text), _recoded(text))
    found.append(max(mojibake, key=lambda each: sum(len(f.text) * f.count for f in each.findings)))
    found.append(_words(text, MIXED, _mixed(text), lambda at: _word(text, at), _scripts))
    return sorted(
        (suspicion for suspicion in found if suspicion.count),
        key=lambda suspicion: KINDS.index(suspicion.kind),
    )


def kind_of(character: str) -> str | None:
    """Return the one of KINDS that a character belongs to; None if it is not suspicious."""
    if character == "\ufffd":
        return REPLACED
    return None if character in USUAL else CATEGORIES.get(unicodedata.category(character))


def script_of(character: str) -> str:
    """Return the one of SCRIPTS that a letter belongs to; "" for other characters."""
    first, *_ = unicodedata.name(character, "-").split()
    return first if first in SCRIPTS and unicodedata.category(character)[0] == "L" else ""


def _mixed(text: CountedText) -> Places:
    """Yield the positions of letters that are followed by a letter of another script."""
    order = ["", *SCRIPTS]
    scripts = np.array([order.index(script_of(c)) for c in text.characters], np.uint8)  # (V,)

    for start, part in text.parts(lambda occurring: len(set(scripts[occurring]) - {0}) > 1):
        here, after = scripts[part[:-1]], scripts[part[1:]]
        yield start + np.flatnonzero((here != after) & (here > 0) & (after > 0))


def _between_emoji(text: CountedText) -> bool:
    """Return whether every joiner (U+200D) is next to an emoji, as in family emoji."""
    joiner = text.characters.find(JOINER)
    if joiner < 0:
        return False
    emoji = np.array([bool(JOINED.match(c)) for c in text.characters])
    for _, part in text.parts(lambda occurring: occurring[joiner], overlap=2):
        places = np.flatnonzero(part[1:-1] == joiner) + 1
        if not (emoji[part[places - 1]] & emoji[part[places + 1]]).all():
            return False
    return True


def _misread(text: CountedText) -> Suspicion:
    """Find UTF-8 that was decoded by one of MISREAD_AS.

    Such a character appears as one character for its first byte, followed by one for each of the
    continuation bytes that the first byte announces.
    """
    best = Suspicion(MOJIBAKE, 0, 0, [])
    names = {encoding: _byte_of(encoding) for encoding in MISREAD_AS}
    codes = code_points(text.characters)  # sorted
    values = np.zeros((len(codes), len(names)), np.uint8)
    for column, bytes_of in enumerate(names.values()):
        wanted = code_points("".join(bytes_of))
        at = np.searchsorted(codes, wanted).clip(max=len(codes) - 1)
        there = codes[at] == wanted
        values[at[there], column] = np.array([*bytes_of.values()])[there]
    continues = _packed((values & 0xC0) == 0x80)
    leads = {
        n: _packed((values >= low) & (values < high))
        for n, low, high in ((2, 0xC2, 0xE0), (3, 0xE0, 0xF0), (4, 0xF0, 0xF5))
    }
    found: list[list[NDArray[np.int64]]] = [[] for _ in names]
    for start, part in text.parts(lambda occurring: continues[occurring].any(), overlap=4):
        after = np.append(continues[part], np.zeros(4, np.uint16))
        for n, lead in leads.items():
            bits = lead[part]
            for i in range(1, n):
                bits = bits & after[i : i + len(part)]
            places = np.flatnonzero(bits[: characters.PART_IDS])
            for index in range(len(names)):
                here = places[(bits[places] >> index & 1) > 0] + start
                found[index].append(np.stack([here, here + n]))
    for (encoding, bytes_of), parts in zip(names.items(), found, strict=True):
        spans = np.concatenate(parts, axis=1) if parts else np.empty((2, 0), np.int64)
        spans = spans[:, np.argsort(spans[0], kind="stable")]
        beside = int(np.isin(spans[1], spans[0]).sum())
        words = [text.text(*span) for span in spans[:, :COUNTED_PLACES].T.tolist()]
        meant = {
            word: bytes(map(bytes_of.__getitem__, word)).decode(errors="ignore") for word in words
        }
        certain = any(
            _is_likely(meant[word], word, text.text(at - 1, at), latin=encoding in LATIN)
            for word, at in zip(words, spans[0].tolist(), strict=False)
        )
        certain |= beside >= max(1, 0 if encoding in LATIN else RUNS * spans.shape[1])
        if certain and spans.shape[1] > best.count:
            counts, starts = Counter(words), spans[0].tolist()[: len(words)]
            first = dict(zip(reversed(words), reversed(starts), strict=True))
            findings = [
                text.finding(w, f"was {meant[w]} (UTF-8 read as {encoding})", n, first[w])
                for w, n in counts.most_common(LISTED)
            ]
            best = Suspicion(MOJIBAKE, spans.shape[1], len(counts), findings)
    return best


def _byte_of(encoding: str) -> dict[str, int]:
    """Return the non-ASCII byte that each character is decoded from.

    In LATIN encodings, the control characters U+0080 to U+009F stand for the same bytes, as in
    Latin-1.
    """
    controls = {chr(byte): byte for byte in range(0x80, 0xA0)} if encoding in LATIN else {}
    defined = {bytes([byte]).decode(encoding, "ignore"): byte for byte in range(0x80, 0x100)}
    return controls | {c: byte for c, byte in defined.items() if c and c not in "Ёё"}


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


def _replaced_twice(text: CountedText) -> Suspicion:
    findings = []
    for word, name in REPLACED_TWICE.items():
        ids = [text.characters.find(c) for c in word]
        count, first = 0, -1
        if min(ids) < 0:
            continue
        for start, part in text.parts(partial(_all_occur, ids), overlap=2):
            same = [part[i : len(part) - len(ids) + i + 1] == id for i, id in enumerate(ids)]
            places = np.flatnonzero(np.logical_and.reduce(same))
            first = start + int(places[0]) if len(places) and first < 0 else first
            count += len(places)
        if count:
            findings.append(text.finding(word, name, count, first))
    total = sum(finding.count for finding in findings)
    return Suspicion(MOJIBAKE, total, len(findings), findings)


def _all_occur(ids: list[int], occurring: NDArray[np.bool_]) -> bool:
    return bool(occurring[ids].all())


def _recoded(text: CountedText) -> Suspicion:
    """Find text that was decoded by a wrong encoding, by encoding a sample with it again."""
    parts = spread_slices(len(text.ids), SAMPLE, SAMPLE // 8)
    sample = "".join(text.text(part.start, part.stop) for part in parts)
    sample = sample.translate(dict.fromkeys(map(ord, TYPOGRAPHIC)))
    beyond = sum(c > "\x7f" for c in sample)
    if sum(c > "\x7f" and c.isalpha() for c in sample) < LETTERS * beyond:
        beyond = 0
    for encoding in (*RECODED, *CJK) if beyond >= MIN_NON_ASCII else ():
        content = sample.encode(encoding, "ignore")
        if len(content.decode(encoding, "ignore")) < len(sample) - 0.2 * beyond:
            continue
        meant = _meant(content, encoding)
        if meant and content.decode(meant, "ignore") != content.decode(encoding, "ignore"):
            ids = [i for i, c in enumerate(text.characters) if c > "\x7f" and text.counts[i]]
            first = int(text.first[ids].min())
            word = text.text(first, first + LONGEST_WORD).split()[0]
            was = word.encode(encoding, "ignore").decode(meant, "ignore")
            finding = text.finding(word, f"was {was} ({meant} read as {encoding})", 1, first)
            return Suspicion(MOJIBAKE, int(text.counts[ids].sum()), len(ids), [finding])
    return Suspicion(MOJIBAKE, 0, 0, [])


def _meant(content: bytes, encoding: str) -> str | None:
    """Return the encoding of `content` if it is clearly not `encoding`; else None."""
    all_bytes, valid = (
        sum(byte > 0x7F for byte in each)
        for each in (content, content.decode(errors="ignore").encode())
    )
    if not all_bytes or valid >= UTF8_BYTES * all_bytes:
        return "utf-8" if all_bytes and encoding in CJK else None  # the others: see _misread
    if encoding in CJK or not (guess := likely_encoding(content)):
        return None
    meant, own = guess.encodings[0], plausibility(content, encoding)
    if meant not in SINGLE_BYTE:
        return meant if encoding == "cp1252" and own < 0 else None
    return meant if plausibility(content, meant) > own + CLEARLY else None


def _words(
    text: CountedText,
    kind: str,
    places: Places,
    word_at: Callable[[int], str],
    name_of_word: Callable[[str], str],
) -> Suspicion:
    """Return a Suspicion of the words at `places`; only the first COUNTED_PLACES are counted."""
    total, first, counts = 0, dict[str, int](), Counter[str]()
    for positions in places:
        for position in positions[: max(COUNTED_PLACES - total, 0)].tolist():
            word = word_at(position)
            counts[word] += 1
            first.setdefault(word, position)
        total += len(positions)
    findings = [
        text.finding(word, name_of_word(word), count, first[word])
        for word, count in counts.most_common(LISTED)
    ]
    return Suspicion(kind, total, len(counts), findings)


def _word(text: CountedText, position: int) -> str:
    """Return the letters and marks around a position, at most LONGEST_WORD to either side."""
    before = text.text(position - LONGEST_WORD, position + 1)
    after = text.text(position + 1, position + 1 + LONGEST_WORD)
    start = [*takewhile(_in_word, reversed(before))]
    return "".join([*reversed(start), *takewhile(_in_word, after)])


def _in_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LM"


def _scripts(word: str) -> str:
    """Return the scripts of a word in their order: `LATIN and CYRILLIC`."""
    return " and ".join(dict.fromkeys(filter(None, map(script_of, word))))
