"""What general compressors reach on a text: bits per character, to set a model's beside."""

import gzip
import lzma
from collections.abc import Callable
from dataclasses import dataclass

SAMPLE_BYTES = 2**21  # some seconds of xz
COMPRESSED_PART = 2**16  # characters; gzip refers back by fewer
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip -9": lambda text: gzip.compress(text, 9, mtime=0),
    "xz": lzma.compress,
}


@dataclass(frozen=True)
class Compression:
    """Bits per character of a sample of the text, by compressor."""

    bits_per_character: dict[str, float]
    characters: int


def compress(sample: str) -> Compression:
    """Compress a sample of at least one character, as the programs of those names do."""
    content = sample.encode()
    bits = {name: 8 * len(run(content)) / len(sample) for name, run in COMPRESSORS.items()}
    return Compression(bits, len(sample))
