"""A text as one long array of ids on disk, split into train and val."""

import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt.config.schema import Newlines
from gpt.errors import ConfigError, TextError
from gpt.files import remove_stale, sync, temporary_beside
from gpt.text.documents import Source
from gpt.text.download import cache_dir
from gpt.text.newlines import unified
from gpt.text.vocabulary import Ids, Vocabulary

log = logging.getLogger(__name__)

SHORTEST_TEXT = 11  # characters: its val split has two, one to read and one to predict
DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Corpus:
    """The ids of a text, memory-mapped: a text of any size takes no memory to speak of.

    `sha256` is of the characters that the ids stand for (line ends unified, no byte-order mark) in
    UTF-8, so it changes exactly when the ids or the vocabulary do.
    """

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
        """Both splits must hold a window of T characters and the next.

        Raises:
            ConfigError: they do not hold one of this T.
            TextError: they would hold one of no T.
        """
        shortest = min(len(self.train), len(self.val))
        if shortest < 2:
            raise TextError(
                f"{self.name}: expected at least {SHORTEST_TEXT} characters (90 % are train, 10 % "
                f"val), got {len(self.ids)}; use a longer text"
            )
        if shortest <= T:
            raise ConfigError(
                f"model.T: expected fewer than the {shortest:,} characters of the shortest split "
                f"of {self.name} (of {len(self.ids):,} characters 90 % are train, 10 % val), "
                f"got {T}; use a smaller model.T or a longer text"
            )


def load_corpus(source: Source, newlines: Newlines = "lf") -> Corpus:
    """Read a text twice, in chunks: once for its vocabulary, once to write its ids.

    The array is cached under the corpus's SHA-256, so a second run on the same text finds it, and
    a changed text never meets an old array. A damaged one is rewritten.

    Raises:
        TextError: the text is empty, unreadable or not UTF-8, or the cache cannot be written.
    """
    digest, length, changed = hashlib.sha256(), 0, 0
    seen = set[str]()
    for chunk, line_ends in unified(_characters(source), newlines):
        digest.update(chunk.encode())
        length += len(chunk)
        changed += line_ends
        seen |= set(Vocabulary.of(chunk).characters)
    if not length:
        raise TextError(f"{source.name}: expected some text, got an empty file")
    if changed:
        log.info(
            f"{source.name}: line ends read as LF that were CRLF or CR: {changed:,}; "
            f"data.newlines=keep would keep them"
        )
    vocabulary = Vocabulary("".join(sorted(seen)))
    path = cache_dir() / "corpora" / f"{digest.hexdigest()}.npy"
    try:
        try:
            ids = _read_ids(path, vocabulary, length)
        except (OSError, ValueError, EOFError):  # not there, or not what was written
            chunks = (chunk for chunk, _ in unified(_characters(source), newlines))
            _write_ids(chunks, source.name, vocabulary, length, digest.hexdigest(), path)
            ids = _read_ids(path, vocabulary, length)
    except (OSError, ValueError, EOFError) as error:
        raise TextError(
            f"{path}: cannot keep the text's ids there ({error}); "
            f"set XDG_CACHE_HOME to a folder with room that you may write to"
        ) from None
    return Corpus(source.name, ids, vocabulary, digest.hexdigest())


def _characters(source: Source) -> Iterator[str]:
    """Its documents, an empty line between two."""
    for number, document in enumerate(source.documents()):
        if number:
            yield "\n\n"
        for chunk in document.chunks():
            yield chunk.decode()


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


def _write_ids(
    chunks: Iterator[str],
    name: str,
    vocabulary: Vocabulary,
    length: int,
    sha256: str,
    path: Path,
) -> None:
    """Write the ids beside their place and rename them into it: there complete or not at all.

    After the array, where numpy does not look, comes the SHA-256 of its ids.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path.parent)
    temporary = temporary_beside(path)
    try:
        digest, of_ids = hashlib.sha256(), hashlib.sha256()
        with temporary.open("wb") as file:  # not by a memory map: a full disk would kill us
            header = {"descr": vocabulary.dtype.str, "fortran_order": False, "shape": (length,)}
            np.lib.format.write_array_header_1_0(file, header)
            for chunk in chunks:
                digest.update(chunk.encode())
                ids = vocabulary.encode(chunk).tobytes()
                of_ids.update(ids)
                file.write(ids)
            file.write(of_ids.digest())
            sync(file)
        if digest.hexdigest() != sha256:
            raise KeyError
        temporary.replace(path)
    except KeyError:
        raise TextError(f"{name}: changed while it was being read; start again") from None
    finally:
        temporary.unlink(missing_ok=True)
