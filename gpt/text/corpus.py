"""A text as one long array of ids on disk, split into train and val.

The array is cached in a folder for each combination of a text and its settings:

    corpora/KEY/corpus.json     the text's hashes and sizes, and the vocabulary
                ids-HASH.npy    the ids of train, then those of val, in the smallest integer type
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt.config.data_config import DataConfig
from gpt.errors import CheckpointError, TextError, counted, setting_arguments
from gpt.files import write_atomically
from gpt.terminal import phase
from gpt.text.cache import cache_dir, quick_sha256
from gpt.text.documents import Source
from gpt.text.preparation import Task, count_text, write
from gpt.text.split import least_characters
from gpt.text.vocabulary import Ids, Vocabulary

log = logging.getLogger(__name__)

CORPUS_FORMAT = 3
USUAL_MIN_CONTEXT = 8  # smallest model.T that gpt chooses or advises
RECORD = "corpus.json"


@dataclass(frozen=True)
class Corpus:
    """The ids of a text, its vocabulary and its sizes.

    `sha256` is the hash of the normalised text in UTF-8. If val is a separate text or consists of
    selected documents, the hash also covers the position where val begins.
    """

    name: str  # name of the text in messages
    ids: Ids  # train split, then val split; memory-mapped
    vocabulary: Vocabulary
    sha256: str
    train_ids: int  # number of ids before the val split
    characters: int  # number of characters of both splits
    val_characters: int  # number of characters of the val split
    val_bytes: int  # size of the val split in UTF-8
    val_first_bytes: int  # size in UTF-8 of the first character of val, which is not scored
    standard_input: Path | None = None  # file with the text from standard input, if it is used

    @property
    def train(self) -> Ids:
        """The ids of the train split."""
        return self.ids[: self.train_ids]

    @property
    def val(self) -> Ids:
        """The ids of the val split."""
        return self.ids[self.train_ids :]

    def summary(self) -> str:
        """Describe size and vocabulary in words, as in `1,000 characters, vocabulary of 65`."""
        ids = f"vocabulary of {len(self.vocabulary)}"
        if self.vocabulary.is_bytes:
            ids = counted(len(self.ids), "byte")
        return f"{counted(self.characters, 'character')}, {ids}"

    def check_fits(self, T: int, data: DataConfig) -> None:
        """Raise TextError (with advice based on `data`) unless each split has more than `T` ids."""
        shortest, needed = min(len(self.train), len(self.val)), ""
        if shortest > T:
            return
        is_tail = data.split == "tail" and data.val_source is None
        if is_tail and not self.vocabulary.is_bytes:
            needed = f": {least_characters(T, data.val_fraction):,} are needed"
        smaller = ""
        if shortest > USUAL_MIN_CONTEXT:
            smaller = f", or at most {setting_arguments(f'model.T={shortest - 1}')}"
        other = "" if data.val_source else " or another data.val_fraction"
        raise TextError(
            f"{self.name}: {self.characters:,} characters are too few{needed}; train has "
            f"{len(self.train):,}, val {counted(len(self.val), self.vocabulary.unit)}, and each "
            f"must have more than model.T = {T}; use a longer text{other}{smaller}"
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
    """Encode a text as ids. Return cached ids if neither the text nor the settings have changed.

    Changes of the text's files and of the cached ids are detected by `quick_sha256`. Only one
    process prepares a text with the same settings at a time; others wait for it.

    By default, val is a part of `source`, and the vocabulary is made from the text. If `extends` is
    true, the characters of the text are added to `vocabulary`. `seed` selects the documents of val
    if `data.split` is `documents`.

    Raises:
        TextError: the text is empty, unreadable, not in its encoding, or changed while it was read;
            or `vocabulary` lacks some characters; or the cache cannot be written.
    """
    from filelock import FileLock  # the import takes 0.1 s; not all commands need it

    task = Task(source, val_source, data or DataConfig(), vocabulary, extends, seed)
    folder = cache_dir() / "corpora" / task.key()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # the system releases the lock if this process dies
        with FileLock(folder / ".lock"), phase(f"preparing {task.name}"):
            fingerprint = task.fingerprint()
            corpus = _read(folder, task, fingerprint) if source.files else None
            if corpus is None:
                _prepare(folder, task, fingerprint)
                corpus = _read(folder, task, task.fingerprint())
            if corpus is None:
                raise _changed(source)
            return corpus
    except OSError as error:
        raise TextError(
            f"cannot store the text's ids in {folder} ({error.strerror or error}); "
            f"make room by deleting {cache_dir()}, or set XDG_CACHE_HOME to a writable folder with "
            f"free space"
        ) from None


def _prepare(folder: Path, task: Task, fingerprint: list[str]) -> None:
    """Encode the text of `task`, and write its ids and its corpus.json to `folder`."""
    parts, name = task.parts(), task.name
    temporary = folder / ".ids.npy.tmp"  # renamed when complete; the caller has locked the folder
    try:
        counts = count_text(task, parts)
        if not counts.characters:
            raise TextError(f"{name}: expected some text, got none")
        with temporary.open("wb") as file:  # not a memory map: a full disk would end the process
            fields = write(parts, counts, file)
        ids = folder / f"ids-{str(fields['sha256'])[:16]}.npy"
        temporary.replace(ids)
    except (KeyError, ValueError):
        raise _changed(task.source) from None
    finally:
        temporary.unlink(missing_ok=True)
    notices = [notice for source in task.sources for notice in source.notices()]
    # with data.split=documents, each part has read the whole text, so count only one part
    read = parts[:1] if task.data.split == "documents" else parts
    if line_ends := sum(part.line_ends for part in read):
        notices.append(f"{name}: {line_ends:,} line ends (CRLF or CR) were changed to LF")
    record = {
        "format": CORPUS_FORMAT,
        "fingerprint": fingerprint,
        "file": ids.name,
        "quick_sha256": quick_sha256([ids]),
        "vocabulary": counts.vocabulary.to_json(),
        "fields": fields,
        "notices": notices,
    }
    write_atomically(folder / RECORD, [json.dumps(record, indent=2).encode()])
    for old in set(folder.glob("ids-*.npy")) - {ids}:
        old.unlink()


def _read(folder: Path, task: Task, fingerprint: list[str]) -> Corpus | None:
    """Load the result of `_prepare`; return None if it is missing, damaged or outdated."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        path = folder / record["file"]
        known = (record["format"], record["fingerprint"], record["quick_sha256"])
        if known != (CORPUS_FORMAT, fingerprint, quick_sha256([path])):
            return None
        for notice in record["notices"]:
            log.info(notice)
        return Corpus(
            task.name,
            np.load(path, mmap_mode="r", allow_pickle=False),
            Vocabulary.from_json(record["vocabulary"]),
            **record["fields"],
            standard_input=next((s.standard_input for s in task.sources if s.standard_input), None),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, CheckpointError):
        return None


def _changed(source: Source) -> TextError:
    return TextError(f"{source.name}: changed while it was being read; start again")
