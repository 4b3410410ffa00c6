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

OF_A_RUN = {"config.yaml", "checkpoints"}  # by which the folder of a run is known


def find_files(start: Path, include: Sequence[str]) -> Iterator[Path | Skipped]:
    """The files in a folder and in those below it that `include` names, or the file itself.

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
                if {entry.name for entry in below} >= OF_A_RUN:
                    yield Skipped(in_message(path), "run")
                else:
                    pending += sorted(below, key=lambda entry: entry.name, reverse=True)
            elif not stat.S_ISREG(status.st_mode):
                yield Skipped(in_message(path), "pipe or device")
            elif path == start or is_included(path.parts[depth:], include):
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


def is_included(parts: Sequence[str], include: Iterable[str]) -> bool:
    """Whether a path is named by a glob of `data.include`; by none, each path is.

    As in a .gitignore: a glob with a slash is for the path, one without for the last name in it,
    and `**` stands for any number of folders.
    """
    globs = [pattern.split("/") for pattern in include]
    return not globs or any(
        _matches(parts, each if len(each) > 1 else ["**", *each]) for each in globs
    )


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[i:], pattern[1:]) for i in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
