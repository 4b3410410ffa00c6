"""Bytes in any encoding in, strict UTF-8 out: in chunks of whole characters, without a mark."""

import codecs
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Protocol

from gpt.errors import TextError
from gpt.text.utf8 import whole_characters

SAMPLE_BYTES = 65_536  # around the first wrong byte, by which the likely encoding is found
BYTE_ORDER_MARKS = {  # the longer ones first, for UTF-32's begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
LIKELY = (  # encodings that files come in; among all of Python's, a few letters are of any
    *("cp1250", "cp1251", "koi8_r", "cp1253", "cp1254", "cp1255", "cp1256", "cp874"),
    *("cp932", "euc_jp", "gb18030", "big5", "cp949"),
)


def is_utf8(encoding: str) -> bool:
    """Whether it is one of UTF-8's names, with or without a byte-order mark."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def is_wide(encoding: str) -> bool:
    """Whether it is UTF-16 or UTF-32, in which text is full of NUL bytes."""
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def marked_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32, if its byte-order mark is at the start."""
    return next((name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark)), None)


def utf8_chunks(blocks: Iterable[bytes], name: str, encoding: str = "utf-8") -> Iterator[bytes]:
    """The same characters in UTF-8, cut between characters; a byte-order mark is dropped.

    Raises TextError where the bytes are not in the encoding, with the offset of the first wrong
    one and the encoding that is likely.
    """
    decoder = _Utf8() if is_utf8(encoding) else _Transcoder(encoding)
    takes_mark = is_wide(encoding) and "".encode(encoding)  # and a second one is a character
    mark = b"" if takes_mark else codecs.BOM_UTF8
    offset = 0  # of the first byte that the decoder has not turned into characters
    head, blocks = b"", iter(blocks)
    try:
        for block in chain(blocks, [b""]):
            head = head or block
            pending = len(decoder.pending)
            chunk = decoder.decode(block, final=not block)
            if mark and chunk:
                chunk, mark = chunk.removeprefix(mark), b""
            if chunk:
                yield chunk
            offset += pending + len(block) - len(decoder.pending)
    except UnicodeDecodeError as error:
        sample = error.object[max(0, error.start - SAMPLE_BYTES // 2) :]
        while len(sample) < SAMPLE_BYTES and (block := next(blocks, b"")):
            sample, head = sample + block, head + block
        if len(sample) > SAMPLE_BYTES:  # cut between characters, in whatever encoding
            cut = sample[:SAMPLE_BYTES]
            sample = cut.rpartition(b"\n")[0] or cut
        wanted = "UTF-8" if is_utf8(encoding) else encoding
        raise TextError(
            f"{name}: expected {wanted} text, got byte 0x{error.object[error.start]:02x} at offset "
            f"{offset + error.start}; {_advice(name, wanted, head, sample, error)}"
        ) from None
    except UnicodeError as error:  # of UTF-16 without a mark, or escapes that are half a character
        reason = "half of a surrogate pair" if isinstance(error, UnicodeEncodeError) else str(error)
        raise TextError(
            f"{name}: expected {encoding} text, got {reason}; another encoding is read by "
            f"--set data.encoding=NAME"
        ) from None


class _Decoder(Protocol):
    @property
    def pending(self) -> bytes:
        """The bytes of a character that a block cut in two."""

    def decode(self, block: bytes, final: bool) -> bytes: ...


class _Utf8:
    """Checks that bytes are UTF-8, and cuts them between characters."""

    pending = b""

    def decode(self, block: bytes, final: bool) -> bytes:
        block = self.pending + block
        end = codecs.utf_8_decode(block, "strict", True)[1] if final else whole_characters(block)
        self.pending = block[end:]
        return block[:end]


class _Transcoder:
    """Decodes bytes in another encoding."""

    def __init__(self, encoding: str) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)("strict")

    @property
    def pending(self) -> bytes:
        return self._decoder.getstate()[0]

    def decode(self, block: bytes, final: bool) -> bytes:
        return self._decoder.decode(block, final).encode()


def _advice(name: str, wanted: str, head: bytes, sample: bytes, error: UnicodeDecodeError) -> str:
    """What the bytes may be, and what to do."""
    if marked := marked_encoding(head):
        return f"it looks like {marked.upper()}: {_set(marked)}"
    wrong = error.object[error.start : error.start + 2]
    if wanted == "UTF-8" and wrong[:1] == b"\xed" and wrong[1:] >= b"\xa0":
        return (
            f"it looks like CESU-8 (surrogates, as Java and Oracle write them): "
            f"uconv -f CESU-8 -t UTF-8 {shlex.quote(name)} > utf8.txt"
        )
    likely = "utf-8" if wanted != "UTF-8" and _fits_utf8(sample) else likely_encoding(sample)
    if error.reason in (
        "unexpected end of data",
        "truncated data",
        "incomplete multibyte sequence",
    ):
        other = f", or if it is {likely}: {_set(likely)}" if likely else ""
        return f"it ends in the middle of a character; fetch it again if it was cut short{other}"
    if likely:
        return f"it may be {likely}: {_set(likely)}"
    return (
        "it looks like no text; if it is compressed, its name must end in .gz, .bz2, .xz, .zst, "
        ".zip or .tar"
    )


def _fits_utf8(sample: bytes) -> bool:
    """Whether it is UTF-8 from its second line on, but for its end."""
    with suppress(UnicodeDecodeError):
        codecs.utf_8_decode(sample[sample.find(b"\n") + 1 :], "strict", False)
        return b"\0" not in sample
    return False


def _set(encoding: str) -> str:
    return f"--set data.encoding={encoding}, or convert the file to UTF-8"


def likely_encoding(sample: bytes) -> str | None:
    """The encoding that these bytes are most likely in; None of what looks like no text.

    Of cp1252 (Western European, with Latin-1) unless another one fits better.
    """
    import charset_normalizer

    if b"\0" in sample:
        wide = ["utf_16_le", "utf_16_be"]
        found = charset_normalizer.from_bytes(sample[: len(sample) & ~1], cp_isolation=wide).best()
        return found.encoding.replace("_", "-") if found else None
    western = charset_normalizer.from_bytes(sample, cp_isolation=["cp1252"]).best()
    other = charset_normalizer.from_bytes(sample, cp_isolation=list(LIKELY)).best()
    if western and (not other or western.coherence > other.coherence - 0.03):
        return "cp1252"
    return other.encoding if other else None
