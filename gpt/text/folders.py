"""Find files in folders and by globs, in a stable order, each file once."""

import errno
import stat
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from gpt.errors import TextError
from gpt.text.documents import Skipped
from gpt.text.reading import in_message

IN_A_RUN = {"config.yaml", "checkpoints"}  # names that the folder of every run contains
IN_A_SWEEP = "sweep.json"  # name of a file that the folder of every sweep contains


def find_files(start: Path, globs: Sequence[str]) -> Iterator[Path | Skipped]:
    """Yield the files below the folder `start` that `globs` select, or `start` if it is a file.

    Files are sorted by path. Hidden files are ignored, and links are followed. Yield `Skipped` for
    files and folders already found by another path (so a loop of links ends), broken links, pipes,
    devices, and the folders of runs and sweeps, because training changes these folders.
    """
    seen = set[tuple[int, int]]()
    pending, depth = [start], len(start.parts)
    while pending:
        path = pending.pop()
        try:
            status = path.stat()
            identity = (status.st_dev, status.st_ino)
            if status.st_ino and identity in seen:
                yield Skipped(in_message(path), "already found by another path")
                continue
            seen.add(identity)
            if stat.S_ISDIR(status.st_mode):
                names = sorted(
                    each.name for each in path.iterdir() if not each.name.startswith(".")
                )
                if {*names} >= IN_A_RUN or IN_A_SWEEP in names:
                    yield Skipped(in_message(path), "run")
                else:
                    pending += [path / name for name in reversed(names)]
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


def is_included(parts: Sequence[str], globs: Iterable[str]) -> bool:
    """Return whether `globs` select a path; `parts` are the names of its folders and its file.

    A glob that begins with `!` excludes a file, or a folder and its content. If there are globs
    without `!`, one of them must match. As in .gitignore, a glob with a slash must match the whole
    path, and one without a slash only the last name. `**` matches any number of folders. A glob
    that ends in a slash matches everything in a folder.
    """
    including = [_parts(glob) for glob in globs if not glob.startswith("!")]
    return not is_excluded(parts, globs) and (
        not including or any(_matches(parts, each) for each in including)
    )


def is_excluded(parts: Sequence[str], globs: Iterable[str]) -> bool:
    """Return whether a glob that begins with `!` matches the path `parts` or a folder above it."""
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
