"""Read a text from standard input and store it, because it can be read only once.

In a config, the name of this text is `-`. The first copy is in the cache. Each run that uses the
text, and each sweep, has its own copy in its folder.
"""

import hashlib
import sys
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO, TextIO
from uuid import uuid4

from gpt.config.schema import DataConfig
from gpt.errors import TextError
from gpt.files import write_atomically
from gpt.text.cache import STDIN_FOLDER, cache_dir, remove_unused_inputs
from gpt.text.reading import CHUNK_BYTES

STDIN = "-"
STORED_INPUT = "standard_input.txt"  # file name in the folder of a run or a sweep
_EXAMPLE = "pipe one in, such as: gpt train - < my.txt"


def reads_standard_input(data: DataConfig) -> bool:
    """Return whether the text or val text is standard input; raise TextError if both are."""
    texts = (data.source, data.val_source or ())
    uses = [STDIN in ([names] if isinstance(names, str) else names) for names in texts]
    if all(uses):
        raise TextError("-: standard input can be the text or the val text, not both")
    return any(uses)


def standard_input(folder: Path | None = None) -> Path:
    """Return the copy of standard input in `folder`, the folder of a run or sweep.

    If there is none, read standard input and return a copy in the cache.
    """
    stored = folder and folder / STORED_INPUT
    return stored if stored and stored.is_file() else _read(sys.stdin)


def store_standard_input(text: Path | None, folder: Path) -> None:
    """Copy `text` to the run or sweep `folder`, if there is a text and no copy yet."""
    stored = folder / STORED_INPUT
    if text is not None and not stored.exists():
        with text.open("rb") as file:
            write_atomically(stored, iter(partial(file.read, CHUNK_BYTES), b""))


@lru_cache(maxsize=1)
def _read(stdin: TextIO | None) -> Path:
    stream: BinaryIO | None = getattr(stdin, "buffer", None)
    if stdin is None or stream is None or stdin.isatty():
        got = "a terminal" if stream is not None else "none"
        raise TextError(f"-: expected a text on standard input, got {got}; {_EXAMPLE}")
    folder = cache_dir() / STDIN_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_unused_inputs()
        piped = folder / f"{uuid4().hex}.txt"
        write_atomically(piped, iter(partial(stream.read, CHUNK_BYTES), b""))
        with piped.open("rb") as file:  # equal texts share one file
            text = folder / f"{hashlib.file_digest(file, 'sha256').hexdigest()}.txt"
        piped.replace(text)
    except OSError as error:
        raise TextError(
            f"-: cannot keep standard input in {folder} ({error.strerror}); set XDG_CACHE_HOME to "
            f"a folder with room that you may write to"
        ) from None
    if not text.stat().st_size:
        text.unlink()
        raise TextError(f"-: expected a text on standard input, got nothing; {_EXAMPLE}")
    return text
