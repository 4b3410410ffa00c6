"""Recognise files that are not plain text, and convert bytes in any encoding to strict UTF-8."""

import codecs
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise

from gpt.errors import TextError, setting_arguments, takes_settings
from gpt.reading.notices import Notices

BYTE_ORDER_MARKS = {  # longer marks first, because the UTF-32 mark begins with the UTF-16 mark
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}
ENCODING_SAMPLE_BYTES = 65_536  # size of the sample from which an encoding is guessed
WIDE = ("utf_16_le", "utf_16_be")
ENCODINGS = (  # encodings that are tried, the preferred ones first
    *("cp1254", "cp1252", "cp1250", "cp1251", "koi8_r", "cp1253", "cp1256", "cp932", "euc_jp"),
    *("gb18030", "big5", "cp949", "cp866", "mac_roman", *WIDE),
)
NEARLY_AS_LIKELY = 0.1  # encodings whose penalties differ by less than this are equally likely
CONVERT = "convert it to plain text, for example by pandoc, pdftotext or LibreOffice"
LFS_POINTER, ZIP = "Git LFS pointer", "DOCX, EPUB or another ZIP file"
BINARY_MAGIC = {  # first bytes of a file: name of its format
    b"%PDF-1.": "PDF",
    b"%!PS-": "PostScript",
    b"version https://git-lfs.github.com/spec/": LFS_POINTER,
    b"PK\x03\x04": ZIP,
    b"\x1f\x8b\x08": "compressed file without the suffix .gz",
    b"\xfd7zXZ\0": "compressed file without the suffix .xz",
    b"\x28\xb5\x2f\xfd": "compressed file without the suffix .zst",
}
BINARY = "binary data"
CONTROLS = bytes({*range(0x20)} - {*b"\t\n\f\r\x1b"})  # control characters that are rare in text
MAX_CONTROLS = 0.001  # largest fraction of CONTROLS in plain text
COUNTED_BYTES = 2**16  # CONTROLS are counted in this many bytes at the beginning of a chunk


def is_utf8(encoding: str) -> bool:
    """Return whether `encoding` is a name of UTF-8, with or without a byte-order mark."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def encoding_of(head: bytes, encoding: str) -> str:
    """Return the encoding of a text that begins with the bytes `head`.

    A byte-order mark determines the encoding. Without a mark, return `encoding`; but if this is
    UTF-8, and `head` has NUL bytes and is likely to be UTF-16, return UTF-16.
    """
    marked = next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), None)
    may_be_wide = marked is None and b"\0" in head and is_utf8(encoding)
    return marked or (may_be_wide and likely_encoding(head, WIDE)) or encoding


def has_utf8(blocks: Iterable[bytes]) -> bool:
    """Return whether `blocks` are UTF-8 but not only ASCII. They may end within a character."""
    decoder, is_ascii = codecs.getincrementaldecoder("utf-8")(), True
    try:
        for block in blocks:
            is_ascii = decoder.decode(block).isascii() and is_ascii
    except UnicodeDecodeError:
        return False
    return not is_ascii


def utf8_chunks(
    blocks: Iterable[bytes],
    name: str,
    encoding: str = "utf-8",
    errors: str = "strict",
    notices: Notices | None = None,
) -> Iterator[bytes]:
    """Convert a text to UTF-8. Yield chunks of whole characters, without a byte-order mark.

    A block may end within a character. `errors` is Python's error handler for invalid
    bytes: `strict`, `replace` (the number of replacements is added to `notices`), or
    `surrogateescape`, which yields them unchanged.

    Raises:
        TextError: some bytes are invalid in `encoding`. The message contains the offset of the
            first one and, if known, the likely encoding.
    """
    is_plain = is_utf8(encoding)
    encoding = "UTF-8" if is_plain else encoding
    new_decoder = codecs.getincrementaldecoder(encoding)
    decoder, ignoring = new_decoder(errors), new_decoder("ignore")
    offset = pending = replaced = 0  # counts: decoded bytes, bytes of a cut character, replacements
    at_start = True
    try:
        for block, following in pairwise(chain(blocks, [b""])):
            if is_plain and not pending and block.isascii():
                chunk = block
            else:
                ignoring.setstate(decoder.getstate())
                text = decoder.decode(block, final=not following)
                if found := text.count("\ufffd"):  # includes any U+FFFD of the input itself
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
    except UnicodeError as error:  # such as for UTF-16 without a byte-order mark
        raise TextError(
            f"{name}: expected {encoding} text, but {error}; "
            f"{_remedies('data.encoding=ITS_ENCODING')}"
        ) from None
    if notices and errors == "replace":
        notices.add(name, "invalid bytes were read as U+FFFD; replacements: {count}", replaced)


def _invalid(error: UnicodeDecodeError, offset: int, encoding: str) -> str:
    """Return a message about an invalid byte. The block with this byte begins at `offset`."""
    sample, why, settings = _sample_around(error.object, error.start), "", ["data.errors=replace"]
    valid = sample.decode(errors="ignore").encode()
    others, valid_others = (sum(byte > 0x7F for byte in each) for each in (sample, valid))
    is_mostly_utf8 = 3 * valid_others > 2 * others
    if is_mostly_utf8 and encoding == "UTF-8":
        why = ", although most others are"
    elif guess := "utf-8" if is_mostly_utf8 else likely_encoding(sample):
        why, settings = f"; it is probably {guess}", [f"data.encoding={guess}", *settings]
    wrong = f"byte 0x{error.object[error.start]:02x} at offset {offset + error.start}"
    return f"{wrong} is not {encoding}{why}; {_remedies(*settings)}"


def _remedies(*settings: str) -> str:
    """Return advice about a text that is not UTF-8; each of the `settings` would help, too."""
    alternatives = " or ".join(map(setting_arguments, settings))
    return "convert it to UTF-8" + (f", or add {alternatives}" if takes_settings() else "")


def _sample_around(content: bytes, start: int) -> bytes:
    """Return up to ENCODING_SAMPLE_BYTES around `content[start]`, in whole lines if possible."""
    earliest = max(0, start - ENCODING_SAMPLE_BYTES // 2)
    latest = start + ENCODING_SAMPLE_BYTES // 2
    first = content.find(b"\n", earliest, start) + 1 or earliest
    last = content.rfind(b"\n", start, latest) + 1 if latest < len(content) else 0
    return content[first : last or latest]


def likely_encoding(sample: bytes, candidates: Sequence[str] = ENCODINGS) -> str | None:
    """Return the likeliest encoding of `sample`, bytes that are not UTF-8; None if none is likely.

    charset-normalizer measures how well each of the `candidates` fits. If several fit about equally
    well, return the first. cp1254 is only considered for Turkish; in other texts it equals cp1252.
    """
    import charset_normalizer  # takes 0.1 s; valid UTF-8 does not need it

    matches = charset_normalizer.from_bytes(sample, cp_isolation=[*candidates], threshold=0.4)
    penalties = {
        name: match.chaos - match.coherence
        for match in matches
        for name in match.could_be_from_charset
        if name != "cp1254" or match.language == "Turkish"
    }
    highest = min(penalties.values(), default=0) + NEARLY_AS_LIKELY
    return next((name for name in candidates if penalties.get(name, highest + 1) <= highest), None)


def advice(found: str) -> str:
    """Return advice about a file that is not text, but of the format `found`."""
    if found == LFS_POINTER:
        return "fetch the text by git lfs pull"
    if "without the suffix" in found:
        return "add the suffix to its name"
    by_bytes = f", or train on its bytes by {setting_arguments('data.vocabulary=bytes')}"
    archive = ", or, if it is an archive of texts, add .zip to its name" if found == ZIP else ""
    return f"{CONVERT}{by_bytes if takes_settings() else ''}{archive}"


def binary_format(head: bytes, encoding: str) -> str | None:
    """Return the format of a file that begins with `head`; None if it is text in `encoding`."""
    for magic, found in BINARY_MAGIC.items():
        if head.startswith(magic):
            return found
    text = head.decode(encoding_of(head, encoding), "replace").encode(errors="replace")
    return BINARY if is_binary(text) else None


def is_binary(text: bytes) -> bool:
    """Return whether `text` contains a NUL, or too many control characters for plain text.

    One control character (of CONTROLS) is allowed. More are allowed if their fraction of the bytes
    is at most MAX_CONTROLS. To save time, controls are counted only in the first COUNTED_BYTES.
    """
    beginning = text[:COUNTED_BYTES]
    controls = len(beginning) - len(beginning.translate(None, CONTROLS))
    return b"\0" in text or controls > max(1, MAX_CONTROLS * len(beginning))
