"""Measure what compressors make of a val split after the train split, in nats per character."""

import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gpt.text.corpus import Corpus

WINDOWS = 40  # windows of val that are compressed, evenly spread
EVERY_TWENTIETH = 4  # every fourth twentieth of val is compressed
PPMD_ORDERS, PPMD_BYTES = (6, 10), 2**30  # the better order counts; memory of the model
# zpaq models longer inputs in another way, so that sizes on both sides cannot be subtracted
ZPAQ_SHORT_BYTES = 2**20 + 2**13

Compressor = Callable[[bytes], int]  # returns the compressed size in bytes


@dataclass(frozen=True)
class CompressorLosses:
    """Losses of a compressor on val, in nats per character, by how val is cut into pieces.

    Each piece is compressed after the train split alone. A compressor adapts to its piece, so that
    only `windows`, pieces of T characters, can be compared with a val loss in windows of T.
    """

    windows: float
    twentieths: float
    whole: float

    def __str__(self) -> str:
        return f"{self.windows:.3f} / {self.twentieths:.3f} / {self.whole:.3f}"


def compressor_losses(
    compress: Compressor | None, corpus: Corpus, T: int
) -> CompressorLosses | None:
    """Return the losses of a compressor on val, or None if `compress` is None.

    Args:
        compress: the compressor; None if it is not installed.
        corpus: the text.
        T: the length of the windows, in ids.
    """
    if compress is None:
        return None
    before = corpus.vocabulary.utf8(corpus.train)
    if compress is zpaq and len(before) < ZPAQ_SHORT_BYTES:
        missing = ZPAQ_SHORT_BYTES - len(before)
        before = (before * (missing // len(before) + 1))[:missing] + before
    alone, val = compress(before), corpus.val

    def loss(starts: range, length: int) -> float:
        pieces = [val[start : start + length] for start in starts]
        sizes = [compress(before + corpus.vocabulary.utf8(ids)) - alone for ids in pieces]
        return 8 * math.log(2) * sum(sizes) / sum(map(len, pieces))

    step, twentieth = max(1, len(val) // WINDOWS), -(-len(val) // 20)
    return CompressorLosses(
        windows=loss(range(0, step * WINDOWS, step), T),
        twentieths=loss(range(0, len(val), EVERY_TWENTIETH * twentieth), twentieth),
        whole=loss(range(1), len(val)),
    )


def ppmd(content: bytes) -> int:
    """Return the size of `content` compressed by PPMd."""
    from pyppmd import Ppmd7Encoder

    sizes = []
    for order in PPMD_ORDERS:
        encoder = Ppmd7Encoder(order, PPMD_BYTES)
        sizes.append(len(encoder.encode(content)) + len(encoder.flush()))
    return min(sizes)


def zpaq(content: bytes) -> int:
    """Return the size of `content` compressed by `zpaq -m5`."""
    with tempfile.TemporaryDirectory() as folder:
        source, archive = Path(folder, "text"), Path(folder, "archive.zpaq")
        source.write_bytes(content)
        command = ["zpaq", "a", str(archive), str(source), "-m5", "-t1"]
        subprocess.run(command, check=True, capture_output=True)
        return archive.stat().st_size


def installed() -> tuple[Compressor | None, Compressor | None]:
    """Return zpaq and PPMd; None instead of one that is not installed."""
    return zpaq if shutil.which("zpaq") else None, ppmd if find_spec("pyppmd") else None
