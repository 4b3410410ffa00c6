"""The file that a picture is written to. Knows no torch, so that a wrong name is told at once."""

import contextlib
import os
from pathlib import Path

from gpt.errors import GPTError, UsageError

ENDINGS = (".png", ".html")


def check_out(path: Path) -> None:
    """Raises UsageError unless the file has a known ending and a folder to lie in."""
    if path.suffix not in ENDINGS:
        raise UsageError(f"--out {path}: expected a name that ends in .png or .html")
    if not path.parent.is_dir():
        raise UsageError(f"--out {path}: there is no folder {path.parent}; make it first")


def write_whole(path: Path, content: bytes) -> None:
    """Write the file beside its place and rename it into it: there whole or not at all.

    Raises GPTError if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise GPTError(f"{path}: cannot write it ({error.strerror}); choose another --out") from (
            error
        )
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
