"""Standard input, kept in the cache by its hash until the runs that it trained are deleted."""

import hashlib
import logging
import os
import sys
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from gpt.config.schema import DataConfig
from gpt.errors import TextError
from gpt.files import remove_stale, sync, temporary_beside, write_atomically
from gpt.text.cache import cache_dir
from gpt.text.reading import CHUNK_BYTES

log = logging.getLogger(__name__)

STDIN = "-"
KEPT = "stdin:"  # and the first digits of its SHA-256: what a run's config names
DIGITS = 16
UNUSED_S = 86_400  # after which a text that no run began with is removed


def keep_standard_input() -> str:
    """Read standard input to its end into the cache; the name by which it is found again.

    Raises:
        TextError: nobody pipes anything in, or it cannot be kept.
    """
    stream: BinaryIO | None = getattr(sys.stdin, "buffer", None)
    if stream is None or sys.stdin.isatty():
        got = "a terminal" if stream is not None else "none"
        raise TextError(f"-: expected a text on standard input, got {got}; {_HOW}")
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_stale(folder)
        _remove_unused(folder)
        temporary = temporary_beside(folder / "text")
        try:
            digest, size = hashlib.sha256(), 0
            with temporary.open("wb") as file:
                while block := stream.read(CHUNK_BYTES):
                    digest.update(block)
                    size += file.write(block)
                sync(file)
            if not size:
                raise TextError(f"-: expected a text on standard input, got nothing; {_HOW}")
            temporary.replace(folder / f"{digest.hexdigest()}.txt")
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise TextError(
            f"-: cannot keep standard input in {folder} ({error.strerror}); set XDG_CACHE_HOME to "
            f"a folder with room that you may write to"
        ) from None
    name = f"{KEPT}{digest.hexdigest()[:DIGITS]}"
    log.info(f"standard input: {size:,} bytes, kept in the cache as {name} until its runs are gone")
    return name


_HOW = "pipe one in, such as: gpt train - < my.txt"


def keep_input(data: DataConfig) -> DataConfig:
    """The same settings with the name of what standard input held in place of `-`.

    Raises:
        TextError: see `keep_standard_input`.
    """
    return with_input(data, keep_standard_input()) if reads_input(data) else data


def reads_input(data: DataConfig) -> bool:
    """Whether one of the texts is standard input."""
    return STDIN in chain.from_iterable(_texts(data).values())


def with_input(data: DataConfig, name: str) -> DataConfig:
    """The same settings with this name in place of `-`. Raises TextError if it is both texts'."""
    kept = dict[str, str | tuple[str, ...]]()
    for key, texts in _texts(data).items():
        if STDIN in texts:
            names = tuple(name if text == STDIN else text for text in texts)
            kept[key] = names if len(names) > 1 else name
    if len(kept) > 1:
        raise TextError("-: expected it as data.source or data.val_source, got it as both")
    return data.model_copy(update=kept) if kept else data


def kept_file(name: str) -> Path:
    """Where the text of that name, `stdin:...`, is kept. Raises TextError if it is gone."""
    prefix = name.removeprefix(KEPT)
    found = list(_folder().glob(f"{prefix}*.txt")) if prefix.isalnum() else []
    if len(found) != 1:
        raise TextError(
            f"{name}: this text came from standard input and is not in the cache any more; pipe it "
            f"in again, such as: gpt train - --resume RUN < my.txt; to a sweep by the command that "
            f"began it"
        )
    return found[0]


def note_run(data: DataConfig, run: Path) -> None:
    """Keep what a run read from standard input until that run is deleted, too."""
    for name in chain.from_iterable(_texts(data).values()):
        if name.startswith(KEPT):
            runs = kept_file(name).with_suffix(".runs")
            if run.resolve() not in _runs_of(runs):
                with runs.open("ab") as file:  # so that two runs can begin at once
                    file.write(_line(run.resolve()))


def forget_run(run: Path) -> None:
    """Remove what only this run, which was deleted, read from standard input."""
    for runs in _folder().glob("*.runs"):
        with suppress(OSError):
            known = _runs_of(runs)
            if run.resolve() in known:
                left = [path for path in known if path != run.resolve() and path.exists()]
                if left:
                    write_atomically(runs, map(_line, left))
                else:
                    runs.with_suffix(".txt").unlink(missing_ok=True)
                    runs.unlink(missing_ok=True)


def _texts(data: DataConfig) -> dict[str, tuple[str, ...]]:
    """The names of texts, by the setting that they are in."""
    settings = {"source": data.source, "val_source": data.val_source or ()}
    return {key: (texts,) if isinstance(texts, str) else texts for key, texts in settings.items()}


def _folder() -> Path:
    return cache_dir() / "stdin"


def _runs_of(runs: Path) -> list[Path]:
    """The folders of the runs that read a text; none if it was not noted yet."""
    lines = runs.read_bytes().splitlines() if runs.exists() else []
    return [Path(os.fsdecode(line)) for line in lines]


def _line(run: Path) -> bytes:
    return os.fsencode(run) + b"\n"


def _remove_unused(folder: Path) -> None:
    """Texts of which no run began, such as those of a dry run, a day ago."""
    for text in folder.glob("*.txt"):
        unused = not text.with_suffix(".runs").exists()
        if unused and time.time() - text.stat().st_mtime > UNUSED_S:
            text.unlink(missing_ok=True)
