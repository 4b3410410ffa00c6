"""Convert bytes in any encoding to strict UTF-8, in chunks of whole characters without a mark."""

import codecs
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal, Protocol

from gpt.errors import TextError, counted
from gpt.text.documents import Notices
from gpt.text.formats import binary_format
from gpt.text.likely_encoding import described, likely_encoding, likely_wide
from gpt.text.utf8 import is_utf8_start, whole_characters

ENCODING_SAMPLE_BYTES = 65_536  # bytes around the first wrong one, to guess the encoding from
MAX_EXAMINED_BYTES = 1 << 28  # length of the text after a wrong byte in which more are counted
MAX_REPLACED_FRACTION = 0.05  # fraction of a text's bytes up to which replacing them is advised
EXCERPT_BEFORE, EXCERPT_AFTER = 24, 12  # bytes around a wrong one that a message quotes
MARK = codecs.BOM_UTF8
BYTE_ORDER_MARKS = {  # the longer ones first: that of UTF-32 begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}
CUT_OFF_REASONS = (
    "unexpected end of data",
    "truncated data",
    "incomplete multibyte sequence",
)  # reasons of a UnicodeDecodeError at the end of a text
CUT_OFF_ADVICE = "it ends in the middle of a character; fetch it again if it was cut short"
REPLACED_NOTICE = (
    "{count} times U+FFFD in place of bytes that are not in the encoding (data.errors=replace)"
)
RAW_NOTICE = "{count} places that are not UTF-8, learnt as they are"
Errors = Literal["strict", "replace", "raw"]


def is_utf8(encoding: str) -> bool:
    """Return whether `encoding` is a name of UTF-8, with or without a byte-order mark."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def is_wide(encoding: str) -> bool:
    """Return whether `encoding` is UTF-16 or UTF-32, whose text is full of NUL bytes."""
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def encoding_of(head: bytes, encoding: str) -> str:
    """Return the encoding of a text: by its byte-order mark, its zero bytes, or else `encoding`.

    Zero bytes are only considered if `encoding`, the one that is set, is UTF-8.
    """
    marked = next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), None)
    return marked or (is_utf8(encoding) and likely_wide(head)) or encoding


def fits_utf8(blocks: Iterable[bytes], *, whole: bool = True) -> bool:
    """Return whether `blocks` are UTF-8 with some non-ASCII characters and no NUL.

    Args:
        blocks: the bytes, cut anywhere.
        whole: require that they end with a whole character.
    """
    decoder, ascii_only = _Utf8("strict"), True
    try:
        for block in chain(blocks, [b""] if whole else []):
            ascii_only = ascii_only and block.isascii()
            if b"\0" in block:
                return False
            decoder.decode(block, final=not block)
    except UnicodeDecodeError:
        return False
    return not ascii_only


def utf8_chunks(
    blocks: Iterable[bytes],
    name: str,
    encoding: str = "utf-8",
    errors: Errors = "strict",
    notices: Notices | None = None,
    otherwise: str = "",
) -> Iterator[bytes]:
    """Yield the same characters in UTF-8, cut between characters.

    U+FEFF, the byte-order mark, is dropped at the start of the text and of each line, where texts
    with a mark were joined.

    Args:
        blocks: the bytes, cut anywhere.
        name: the name of the text in messages.
        encoding: the encoding of the bytes.
        errors: `strict`: raise an error for wrong bytes. `replace`: replace them by U+FFFD. `raw`:
            yield them unchanged (UTF-8 only).
        notices: the numbers of replaced bytes and of byte-order marks are added to these.
        otherwise: further advice for the error message.

    Raises:
        TextError: some bytes are not in the encoding; the message has the offset of the first one
            and the likely encoding.
    """
    notices = notices or Notices()
    decoder = _Utf8(errors) if is_utf8(encoding) else _Transcoder(encoding, errors)
    decoded = _decoded(decoder, iter(blocks), name, encoding, otherwise)
    yield from _without_marks(decoded, name, notices)
    notices.add(name, RAW_NOTICE if errors == "raw" else REPLACED_NOTICE, decoder.replaced)


def _decoded(
    decoder: "_Decoder", blocks: Iterator[bytes], name: str, encoding: str, otherwise: str
) -> Iterator[bytes]:
    offset, head = 0, b""  # offset: the number of bytes decoded so far
    try:
        for block in chain(blocks, [b""]):
            head = head or block
            pending = len(decoder.pending)
            if chunk := decoder.decode(block, final=not block):
                yield chunk
            offset += pending + len(block) - len(decoder.pending)
    except UnicodeDecodeError as error:
        wanted = "UTF-8" if is_utf8(encoding) else encoding
        examined = _examine(error, offset, blocks)
        advice = [*_advice(name, encoding, head, error, examined), *filter(None, [otherwise])]
        raise TextError(
            f"{name}: expected {wanted} text, got byte 0x{error.object[error.start]:02x} at offset "
            f"{examined.offset}; {'; '.join(advice)}"
        ) from None
    except UnicodeError as error:  # UTF-16 without a mark, or an escaped surrogate
        reason = "half of a surrogate pair" if isinstance(error, UnicodeEncodeError) else str(error)
        raise TextError(
            f"{name}: expected {encoding} text, got {reason}; another encoding is read by "
            f"--set data.encoding=NAME"
        ) from None


def _without_marks(chunks: Iterable[bytes], name: str, notices: Notices) -> Iterator[bytes]:
    """Drop the marks at the start of lines. Add their number and that of others to `notices`."""
    is_first = at_start = True
    dropped = kept = 0
    for chunk in chunks:
        if is_first:
            chunk, is_first = chunk.removeprefix(MARK), False
        if MARK in chunk:
            marks = chunk.count(MARK)
            at = rb"(?:^|(?<=[\r\n]))" if at_start else rb"(?<=[\r\n])"
            chunk = re.sub(at + b"(?:" + MARK + b")+", b"", chunk)
            kept += chunk.count(MARK)
            dropped += marks - chunk.count(MARK)
        if chunk:
            at_start = chunk.endswith((b"\n", b"\r"))
            yield chunk
    notices.add(name, "{count} byte-order marks (U+FEFF) at the start of lines dropped", dropped)
    kept_notice = "{count} U+FEFF inside lines kept: invisible characters, which are learnt"
    notices.add(name, kept_notice, kept)


class _Decoder(Protocol):
    replaced: int

    @property
    def pending(self) -> bytes:
        """The first bytes of a character whose last bytes are in the next block."""

    def decode(self, block: bytes, final: bool) -> bytes: ...


class _Utf8:
    """Validate UTF-8 and cut it between characters."""

    def __init__(self, errors: Errors) -> None:
        self.errors, self.pending, self.replaced = errors, b"", 0

    def decode(self, block: bytes, final: bool) -> bytes:
        block = self.pending + block
        try:
            end = (
                codecs.utf_8_decode(block, "strict", True)[1] if final else whole_characters(block)
            )
        except UnicodeDecodeError:
            if self.errors == "strict":
                raise
            text, end = codecs.utf_8_decode(block, "replace", final)
            self.pending = block[end:]
            self.replaced += text.count("\ufffd") - block[:end].count("\ufffd".encode())
            return block[:end] if self.errors == "raw" else text.encode()
        self.pending = block[end:]
        return block[:end]


class _Transcoder:
    """Convert another encoding to UTF-8."""

    def __init__(self, encoding: str, errors: Errors) -> None:
        self._errors = "replace" if errors == "replace" else "strict"
        self._decoder = codecs.getincrementaldecoder(encoding)(self._errors)
        self.replaced = 0

    @property
    def pending(self) -> bytes:
        return self._decoder.getstate()[0]

    def decode(self, block: bytes, final: bool) -> bytes:
        text = self._decoder.decode(block, final)
        self.replaced += text.count("\ufffd") if self._errors == "replace" else 0
        return text.encode(errors=self._errors)


@dataclass
class _Examined:
    """What surrounds and follows the first wrong byte of a text.

    Attributes:
        sample: up to ENCODING_SAMPLE_BYTES around that byte.
        wrong: the number of bytes that are not UTF-8.
        other: the number of bytes in non-ASCII characters of valid UTF-8.
        size: the number of bytes examined, from the start of the text on.
        offset: the offset of the first wrong byte in the text.
        is_cut_off: whether the text ends there, in the middle of a character.
    """

    sample: bytes
    wrong: int
    other: int
    size: int
    offset: int
    is_cut_off: bool

    @property
    def is_nearly_utf8(self) -> bool:
        """Whether most non-ASCII characters are valid UTF-8."""
        return self.other > 2 * self.wrong

    @property
    def has_few_wrong(self) -> bool:
        """Whether replacing the wrong bytes leaves most of the text."""
        return self.wrong < MAX_REPLACED_FRACTION * self.size


def _examine(error: UnicodeDecodeError, size: int, blocks: Iterable[bytes]) -> _Examined:
    """Examine a text.

    Args:
        error: the error at the first wrong byte.
        size: the number of bytes before those in `error`.
        blocks: the bytes after those in `error`.
    """
    is_cut_off = error.reason in CUT_OFF_REASONS
    found = _Examined(b"", 0, 0, size, size + error.start, is_cut_off)
    start = max(0, error.start - ENCODING_SAMPLE_BYTES // 2)
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    for block in chain([error.object], blocks, [b""]):
        found.sample += block[start:][: ENCODING_SAMPLE_BYTES - len(found.sample)]
        start = 0
        right = decoder.decode(block, final=not block).encode()
        found.wrong += len(block) - len(right)
        found.other += len(right) - len(right.translate(None, bytes(range(0x80, 0x100))))
        found.size += len(block)
        if found.size > MAX_EXAMINED_BYTES:
            found.wrong -= len(decoder.getstate()[0])
            break
    if (
        len(found.sample) == ENCODING_SAMPLE_BYTES
    ):  # cut at a line end, which is no part of a character
        found.sample = found.sample.rpartition(b"\n")[0] or found.sample
    return found


def _advice(
    name: str, encoding: str, head: bytes, error: UnicodeDecodeError, examined: _Examined
) -> Iterator[str]:
    """Yield sentences for a message: the probable format or encoding, and what to do.

    Args:
        name: the name of the text.
        encoding: the expected encoding.
        head: the first bytes of the text.
        error: the error at the first wrong byte.
        examined: what surrounds and follows that byte.
    """
    wrong_bytes = error.object[error.start : error.start + 2]
    if found := binary_format(head, name):
        yield f"it is not plain text but {found.name}"
        yield found.advice(name)
    elif not is_utf8(encoding):
        if examined.is_cut_off:
            yield CUT_OFF_ADVICE
        yield _likely_other(examined.sample, encoding)
    elif wrong_bytes[:1] == b"\xed" and wrong_bytes[1:] >= b"\xa0":
        yield (
            f"it looks like CESU-8 (surrogates, as Java and Oracle write them): "
            f"uconv -f CESU-8 -t UTF-8 {shlex.quote(name)} > utf8.txt"
        )
    else:
        yield from _advice_on_utf8(head, error, examined)


def _advice_on_utf8(head: bytes, error: UnicodeDecodeError, examined: _Examined) -> Iterator[str]:
    is_nearly_utf8, has_few_wrong = examined.is_nearly_utf8, examined.has_few_wrong
    guess = None if is_nearly_utf8 else likely_encoding(examined.sample)
    begins = re.match(rb"[\x80-\xbf]{1,3}", head)
    if begins and is_nearly_utf8 and not examined.offset:
        cut = len(begins[0])
        yield (
            f"it begins inside a character, as a text cut from a longer one does: remove its first "
            f"{counted(cut, 'byte')} (tail -c +{cut + 1})"
        )
    elif examined.is_cut_off:
        yield CUT_OFF_ADVICE
    elif is_nearly_utf8 or has_few_wrong:
        wrong = counted(examined.wrong, "byte")
        yield f"all but {wrong} of {examined.size:,} are UTF-8 ({_excerpt(error)})"
    if guess:
        yield f"{described(examined.sample, guess)}: {_set(guess.encodings[0])}"
    if has_few_wrong:
        yield "--set data.errors=replace reads what is not UTF-8 as U+FFFD, and counts it"
    elif not guess and not examined.is_cut_off:
        yield "it looks like no text; any bytes are read by --set data.vocabulary=bytes"


def _likely_other(sample: bytes, encoding: str) -> str:
    """Return what to do with bytes that are not in `encoding`, which is not UTF-8."""
    guess = likely_encoding(sample)
    if b"\0" not in sample and is_utf8_start(sample[sample.find(b"\n") + 1 :]):
        return f"it may be utf-8: {_set('utf-8')}"
    if guess and guess.encodings[0] != encoding:
        return f"{described(sample, guess)}: {_set(guess.encodings[0])}"
    return f"--set data.errors=replace reads what is not {encoding} as U+FFFD"


def _excerpt(error: UnicodeDecodeError) -> str:
    """Return the text around the first wrong byte, which is escaped."""
    text, start = error.object, error.start
    before = text[max(0, start - EXCERPT_BEFORE) : start].rpartition(b"\n")[2]
    before = before.lstrip(bytes(range(0x80, 0xC0)))  # the end of a character that was cut
    after = text[start : error.end + EXCERPT_AFTER].partition(b"\n")[0]
    return f'"{(before + after).decode(errors="backslashreplace").strip()}"'


def _set(encoding: str) -> str:
    return f"--set data.encoding={encoding}, or convert the file to UTF-8"
