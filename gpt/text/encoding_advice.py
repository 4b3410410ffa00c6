"""Explain bytes that are not in the expected encoding, and advise what to do."""

import codecs
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from gpt.errors import counted
from gpt.text.formats import binary_format
from gpt.text.likely_encoding import described, likely_encoding
from gpt.text.utf8 import is_utf8, is_utf8_start

ENCODING_SAMPLE_BYTES = 65_536  # bytes around the first wrong one, to guess the encoding from
MAX_EXAMINED_BYTES = 1 << 28  # length of the text after a wrong byte in which more are counted
MAX_REPLACED_FRACTION = 0.05  # fraction of a text's bytes up to which replacing them is advised
EXCERPT_BEFORE, EXCERPT_AFTER = 24, 12  # bytes around a wrong one that a message quotes
CUT_OFF_REASONS = (
    "unexpected end of data",
    "truncated data",
    "incomplete multibyte sequence",
)  # reasons of a UnicodeDecodeError at the end of a text
CUT_OFF_ADVICE = "it ends in the middle of a character; fetch it again if it was cut short"


def explain(
    name: str,
    encoding: str,
    head: bytes,
    error: UnicodeDecodeError,
    size: int,
    blocks: Iterable[bytes],
) -> Iterator[str]:
    """Yield sentences for a message: the probable format or encoding, and what to do.

    Args:
        name: the name of the text.
        encoding: the expected encoding.
        head: the first bytes of the text.
        error: the error at the first wrong byte.
        size: the number of bytes of the text before those in `error`.
        blocks: the bytes after those in `error`, some of which are read.
    """
    if found := binary_format(head, name):
        yield f"it is not plain text but {found.name}"
        yield found.advice(name)
    elif not is_utf8(encoding):
        if error.reason in CUT_OFF_REASONS:
            yield CUT_OFF_ADVICE
        yield _likely_other(_examine(error, size, blocks).sample, encoding)
    elif re.match(rb"\xed[\xa0-\xff]", error.object[error.start :][:2]):
        yield (
            f"it looks like CESU-8 (surrogates, as Java and Oracle write them): "
            f"uconv -f CESU-8 -t UTF-8 {shlex.quote(name)} > utf8.txt"
        )
    else:
        yield from _explain_utf8(head, error, _examine(error, size, blocks), size + error.start)


def _explain_utf8(
    head: bytes, error: UnicodeDecodeError, examined: "_Examined", offset: int
) -> Iterator[str]:
    """Yield sentences about a text that is not UTF-8, from `offset` on."""
    is_nearly_utf8, has_few_wrong = examined.is_nearly_utf8, examined.has_few_wrong
    is_cut_off = error.reason in CUT_OFF_REASONS
    guess = None if is_nearly_utf8 else likely_encoding(examined.sample)
    begins = re.match(rb"[\x80-\xbf]{1,3}", head)
    if begins and is_nearly_utf8 and not offset:
        cut = len(begins[0])
        yield (
            f"it begins inside a character, as a text cut from a longer one does: remove its first "
            f"{counted(cut, 'byte')} (tail -c +{cut + 1})"
        )
    elif is_cut_off:
        yield CUT_OFF_ADVICE
    elif is_nearly_utf8 or has_few_wrong:
        wrong = counted(examined.wrong, "byte")
        yield f"all but {wrong} of {examined.size:,} are UTF-8 ({_excerpt(error)})"
    if guess:
        yield f"{described(examined.sample, guess)}: {_set(guess.encodings[0])}"
    if has_few_wrong:
        yield "--set data.errors=replace reads what is not UTF-8 as U+FFFD, and counts it"
    elif not guess and not is_cut_off:
        yield "it looks like no text; any bytes are read by --set data.vocabulary=bytes"


@dataclass
class _Examined:
    """What surrounds and follows the first wrong byte of a text.

    Attributes:
        sample: up to ENCODING_SAMPLE_BYTES around that byte.
        wrong: the number of bytes that are not UTF-8.
        other: the number of bytes in non-ASCII characters of valid UTF-8.
        size: the number of bytes examined, from the start of the text on.
    """

    sample: bytes
    wrong: int
    other: int
    size: int

    @property
    def is_nearly_utf8(self) -> bool:
        """Whether most non-ASCII characters are valid UTF-8."""
        return self.other > 2 * self.wrong

    @property
    def has_few_wrong(self) -> bool:
        """Whether replacing the wrong bytes leaves most of the text."""
        return self.wrong < MAX_REPLACED_FRACTION * self.size


def _examine(error: UnicodeDecodeError, size: int, blocks: Iterable[bytes]) -> _Examined:
    """Examine the bytes in `error` and the next `blocks`; `size` bytes precede them in the text."""
    found = _Examined(b"", 0, 0, size)
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
    if len(found.sample) == ENCODING_SAMPLE_BYTES:  # do not end it inside a character
        found.sample = found.sample.rpartition(b"\n")[0] or found.sample
    return found


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
