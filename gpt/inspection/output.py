"""Check and write the file of a picture or page, without importing torch."""

from collections.abc import Sequence
from pathlib import Path

from gpt.errors import GPTError, UsageError
from gpt.files import write_atomically


def check_out(
    path: Path, option: str = "--out", endings: Sequence[str] = (".png", ".html")
) -> None:
    """Raise UsageError unless `path` is a new file, or a plain file, that ends in `endings`."""
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
    """Write the whole file or nothing. Raise GPTError if that is impossible."""
    try:
        write_atomically(path, [content])
    except OSError as error:
        raise GPTError(
            f"{path}: cannot write it ({error.strerror}); choose another {option}"
        ) from error
