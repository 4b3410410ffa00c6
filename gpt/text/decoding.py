"""Convert bytes in any encoding to strict UTF-8; guess the encoding of bytes that are not UTF-8."""

import codecs
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

from gpt.errors import TextError
from gpt.text.documents import Notices

BYTE_ORDER_MARKS = {  # longer marks first, because the UTF-32 mark begins with the UTF-16 mark
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}
ENCODING_SAMPLE_BYTES = 65_536  # size of the sample from which an encoding is guessed
HIGH_BYTE_RATIO = 4  # smallest ratio of distinct low bytes to distinct high bytes in UTF-16
ENCODINGS = (  # candidates, the preferred ones first
    *("cp1252", "cp1251", "cp1250", "cp932", "euc_jp", "gb18030", "big5", "cp949", "koi8_r"),
    *("cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874", "iso8859_2"),
    *("cp850", "cp866", "cp852", "cp857", "cp737", "mac_roman", "mac_cyrillic", "mac_latin2"),
    *("utf_16_le", "utf_16_be"),
)
ORDER_PENALTY = 0.002  # added to the penalty of a candidate for each place in ENCODINGS
TYPOGRAPHIC = "¿¡«»“”„‘’‚–—…•·°§№©®€£\xa0´`。、「」！？，；："


def is_utf8(encoding: str) -> bool:
    """Return whether `encoding` is a name of UTF-8, with or without a byte-order mark."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def is_wide(encoding: str) -> bool:
    """Return whether `encoding` is UTF-16 or UTF-32, in which NUL bytes are normal."""
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def encoding_of(head: bytes, encoding: str) -> str:
    """Return the encoding of a text that begins with the bytes `head`.

    A byte-order mark determines the encoding. Without a mark, return `encoding`, unless it is UTF-8
    and NUL bytes in `head` indicate UTF-16.
    """
    marked = next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), None)
    return marked or (is_utf8(encoding) and likely_wide(head)) or encoding


def ascii_or_utf8(blocks: Iterable[bytes]) -> str | None:
    """Return `ascii`, `utf-8` or, if `blocks` are neither, None. The last character may be cut."""
    decoder, encoding = codecs.getincrementaldecoder("utf-8")(), "ascii"
    try:
        for block in blocks:
            decoder.decode(block)
            if not block.isascii():
                encoding = "utf-8"
    except UnicodeDecodeError:
        return None
    return encoding


def utf8_chunks(
    blocks: Iterable[bytes],
    name: str,
    encoding: str = "utf-8",
    errors: str = "strict",
    notices: Notices | None = None,
) -> Iterator[bytes]:
    """Convert a text to UTF-8. Yield chunks of whole characters, without a byte-order mark.

    Args:
        blocks: the bytes of the text. A character may be cut at the end of a block.
        name: the name of the text in messages.
        encoding: the encoding of the bytes.
        errors: Python's error handler for invalid bytes: `strict` raises an error, `replace` reads
            them as U+FFFD, and `surrogateescape` yields them unchanged.
        notices: receives a notice with the number of replacements, if `errors` is `replace`.

    Raises:
        TextError: some bytes are invalid in `encoding`. The message contains the offset of the
            first one and, if known, the likely encoding.
    """
    is_plain = is_utf8(encoding)
    encoding = "UTF-8" if is_plain else encoding
    new_decoder = codecs.getincrementaldecoder(encoding)
    decoder, ignoring = new_decoder(errors), new_decoder("ignore")
    offset = pending = replaced = 0  # bytes decoded, bytes of a cut character, replacements
    at_start = True
    try:
        for block, following in pairwise(chain(blocks, [b""])):
            if is_plain and not pending and block.isascii():
                chunk = block
            else:
                ignoring.setstate(decoder.getstate())
                text = decoder.decode(block, final=not following)
                if found := text.count("\ufffd"):  # some can be in the text itself
                    replaced += found - ignoring.decode(block, not following).count("\ufffd")
                chunk = text.encode(errors=errors)
            if at_start and chunk:
                chunk, at_start = chunk.removeprefix(codecs.BOM_UTF8), False
            if chunk:
                yield chunk
            before, pending = pending, len(decoder.getstate()[0])
            offset += before + len(block) - pending
    except UnicodeDecodeError as error:
        raise TextError(f"{name}: {_invalid(error, offset, encoding)}") from None
    except UnicodeError as error:  # UTF-16 without a mark, or an escaped surrogate
        raise TextError(
            f"{name}: expected {encoding} text, got {error}; name another encoding by "
            f"--set data.encoding=NAME"
        ) from None
    if notices and errors == "replace":
        notices.add(name, "invalid bytes were read as U+FFFD; replacements: {count}", replaced)


def _invalid(error: UnicodeDecodeError, offset: int, encoding: str) -> str:
    """Return a message about an invalid byte. The block with this byte begins at `offset`."""
    byte, at = error.object[error.start], offset + error.start
    guess, why, likely = _likely_around(error.object, error.start), "", ""
    if encoding == "UTF-8" and guess in ("utf-8", None):
        if at == 0 and 0x80 <= byte < 0xC0:
            why = ", as the text begins inside a character"
        elif guess and error.reason == "unexpected end of data":
            why = ", as the text ends inside a character"
        elif guess:
            why = ", although most others are"
    elif guess and guess != encoding:
        likely = f"it is probably {guess}: --set data.encoding={guess}, or "
    wrong = f"byte 0x{byte:02x} at offset {at} is not {encoding}{why}"
    return f"{wrong}; {likely}--set data.errors=replace"


def _likely_around(content: bytes, start: int) -> str | None:
    """Return the most likely encoding of the bytes around index `start`; None if it is unknown."""
    first = content.rfind(b"\n", 0, max(0, start - ENCODING_SAMPLE_BYTES // 2)) + 1
    sample = content[first : first + ENCODING_SAMPLE_BYTES]
    if len(sample) == ENCODING_SAMPLE_BYTES:  # do not end it inside a character
        sample = sample.rpartition(b"\n")[0] or sample
    valid = sample.decode(errors="ignore").encode()
    others, valid_others = (sum(byte > 0x7F for byte in each) for each in (sample, valid))
    # if most non-ASCII characters are UTF-8, it is UTF-8
    return "utf-8" if 3 * valid_others > 2 * others else likely_encoding(sample)


def likely_encoding(sample: bytes) -> str | None:
    """Return the most likely encoding of `sample`; None for ASCII or if no encoding is likely."""
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
    """Return the fraction of non-ASCII characters that indicate a wrong encoding.

    These are capitals after small letters, non-Latin letters (above U+024F) after ASCII letters,
    and symbols that are not in TYPOGRAPHIC.
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
