"""Bytes in any encoding in, strict UTF-8 out: in chunks of whole characters, without a mark."""

import codecs
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal, Protocol

from gpt.errors import TextError, counted
from gpt.text.formats import binary_format
from gpt.text.likely_encoding import described, likely_encoding, likely_wide
from gpt.text.utf8 import is_utf8_start, whole_characters

SAMPLE_BYTES = 65_536  # around the first wrong byte, by which the likely encoding is found
EXAMINED_BYTES = 1 << 28  # in which wrong bytes are counted for a message
FEW_WRONG = 0.05  # fraction of a text's bytes up to which replacing them is advised
BEFORE, AFTER = 24, 12  # bytes around a wrong byte that a message quotes
MARK = codecs.BOM_UTF8
BYTE_ORDER_MARKS = {  # the longer ones first, for UTF-32's begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}
Errors = Literal["strict", "replace", "raw"]


@dataclass
class Decoded:
    """How a text was decoded; complete once all its chunks have been read.

    `replaced` counts the U+FFFD that stand for wrong bytes, or would. `marks_dropped` counts U+FEFF
    at the start of a line but the first, `marks_kept` those elsewhere.
    """

    encoding: str = "utf-8"
    replaced: int = 0
    marks_dropped: int = 0
    marks_kept: int = 0


def is_utf8(encoding: str) -> bool:
    """Return whether it is one of UTF-8's names, with or without a byte-order mark."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def is_wide(encoding: str) -> bool:
    """Return whether it is UTF-16 or UTF-32, in which text is full of NUL bytes."""
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def marked_encoding(head: bytes) -> str | None:
    """Return the encoding whose byte-order mark is at the start, if there is one."""
    return next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), None)


def encoding_of(head: bytes, encoding: str) -> str:
    """Return the encoding that a text is read in.

    A byte-order mark decides, then the pattern of zero bytes of UTF-16 and UTF-32.

    Args:
        head: the beginning of the text.
        encoding: the encoding that is set for texts of which these do not decide.
    """
    found = marked_encoding(head) or (is_utf8(encoding) and likely_wide(head))
    return found or encoding


def fits_utf8(blocks: Iterable[bytes], *, whole: bool = True) -> bool:
    """Return whether these bytes are UTF-8 with characters beyond ASCII and without NUL.

    `whole`: whether they end with a whole character.
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
    decoded: Decoded | None = None,
    otherwise: str = "",
) -> Iterator[bytes]:
    """Yield the same characters in UTF-8, cut between characters.

    U+FEFF, the byte-order mark, is dropped at the start of the text and of each line, where texts
    with a mark were joined.

    Args:
        blocks: the bytes, cut anywhere.
        name: what messages call the text.
        encoding: of the bytes.
        errors: whether bytes that are not in the encoding are refused, replaced by U+FFFD, or, of
            UTF-8, yielded as they are (`raw`).
        decoded: its counts are set as the chunks are read.
        otherwise: what else can be done if the bytes are not in the encoding, for the message.

    Raises:
        TextError: the bytes are not in the encoding; it names the offset of the first wrong one and
            the encoding that is likely.
    """
    decoded = decoded or Decoded()
    decoder = _Utf8(errors) if is_utf8(encoding) else _Transcoder(encoding, errors)
    yield from _without_marks(_decoded(decoder, iter(blocks), name, encoding, otherwise), decoded)
    decoded.encoding, decoded.replaced = encoding, decoder.replaced


def _decoded(
    decoder: "_Decoder", blocks: Iterator[bytes], name: str, encoding: str, otherwise: str
) -> Iterator[bytes]:
    offset = 0  # of the first byte that the decoder has not turned into characters
    head = b""
    try:
        for block in chain(blocks, [b""]):
            head = head or block
            pending = len(decoder.pending)
            if chunk := decoder.decode(block, final=not block):
                yield chunk
            offset += pending + len(block) - len(decoder.pending)
    except UnicodeDecodeError as error:
        wanted = "UTF-8" if is_utf8(encoding) else encoding
        wrong = _Wrong(name, wanted, head, error, offset + error.start, blocks)
        raise TextError(
            f"{name}: expected {wanted} text, got byte 0x{error.object[error.start]:02x} at offset "
            f"{offset + error.start}; {'; '.join([*wrong.advice(), *filter(None, [otherwise])])}"
        ) from None
    except UnicodeError as error:  # of UTF-16 without a mark, or escapes that are half a character
        reason = "half of a surrogate pair" if isinstance(error, UnicodeEncodeError) else str(error)
        raise TextError(
            f"{name}: expected {encoding} text, got {reason}; another encoding is read by "
            f"--set data.encoding=NAME"
        ) from None


def _without_marks(chunks: Iterable[bytes], decoded: Decoded) -> Iterator[bytes]:
    first = at_start = True
    for chunk in chunks:
        if first:
            chunk, first = chunk.removeprefix(MARK), False
        if MARK in chunk:
            marks = chunk.count(MARK)
            at = rb"(?:^|(?<=[\r\n]))" if at_start else rb"(?<=[\r\n])"
            chunk = re.sub(at + b"(?:" + MARK + b")+", b"", chunk)
            kept = chunk.count(MARK)
            decoded.marks_kept += kept
            decoded.marks_dropped += marks - kept
        if chunk:
            at_start = chunk.endswith((b"\n", b"\r"))
            yield chunk


class _Decoder(Protocol):
    replaced: int

    @property
    def pending(self) -> bytes:
        """The bytes of a character that a block cut in two."""

    def decode(self, block: bytes, final: bool) -> bytes: ...


class _Utf8:
    """Checks that bytes are UTF-8, and cuts them between characters."""

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
    """Decodes bytes in another encoding."""

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


class _Wrong:
    """What bytes may be that are not in the encoding that was expected of them."""

    def __init__(
        self,
        name: str,
        wanted: str,
        head: bytes,
        error: UnicodeDecodeError,
        offset: int,
        blocks: Iterator[bytes],
    ) -> None:
        """Read on, for a sample and to count the wrong bytes.

        Args:
            name: of the text.
            wanted: the encoding, `UTF-8` or another name.
            head: its first bytes.
            error: of the first wrong byte.
            offset: of that byte in the text.
            blocks: the bytes after those of the error.
        """
        self.name, self.wanted, self.head, self.error, self.offset = (
            *(name, wanted, head, error, offset),
        )
        self.at_end = error.reason in (
            *("unexpected end of data", "truncated data", "incomplete multibyte sequence"),
        )
        start = max(0, error.start - SAMPLE_BYTES // 2)
        sample, self.wrong, self.other, self.bytes = b"", 0, 0, offset - error.start
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        for block in chain([error.object], blocks, [b""]):
            sample += block[start:][: SAMPLE_BYTES - len(sample)]
            start = 0
            right = decoder.decode(block, final=not block).encode()
            held = len(decoder.getstate()[0])
            self.wrong += len(block) - len(right)
            self.other += len(right) - len(right.translate(None, bytes(range(0x80, 0x100))))
            self.bytes += len(block)
            if self.bytes > EXAMINED_BYTES:
                self.wrong -= held
                break
        if len(sample) == SAMPLE_BYTES:  # cut between characters, in whatever encoding
            sample = sample.rpartition(b"\n")[0] or sample
        self.sample = sample

    def advice(self) -> Iterator[str]:
        """Yield what the bytes may be, and what to do."""
        if found := binary_format(self.head, self.name):
            yield f"it is not plain text but {found.name}"
            yield found.advice(self.name)
            return
        if self.wanted != "UTF-8":
            yield from self._advice_on_other()
            return
        pair = self.error.object[self.error.start : self.error.start + 2]
        if pair[:1] == b"\xed" and pair[1:] >= b"\xa0":
            yield (
                f"it looks like CESU-8 (surrogates, as Java and Oracle write them): "
                f"uconv -f CESU-8 -t UTF-8 {shlex.quote(self.name)} > utf8.txt"
            )
            return
        nearly = self.other > 2 * self.wrong  # characters beyond ASCII that are UTF-8
        guess = None if nearly else likely_encoding(self.sample)
        begins = re.match(rb"[\x80-\xbf]{1,3}", self.head)
        if begins and not self.offset and nearly:
            yield (
                f"it begins inside a character, as a text cut from a longer one does: remove its "
                f"first {counted(len(begins[0]), 'byte')} (tail -c +{len(begins[0]) + 1})"
            )
        elif self.at_end:
            yield "it ends in the middle of a character; fetch it again if it was cut short"
        elif nearly or self.wrong < FEW_WRONG * self.bytes:
            wrong = counted(self.wrong, "byte")
            yield f"all but {wrong} of {self.bytes:,} are UTF-8 ({self._excerpt()})"
        if guess:
            yield f"{described(self.sample, guess)}: {_set(guess.encodings[0])}"
        if self.wrong < FEW_WRONG * self.bytes:
            yield "--set data.errors=replace reads what is not UTF-8 as U+FFFD, and counts it"
        elif not guess and not self.at_end:
            yield "it looks like no text; any bytes are read by --set data.vocabulary=bytes"

    def _advice_on_other(self) -> Iterator[str]:
        guess = likely_encoding(self.sample)
        from_second_line = self.sample[self.sample.find(b"\n") + 1 :]
        if b"\0" not in self.sample and is_utf8_start(from_second_line):
            other = f"it may be utf-8: {_set('utf-8')}"
        elif guess and guess.encodings[0] != self.wanted:
            other = f"{described(self.sample, guess)}: {_set(guess.encodings[0])}"
        else:
            other = f"--set data.errors=replace reads what is not {self.wanted} as U+FFFD"
        if self.at_end:
            yield "it ends in the middle of a character; fetch it again if it was cut short"
        yield other

    def _excerpt(self) -> str:
        """Return the line around the first wrong byte, that byte as `\\xe9`."""
        text, start, end = self.error.object, self.error.start, self.error.end
        before = text[max(0, start - BEFORE) : start].rpartition(b"\n")[2]
        before = before[next((i for i, b in enumerate(before) if b & 0xC0 != 0x80), 0) :]
        after = text[start : end + AFTER].partition(b"\n")[0]
        return f'"{(before + after).decode(errors="backslashreplace").strip()}"'


def _set(encoding: str) -> str:
    return f"--set data.encoding={encoding}, or convert the file to UTF-8"
