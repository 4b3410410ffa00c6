"""The file that a picture is written to. Imports no torch: a wrong name is refused at once."""

from collections.abc import Sequence
from pathlib import Path

from gpt.errors import GPTError, UsageError
from gpt.files import write_atomically

ENDINGS = (".png", ".html")


def check_out(path: Path, option: str = "--out", endings: Sequence[str] = ENDINGS) -> None:
    """Raises UsageError unless a file of that name can be written, or is one to be replaced."""
    if path.suffix.lower() not in endings:
        raise UsageError(f"{option} {path}: expected a name that ends in {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(
            f"{option} {path}: expected a new name or a plain file to replace, got a link, a "
            f"folder, a pipe or a device; choose another name"
        )


def write_out(path: Path, content: bytes, option: str = "--out") -> None:
    """Write the file in full or not at all. Raises GPTError if it cannot be written."""
    try:
        write_atomically(path, [content])
    except OSError as error:
        raise GPTError(
            f"{path}: cannot write it ({error.strerror}); choose another {option}"
        ) from error
