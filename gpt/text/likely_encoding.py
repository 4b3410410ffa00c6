"""Guess the encoding of bytes that are not UTF-8, from zero bytes or from the decoded letters.

A candidate encoding is scored by the letters beyond ASCII that it decodes. They should belong to
the alphabet of one language, be frequent in it, and stand in words of their script and case.
"""

import codecs
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpt.text.utf8 import is_utf8_start

MIN_SCORE = 0.35  # mean score per non-ASCII character for an encoding to be considered
MIN_CJK_BYTES = 100  # sample size from which a CJK guess is certain
MIN_WIDE_CHARACTERS = 8  # sample size from which UTF-16 or UTF-32 is no coincidence
CJK_PAGES = {0x30, *range(0x4E, 0xA0), *range(0xAC, 0xD8), 0xFF}  # high bytes of UTF-16
CLEAR_SCORE, CLEAR_LEAD, CLEAR_LETTERS = 0.5, 0.04, 20  # minimum of each for a certain guess
DOUBTFUL_LEAD = 0.3  # minimum lead with fewer letters than CLEAR_LETTERS
MULTIBYTE_SCORE = 0.55  # a single-byte encoding with a higher score is preferred to a CJK one
MAX_GUESSES = 3  # number of candidate encodings in a message
EXCERPT_CHARACTERS = 24  # number of characters that a message quotes
ASCII_LETTERS = string.ascii_letters.encode()

MULTIBYTE = ("cp932", "euc_jp", "gb18030", "big5", "cp949")
SINGLE_BYTE = (  # if several decode a text alike, the first is reported
    *("cp1252", "cp1250", "cp1251", "koi8_r", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257"),
    *("cp1258", "cp874", "iso8859_2", "iso8859_5", "iso8859_6", "iso8859_7", "iso8859_8"),
    *("iso8859_4", "iso8859_10", "iso8859_13", "iso8859_16", "iso8859_15", "koi8_u"),
    *("cp850", "cp437", "cp866", "cp852", "cp855", "cp857", "cp737", "cp869", "cp775", "cp862"),
    *("cp861", "cp865", "cp863", "cp860", "mac_roman", "mac_cyrillic", "mac_latin2"),
    *("mac_greek", "mac_turkish", "mac_iceland", "mac_croatian", "mac_romanian"),
)
# The non-ASCII letters of each language, roughly the most frequent first.
ALPHABETS = (
    "üäößé", "éàèêçâîôùûïœëü", "óíáéñúü", "ãçáéíóõêâúàô", "àèéùòì", "ëéïöü", "äåöé", "åøæéò",
    "íáðéóþúæöý", "łąęóżśćńź", "áíěéřšžýčůúťďňó", "áíéčýžšúľťôňďäĺŕó", "áéőöóíüűú", "šćčžđ",
    "ăîâșțşţ", "ıüşğçöiâî", "äõöüšž", "āīēšūņļķģčž", "šėžųįčūąę", "ëç", "àèéòçíúïü·",
    "ŝĝĉĵŭĥ", "ơưđăâêôàáạảãèéẻẹếềểệốồổộớờởợứừửựấầẩậắằặíìịỉóòọỏúùụủýỳ",
    "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъё", "оаиніветрслкдумпязьгйбчхцжшюїфєщґ",
    "аиоентсрвлкдпмузягбъчцжшщхфйью", "аоиенрстјвукдмплзгбчшцжћхњљђфџѓќѕ",
    "аіеоныдклртсуўмгпзвьябчйжцхшюэёф",
    "αοιετσνηυρπκμλςάίωόέήδγχθφβξζύώψϊϋΐΰ",
    "יוהלאמרבתשנםעדקחפכטגןצסזךףץ", "اليمونرتبةعدسفهكقحجذشطىصخءضغئثزأإظآپچژگکیؤ",
    "านรอกเงมยลวดทสตะปบคหแจพชขใไโผซถธศษณญฟภฉฮฐฏฎฑฒฆฌฤำ่้ีิัู็ืึ์ุๆ",
)  # fmt: skip
# The non-ASCII letters of Western Europe, for a text in several of its languages.
WESTERN = dict.fromkeys("éèêëàâäáãåæçîïíìñôöóòõøœùûüúßÿ", 0.7)
WESTERN_ENCODINGS = ("cp1252", "cp850", "mac_roman")  # encodings that have all of them
TYPOGRAPHIC = "¿¡«»“”„‘’‚–—…•·°§№©®€£\xa0´`"
_ALPHABETS = [
    {c: 1 - 0.6 * rank / len(letters) for rank, c in reversed([*enumerate(letters)])}
    for letters in ALPHABETS
]


@dataclass(frozen=True)
class Guess:
    """Candidate encodings, the likeliest first; `clear` means that the first is certain."""

    encodings: tuple[str, ...]
    clear: bool


def likely_encoding(sample: bytes) -> Guess | None:
    """Return the likely encodings of `sample`; None if it does not look like text."""
    if wide := likely_wide(sample):
        return Guess((wide,), clear=True)
    if b"\0" in sample or sample.isascii():
        return None
    triples = _triples(sample)
    found = dict[str, tuple[float, str]]()  # score and encoding by decoded text
    for encoding in SINGLE_BYTE:
        with suppress(UnicodeDecodeError):
            text = sample.decode(encoding)
            if text not in found and (score := _score(triples, encoding)) > MIN_SCORE:
                found[text] = (score, encoding)
    ranked = sorted(found.values(), key=lambda each: -each[0])
    best = ranked[0][0] if ranked else 0
    wide = likely_wide(sample, zeros=False)
    if (best < MULTIBYTE_SCORE or wide) and (cjk := _likely_multibyte(sample) or wide):
        return Guess((cjk,), clear=len(sample) > MIN_CJK_BYTES)
    if not ranked:
        western = [each for each in WESTERN_ENCODINGS if _western(triples, each) > MIN_SCORE]
        return Guess(tuple(western), clear=False) if western else None
    is_doubtful = sum(byte >= 0x80 for byte in sample) < CLEAR_LETTERS
    lead = DOUBTFUL_LEAD if is_doubtful else CLEAR_LEAD
    near = [encoding for score, encoding in ranked if score > best - lead]
    if is_doubtful:  # too few letters to rank by: take the more common encoding
        near.sort(key=SINGLE_BYTE.index)
    clear = len(near) == 1 and best >= CLEAR_SCORE and not is_doubtful
    return Guess(tuple(near[:MAX_GUESSES]), clear)


def plausibility(sample: bytes, encoding: str) -> float:
    """Return how well the non-ASCII characters of `sample` fit one language, from -1 to 1.

    Each letter scores by its frequency in the language, a capital less. A letter of another
    alphabet, a capital after a small letter, and a symbol inside a word score -1.

    Args:
        sample: a text with non-ASCII characters.
        encoding: a single-byte encoding that defines all bytes of `sample`.
    """
    return _score(_triples(sample), encoding)


def _triples(sample: bytes) -> Counter[bytes]:
    """Count the non-ASCII bytes, each with its two neighbours."""
    padded = b" " + sample + b" "
    return Counter(padded[i - 1 : i + 2] for i, byte in enumerate(padded) if byte >= 0x80)


def _western(triples: Mapping[bytes, int], encoding: str) -> float:
    """Return the score of an encoding for a text in several languages of Western Europe."""
    try:
        return _score(triples, encoding, [WESTERN])
    except UnicodeDecodeError:
        return -1.0


def _score(
    triples: Mapping[bytes, int],
    encoding: str,
    alphabets: Sequence[Mapping[str, float]] = _ALPHABETS,
) -> float:
    """Return the mean score of the non-ASCII characters, by the alphabet that fits best."""
    counts = Counter[tuple[str, float]]()  # by (letter, weight); "" stands for a symbol
    for triple, count in triples.items():
        before, c, after = [*triple.decode(encoding)]
        if c in TYPOGRAPHIC:
            inside = before.isalpha() and after.isalpha() and c != "’"
            counts["", -1 if inside else 0.5] += count
        elif (not c.isalpha() and unicodedata.category(c) != "Mn") or (
            c.isupper() and before.islower()
        ):
            counts["", -1] += count
        else:
            beside_ascii = "a" <= before.lower() <= "z" or "a" <= after.lower() <= "z"
            weight = 0.7 if c.isupper() else 1.0
            counts[c.lower(), -weight if beside_ascii else weight] += count
    return max(_fit(counts, alphabet) for alphabet in alphabets) / sum(triples.values())


def _fit(counts: Mapping[tuple[str, float], int], alphabet: Mapping[str, float]) -> float:
    """Return the sum of the scores of letters and symbols, counted with their weights."""
    latin = min(alphabet) < "\u0370"  # Latin words mix ASCII and non-ASCII letters
    total = 0.0
    for (letter, weight), count in counts.items():
        known = letter in alphabet and (latin or weight > 0)
        value = abs(weight) * alphabet[letter] if known else -1 if letter else weight
        total += count * value
    return total


def likely_wide(sample: bytes, *, zeros: bool = True) -> str | None:
    """Return the variant of UTF-16 or UTF-32 without a byte-order mark; None if it is neither.

    Args:
        sample: the beginning of a text.
        zeros: expect ASCII characters, which have zero bytes; if False, expect only CJK characters.
    """
    letters = len(sample) - len(sample.translate(None, ASCII_LETTERS))
    if zeros != (b"\0" in sample) or (not zeros and 2 * letters > len(sample)):
        return None
    found = []
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
        cjk = ascii_only + sum(n for page, n in pages.items() if page in CJK_PAGES)
        if zeros:  # require many of them: UTF-8 may contain a NUL, too
            low = sum(ord(c) & 0xFF == 0 for c in text)
            is_wide = common > 0.6 * len(text) and low <= 0.1 * ascii_only
        else:
            is_wide = cjk > 0.9 * len(text)
        if is_wide or (cjk > 0.9 * len(text) and not is_utf8_start(sample)):
            found.append((max(common, cjk), encoding))
    return max(found)[1] if found else None


def _never_in_text(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") and c not in "\t\n\r\f\x0b\x1a"


def _likely_multibyte(sample: bytes) -> str | None:
    import charset_normalizer

    best = charset_normalizer.from_bytes(sample, cp_isolation=[*MULTIBYTE]).best()
    return best.encoding if best else None


def described(sample: bytes, guess: Guess) -> str:
    """Return `it looks like cp866 ("Мы жили")`, or all candidates after `perhaps it is`."""
    read = [f'{name} ("{_excerpt(sample, name)}")' for name in guess.encodings]
    return f"{'it looks like' if guess.clear else 'perhaps it is'} {' or '.join(read)}"


def _excerpt(sample: bytes, encoding: str) -> str:
    """Return the first non-ASCII words of `sample`, decoded by `encoding`."""
    text = sample.decode(encoding, "replace")
    first = next((i for i, c in enumerate(text) if c >= "\x80"), 0)
    start = max(text.rfind(c, 0, first) for c in "\n ") + 1
    return text[start:].partition("\n")[0][:EXCERPT_CHARACTERS].strip()
