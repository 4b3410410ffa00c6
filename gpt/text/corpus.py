"""A text as one long array of ids on disk, split into train and val."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt.errors import ConfigError, TextError
from gpt.files import sync
from gpt.text.download import cache_dir
from gpt.text.sources import Text
from gpt.text.vocabulary import Ids, Vocabulary

DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Corpus:
    """The ids of a text, memory-mapped: a text of any size takes no memory to speak of."""

    name: str
    ids: Ids
    vocabulary: Vocabulary
    sha256: str

    @property
    def train(self) -> Ids:
        """The first 90 % of the characters."""
        return self.ids[: int(0.9 * len(self.ids))]

    @property
    def val(self) -> Ids:
        """The last 10 % of the characters."""
        return self.ids[int(0.9 * len(self.ids)) :]

    def check_fits(self, T: int) -> None:
        """Raises ConfigError if a split is too short for a window of T characters and the next."""
        shortest = min(len(self.train), len(self.val))
        if shortest <= T:
            raise ConfigError(
                f"model.T: expected fewer than the {shortest:,} characters of the shortest split "
                f"of {self.name} (of {len(self.ids):,} characters 90 % are train, 10 % val), "
                f"got {T}; use a smaller model.T or a longer text"
            )


def load_corpus(text: Text) -> Corpus:
    """Read a text twice, in pieces: once for its characters, once to write their ids.

    The array lies in the cache under the text's SHA-256 (of its UTF-8 bytes), so a second run on
    the same text finds it, and a changed text never meets an old array. A damaged one is written
    anew.

    Raises:
        TextError: the text is empty, unreadable or not UTF-8, or the cache cannot be written.
    """
    digest, length = hashlib.sha256(), 0
    seen = set[str]()
    for chunk in text.chunks():
        digest.update(chunk.encode())
        length += len(chunk)
        seen |= set(Vocabulary.of(chunk).characters)
    if not length:
        raise TextError(f"{text.name}: expected some text, got an empty file")
    vocabulary = Vocabulary("".join(sorted(seen)))
    path = cache_dir() / "corpora" / f"{digest.hexdigest()}.npy"
    try:
        try:
            ids = _read_ids(path, vocabulary, length)
        except (OSError, ValueError, EOFError):  # not there, or not what was written
            _write_ids(text, vocabulary, length, digest.hexdigest(), path)
            ids = _read_ids(path, vocabulary, length)
    except (OSError, ValueError, EOFError) as error:
        raise TextError(
            f"{path}: cannot keep the text's ids there ({error}); "
            f"set XDG_CACHE_HOME to a folder with room that you may write to"
        ) from None
    return Corpus(text.name, ids, vocabulary, digest.hexdigest())


def _read_ids(path: Path, vocabulary: Vocabulary, length: int) -> Ids:
    """The ids in the cache. Raises ValueError if they are not those that `_write_ids` wrote."""
    ids: Ids = np.load(path, mmap_mode="r", allow_pickle=False)
    if ids.shape != (length,) or ids.dtype != vocabulary.dtype:
        raise ValueError("not the ids of this text")
    with path.open("rb") as file:
        file.seek(-DIGEST_BYTES, os.SEEK_END)
        if file.read() != hashlib.sha256(ids.data).digest():
            raise ValueError("damaged")
    return ids


def _write_ids(text: Text, vocabulary: Vocabulary, length: int, sha256: str, path: Path) -> None:
    """Write the ids beside their place and rename them into it: there whole or not at all.

    Behind the array, where numpy does not look, stands the SHA-256 of its ids.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        digest, of_ids = hashlib.sha256(), hashlib.sha256()
        with temporary.open("wb") as file:  # not by a memory map: a full disk would kill us
            header = {"descr": vocabulary.dtype.str, "fortran_order": False, "shape": (length,)}
            np.lib.format.write_array_header_1_0(file, header)
            for chunk in text.chunks():
                digest.update(chunk.encode())
                ids = vocabulary.encode(chunk).tobytes()
                of_ids.update(ids)
                file.write(ids)
            file.write(of_ids.digest())
        if digest.hexdigest() != sha256:
            raise KeyError
        sync(temporary)
        temporary.replace(path)
    except KeyError:
        raise TextError(f"{text.name}: changed while it was being read; start again") from None
    finally:
        temporary.unlink(missing_ok=True)
