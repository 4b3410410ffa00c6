"""A text as one long array of ids on disk, split into train and val.

The array is kept in the cache, in a folder for each text and way of reading it:

    corpora/KEY/corpus.json     what was read, by which rules, and the vocabulary
                ids-SHA256.npy  the ids, in the narrowest integers; the train split first
"""

import errno
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from gpt.config.schema import DataConfig
from gpt.errors import CheckpointError, ConfigError, TextError, counted
from gpt.files import remove_stale, temporary_beside, write_atomically
from gpt.status import phase
from gpt.text.cache import LOCK, corpora_dir, sampled_sha256
from gpt.text.display import in_one_line
from gpt.text.documents import Source
from gpt.text.preparation import Progress, Task, count, write
from gpt.text.vocabulary import Ids, Vocabulary

log = logging.getLogger(__name__)

FORMAT = 1
SHORTEST_SPLIT = 2  # characters: one to read and one to predict
FEW_CHARACTERS = 1000  # of a text that is refused for its length, whatever model.T is
RECORD = "corpus.json"
BAR_DELAY_S = 1


@dataclass(frozen=True)
class Corpus:
    """The ids of a text, memory-mapped: a text of any size takes no memory to speak of.

    `sha256` is of the text as the ids stand for it (normalised, no byte-order mark) in UTF-8, and
    changes whenever that does, or which of it is val; the rest follows from the settings.
    `train_ids` is the number of ids before the val split, whose text has `val_characters` and, in
    UTF-8, `val_bytes`, its first character `val_first_bytes`. `standard_input` is the file that
    holds what came from standard input, if a text did.
    """

    name: str
    ids: Ids
    vocabulary: Vocabulary
    sha256: str
    train_ids: int
    characters: int
    val_characters: int
    val_bytes: int
    val_first_bytes: int
    standard_input: Path | None = None

    @property
    def train(self) -> Ids:
        """By default the first 90 % of the characters."""
        return self.ids[: self.train_ids]

    @property
    def val(self) -> Ids:
        """By default the last 10 % of the characters."""
        return self.ids[self.train_ids :]

    def last(self, characters: int) -> Ids:
        """The ids of the last so many characters, those of val or fewer."""
        if characters == self.val_characters:
            return self.val
        if not self.vocabulary.is_bytes:
            return self.ids[-characters:]
        tail = self.val[-4 * characters :]  # of UTF-8, in which no character has more bytes
        first = np.flatnonzero((tail & 0xC0) != 0x80)  # the other bytes begin with the bits 10
        return tail[first[-characters] :]

    def summary(self) -> str:
        """Its size and its vocabulary, in a few words."""
        size, V = f"{self.characters:,} characters", len(self.vocabulary)
        if self.vocabulary.is_bytes:
            return f"{size}, {len(self.ids):,} bytes"
        if self.vocabulary.unknown:
            return (
                f"{size}, {V} ids, one of them for {counted(self.vocabulary.unknown, 'rare one')}"
            )
        return f"{size}, vocabulary of {V}"

    def check_fits(self, T: int) -> None:
        """Check that both splits hold two characters, and a window of T ids and the next.

        Raises:
            ConfigError: they do not hold one of this T.
            TextError: the text is too short to learn from.
        """
        train_characters = self.characters - self.val_characters
        least = min(train_characters, self.val_characters)
        fits = least >= SHORTEST_SPLIT and min(len(self.train), len(self.val)) > T
        if not fits and self.characters < FEW_CHARACTERS:
            raise TextError(
                f"{self.name}: {self.characters:,} characters are too few to learn from; "
                f"some thousands are needed"
            )
        if least < SHORTEST_SPLIT:
            raise TextError(
                f"{self.name}: expected at least {SHORTEST_SPLIT} characters in each split, got "
                f"{train_characters:,} for train and {self.val_characters:,} for val; use a longer "
                f"text for the shorter one"
            )
        name, shortest = min(("train", self.train), ("val", self.val), key=lambda s: len(s[1]))
        if len(shortest) <= T:
            raise ConfigError(
                f"model.T: expected fewer than the {len(shortest):,} {self.vocabulary.unit}s of "
                f"the {name} split of {self.name} ({len(self.train):,} for train and "
                f"{len(self.val):,} for val), got {T}; use model.T={len(shortest) - 1} or "
                f"less, or {-(-(T + 1) // len(shortest))} times as much text for {name}"
            )


def load_corpus(
    source: Source,
    data: DataConfig | None = None,
    *,
    val_source: Source | None = None,
    vocabulary: Vocabulary | None = None,
    extends: bool = False,
    seed: int = 0,
) -> Corpus:
    """Prepare a text, or find it in the cache, where nothing has changed since.

    Whether something has is decided by the settings and by `sampled_sha256` of the text's files and
    of the ids, so it takes no longer for a large text. Only one process prepares a text at a time;
    others wait for it.

    Args:
        data: how the text is read and split, and its vocabulary; default the settings' defaults.
        val_source: a text of its own for val, in place of a part of the text.
        vocabulary: that of another run, in place of the text's own.
        extends: whether that vocabulary gets the characters of the text that it lacks.
        seed: chooses the documents that are held out, with `data.split: documents`.

    Raises:
        TextError: the text is empty, unreadable or not in its encoding, or changes while it is
            read; or the cache cannot be written.
    """
    task = Task(source, val_source, data or DataConfig(), vocabulary, extends, seed)
    if task.data.documents != "files" and task.data.split != "documents":
        log.info(
            f"data.documents={task.data.documents} has no effect with data.split="
            f"{task.data.split}; to hold out whole documents: --set data.split=documents"
        )
    folder = corpora_dir() / task.key()
    try:
        with _locked(folder, source.name), phase(f"preparing {source.name}"):
            fingerprint = task.fingerprint()
            corpus = _read(folder, source.name, fingerprint) if source.files else None
            if corpus is None:
                _prepare(folder, task, fingerprint)
                if task.fingerprint() != fingerprint:
                    raise _changed(source)
                corpus = _read(folder, source.name, fingerprint)
            if corpus is None:
                raise OSError(errno.EIO, "what is read is not what was written")
            stdin = next(
                (each.standard_input for each in task.sources if each.standard_input), None
            )
            return replace(corpus, standard_input=stdin)
    except OSError as error:
        raise TextError(
            f"{folder}: cannot keep the text's ids there ({error.strerror or error}); "
            f"make room by gpt data --clear, or set XDG_CACHE_HOME to a folder with room that you "
            f"may write to"
        ) from None


def _prepare(folder: Path, task: Task, fingerprint: str) -> None:
    """Write the ids beside their place and rename them into it: there complete or not at all."""
    parts, name = task.parts(), task.source.name
    with _progress_bar(f"reading {name}") as progress:
        counts = count(parts, task.vocabulary, task.extends, progress)
    if not counts.characters:
        raise TextError(f"{name}: expected some text, got an empty file")
    for entry in corpora_dir().iterdir():
        remove_stale(entry)
    temporary = temporary_beside(folder / "ids.npy")
    try:
        with (
            _progress_bar(f"encoding {name}", counts.bytes) as progress,
            temporary.open("wb") as file,  # not by a memory map: a full disk would kill us
        ):
            try:
                written = write(parts, counts, file, progress)
            except (KeyError, ValueError):
                raise _changed(task.source) from None
        ids = folder / f"ids-{written.sha256[:16]}.npy"
        temporary.replace(ids)
    finally:
        temporary.unlink(missing_ok=True)
    record = asdict(written) | {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "file": ids.name,
        "sampled_sha256": sampled_sha256([ids]),
        "vocabulary": counts.vocabulary.to_json(),
        "characters": counts.characters,
        "val_characters": counts.characters - counts.train_characters,
        "notices": [notice for source in task.sources for notice in source.notices()],
        "line_ends": sum(part.line_ends for part in parts),
    }
    write_atomically(folder / RECORD, [json.dumps(record, indent=2).encode()])
    for old in set(folder.glob("ids-*.npy")) - {ids}:
        old.unlink()


def _read(folder: Path, name: str, fingerprint: str) -> Corpus | None:
    """What `_prepare` wrote, if it is there, of the text as it is now, and intact.

    The ids are verified like a text: whole, if they are at most 64 MiB, else by a sample.
    """
    try:
        record = json.loads((folder / RECORD).read_bytes())
        path = folder / record["file"]
        known = (record["format"], record["fingerprint"], record["sampled_sha256"])
        if known != (FORMAT, fingerprint, sampled_sha256([path])):
            return None
        for notice in record["notices"]:
            log.info(notice)
        if record["line_ends"]:
            log.info(
                f"{name}: line ends read as LF that were CRLF or CR: {record['line_ends']:,}; "
                f"data.newlines=keep would keep them"
            )
        return Corpus(
            name,
            np.load(path, mmap_mode="r", allow_pickle=False),
            Vocabulary.from_json(record["vocabulary"]),
            *(record[key] for key in ("sha256", "train_ids", "characters")),
            *(record[key] for key in ("val_characters", "val_bytes", "val_first_bytes")),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, CheckpointError):
        return None


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    """Keep the folder to this process; the system releases the lock if the process dies."""
    from filelock import FileLock, Timeout  # 0.1 s, which other commands need not take

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info(f"{name}: another process prepares this text; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _progress_bar(title: str, size: int | None = None) -> Iterator[Progress]:
    """Show a bar of the bytes read after BAR_DELAY_S, in a terminal or a notebook."""
    from tqdm.auto import tqdm

    with tqdm(
        *(None, in_one_line(title), size, False),  # leave no bar behind
        disable=sys.stderr is None or (False if "ipykernel" in sys.modules else None),
        delay=BAR_DELAY_S,
        unit="B",
        unit_scale=True,
        dynamic_ncols=True,
    ) as bar:
        yield bar.update


def _changed(source: Source) -> TextError:
    return TextError(f"{source.name}: changed while it was being read; start again")
