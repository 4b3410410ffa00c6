"""Find files in folders and by globs, in a stable order, each file once."""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from glob import glob
from pathlib import Path

from gpt.errors import TextError
from gpt.text.documents import Skipped
from gpt.text.reading import in_message

IN_A_RUN = {"config.yaml", "checkpoints"}  # names that the folder of every run contains
IN_A_SWEEP = "sweep.json"  # name of a file that the folder of every sweep contains


def find_files(
    root: Path, globs: Sequence[str], pattern: Sequence[str] = ()
) -> Iterator[Path | Skipped]:
    """Yield the files below the folder `root` that `globs` select, sorted by path, each once.

    The path below `root` must also match the glob with the parts `pattern`. Hidden files are
    ignored, and links are followed. Yield `Skipped` for files and folders already found by another
    path (so a loop of links ends), broken links, pipes, devices, and the folders of runs and
    sweeps, because training changes these folders.
    """
    at = pattern.index("**") if "**" in pattern else len(pattern)
    starts = glob("/".join(pattern[:at]), root_dir=root) if at else [""]  # noqa: PTH207 (relative)
    is_selected = selector(globs)
    is_matched = selector(["/".join(pattern[at:])] if pattern[at:] else [])
    seen = {_identity((root / start).parent.stat()) for start in starts if start}
    pending = sorted((root / start for start in starts), reverse=True)
    while pending:
        path = pending.pop()
        try:
            status = path.stat()
            if status.st_ino and _identity(status) in seen:
                yield Skipped(in_message(path), "already found by another path")
                continue
            seen.add(_identity(status))
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
            elif is_selected(path.relative_to(root)) and is_matched(path.relative_to(root)):
                yield path
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP) or not path.is_symlink():
                raise TextError(
                    f"{in_message(path)}: cannot read the text: {error.strerror}"
                ) from None
            yield Skipped(in_message(path), "link to nowhere")


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def selector(globs: Sequence[str]) -> Callable[[Path], bool]:
    """Return a function that returns whether `globs` select a relative path.

    Globs are matched as in a .gitignore. One that begins with `!` excludes a file, or a folder and
    its content. If there are globs without `!`, one of them must match.
    """
    if not globs:
        return lambda path: True
    from pathspec import GitIgnoreSpec

    try:
        including = GitIgnoreSpec.from_lines(glob for glob in globs if not glob.startswith("!"))
        excluding = GitIgnoreSpec.from_lines(glob[1:] for glob in globs if glob.startswith("!"))
    except ValueError as error:
        raise TextError(f"data.include and data.exclude: {error}; correct this glob") from None
    return lambda path: (
        (not including or including.match_file(path)) and not excluding.match_file(path)
    )
