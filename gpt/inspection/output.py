"""Check the path of a file to write."""

from collections.abc import Sequence
from pathlib import Path

from gpt.errors import UsageError


def check_out(path: Path, option: str, endings: Sequence[str], *, overwrite: bool = False) -> None:
    """Raise UsageError unless `path` ends in one of `endings` and a file can be written there.

    `overwrite` is whether an existing plain file may be replaced. The message quotes `option`,
    which set `path`.
    """
    if path.suffix.lower() not in endings:
        raise UsageError(f"{option} {path}: expected a name that ends in {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(
            f"{option} {path}: expected a new name or a plain file to replace, got a link, a "
            f"folder, a pipe or a device; choose another name"
        )
    if not overwrite:
        check_absent(path, option)


def check_absent(path: Path, option: str) -> None:
    """Raise UsageError, which quotes `option`, if anything exists at `path`."""
    if path.exists():
        raise UsageError(
            f"{option} {path}: it exists already; choose another name, or add --overwrite "
            f"to replace it"
        )
