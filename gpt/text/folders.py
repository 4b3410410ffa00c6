"""The files in a folder and those below it, in a stable order, each real file once."""

import errno
import glob
import stat
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from gpt.errors import TextError
from gpt.text.documents import Skipped
from gpt.text.reading import in_message

OF_A_RUN = {"config.yaml", "checkpoints"}  # names of which each run's folder has both
OF_A_SWEEP = "sweep.json"  # a name that each sweep's folder has


def find_files(start: Path, globs: Sequence[str]) -> Iterator[Path | Skipped]:
    """Yield the files in a folder and in those below it that `globs` include, or the file itself.

    Sorted by their paths, part by part. Hidden names are left out, links are followed, and what
    was found before by another path is skipped, so that a loop of links ends; and so are runs,
    which grow.

    Raises:
        TextError: a folder or file cannot be looked at.
    """
    seen = set[tuple[int, int]]()
    pending, depth = [start], len(start.parts)
    while pending:
        path = pending.pop()
        try:
            status = path.stat()
            identity = (status.st_dev, status.st_ino)
            if status.st_ino and identity in seen:
                yield Skipped(in_message(path), "found before by another path")
                continue
            seen.add(identity)
            if stat.S_ISDIR(status.st_mode):
                below = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
                names = {entry.name for entry in below}
                if names >= OF_A_RUN or OF_A_SWEEP in names:
                    yield Skipped(in_message(path), "run")
                else:
                    pending += sorted(below, key=lambda entry: entry.name, reverse=True)
            elif not stat.S_ISREG(status.st_mode):
                yield Skipped(in_message(path), "pipe or device")
            elif path == start or is_included(path.parts[depth:], globs):
                yield path
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP) or not path.is_symlink():
                raise TextError(
                    f"{in_message(path)}: cannot read the text: {error.strerror}"
                ) from None
            yield Skipped(in_message(path), "link to nowhere")


def find_matches(pattern: str) -> list[Path]:
    """What a glob matches, sorted as in a folder; `**` matches folders below one another."""
    found = glob.iglob(pattern, recursive=True)  # noqa: PTH207 (Path's takes no absolute pattern)
    return sorted(map(Path, found), key=lambda path: path.parts)


def is_glob(name: str) -> bool:
    """Whether it can match several names."""
    return glob.has_magic(name)


def is_included(parts: Sequence[str], globs: Iterable[str]) -> bool:
    """Return whether a path is read: it matches a glob, if there are any, and none that excludes.

    As in a .gitignore: a glob with a slash is for the path, one without for the last name in it,
    `**` stands for any number of folders, and one that ends in a slash for what is in a folder.
    One that begins with `!` excludes files, and folders with what is in them.
    """
    including = [_parts(glob) for glob in globs if not glob.startswith("!")]
    return not is_excluded(parts, globs) and (
        not including or any(_matches(parts, each) for each in including)
    )


def is_excluded(parts: Sequence[str], globs: Iterable[str]) -> bool:
    """Return whether a glob that begins with `!` matches a path or a folder that it is in."""
    excluding = [_parts(glob[1:]) for glob in globs if glob.startswith("!")]
    return any(
        _matches(parts[:end], each) for each in excluding for end in range(1, len(parts) + 1)
    )


def _parts(glob: str) -> list[str]:
    parts = glob.split("/")
    anywhere = len(parts) == 1 or parts[1:] == [""]  # `name` or `name/`
    parts = [part for part in parts[:-1] if part] + [parts[-1] or "**"]
    return ["**", *parts] if anywhere else parts


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[i:], pattern[1:]) for i in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
