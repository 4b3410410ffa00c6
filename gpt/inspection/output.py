"""The file that a picture is written to. Knows no torch, so that a wrong name is told at once."""

from pathlib import Path

from gpt.errors import GPTError, UsageError
from gpt.files import write_atomically

ENDINGS = (".png", ".html")


def check_out(path: Path) -> None:
    """Raises UsageError unless the file has a known ending and a folder to lie in."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"--out {path}: expected a name that ends in .png or .html")
    if not path.parent.is_dir():
        raise UsageError(f"--out {path}: there is no folder {path.parent}; make it first")


def write_out(path: Path, content: bytes) -> None:
    """Write the file, whole or not at all. Raises GPTError if it cannot be written."""
    try:
        write_atomically(path, [content])
    except OSError as error:
        raise GPTError(f"{path}: cannot write it ({error.strerror}); choose another --out") from (
            error
        )
