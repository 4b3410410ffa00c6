"""What a checkpoint holds, read without torch: enough to sample from it on a CPU.

A checkpoint comes from a disk that may fail, or from a stranger. It is read only if each of its
files is a plain one with the hash that was written beside it, and if what is to be read is no
larger than the model of its config: a stranger can compute hashes too.
"""

import hashlib
import logging
import math
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from gpt.config.load import load_config
from gpt.config.schema import Config
from gpt.errors import CheckpointError, ConfigError
from gpt.files import sync
from gpt.model.shapes import parameter_shapes
from gpt.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

FILES = ("config.yaml", "model.safetensors", "training_state.pt", "vocabulary.json")
HASHES = "SHA256SUMS"  # for `sha256sum -c` too
LONGEST_TEXT = 2**24  # bytes of a config, a vocabulary: all of Unicode fits

_READ_ERRORS = (
    OSError,
    CheckpointError,  # vocabulary.json
    ConfigError,  # config.yaml
    SafetensorError,  # model.safetensors is none
    ValueError,
    KeyError,
)


@dataclass(frozen=True)
class Stored:
    """A model's weights by name, with all that is needed to use them."""

    step: int
    config: Config
    vocabulary: Vocabulary
    weights: dict[str, NDArray[np.float32]]


def read_stored(run: Path, which: str, *, with_state: bool = False) -> Stored:
    """The checkpoint `best`, `last` or `step-N` of a run; its training state, if asked, is whole.

    Raises:
        CheckpointError: it is missing, damaged or not one of ours.
    """
    folder = run / "checkpoints" / which
    if not folder.exists():
        raise CheckpointError(f"{folder}: no such checkpoint")
    try:
        _check_place(folder)
        _check_whole(folder, "config.yaml", LONGEST_TEXT)
        _check_whole(folder, "vocabulary.json", LONGEST_TEXT)
        config = load_config(folder / "config.yaml")
        vocabulary = Vocabulary.from_json((folder / "vocabulary.json").read_text("utf-8"))
        expected = parameter_shapes(config.model, len(vocabulary))
        size = 4 * sum(math.prod(shape) for shape in expected.values())
        _check_whole(folder, "model.safetensors", size + LONGEST_TEXT)
        if with_state:
            _check_whole(folder, "training_state.pt", 4 * size + LONGEST_TEXT)
        step, weights = _read_weights(folder / "model.safetensors", expected)
        if which.startswith("step-") and which != f"step-{step}":
            raise ValueError(f"it is of step {step}")
    except _READ_ERRORS as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(damaged(folder, f"{reason:.300}")) from error
    return Stored(step, config, vocabulary, weights)


def _read_weights(
    path: Path, expected: dict[str, tuple[int, ...]]
) -> tuple[int, dict[str, NDArray[np.float32]]]:
    """The step, and the weights if they are those expected, and finite."""
    with safe_open(path, framework="numpy") as file:
        found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
        if set(found) != set(expected):
            raise ValueError("its tensors are not those of a model with this config")
        for name, part in found.items():
            got = part.get_dtype(), tuple(part.get_shape())
            if got != ("F32", expected[name]):
                raise ValueError(f"{name}: expected {expected[name]} of F32, got {got}")
        weights = {name: file.get_tensor(name) for name in found}
        step = int((file.metadata() or {})["step"])
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: expected finite numbers")
    return step, weights


def _check_place(folder: Path) -> None:
    link = folder.readlink() if folder.is_symlink() else Path("step-0")
    if folder.parent.is_symlink() or not re.fullmatch(r"step-\d+", str(link)):
        raise CheckpointError(f"expected a link to step-N beside it, got one to {link}")


def _check_whole(folder: Path, name: str, largest: int) -> None:
    """Raises CheckpointError unless it is a plain file, not too large, and as it was written."""
    for file in (name, HASHES):
        status = (folder / file).lstat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{file}: expected a file, got a link, folder or device")
        limit = LONGEST_TEXT if file == HASHES else largest
        if status.st_size > limit:
            raise CheckpointError(
                f"{file}: expected at most {limit:,} bytes, got {status.st_size:,}"
            )
    written = (folder / HASHES).read_text("utf-8", "replace").splitlines()
    if _hash_line(folder, name) not in written:
        raise CheckpointError(f"{name} is not what was written: its SHA-256 differs")


def write_hashes(folder: Path) -> None:
    """Write the SHA256SUMS of a checkpoint's files."""
    lines = "".join(f"{_hash_line(folder, name)}\n" for name in FILES)
    (folder / HASHES).write_text(lines, "utf-8")


def _hash_line(folder: Path, name: str) -> str:
    with (folder / name).open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}"


def damaged(folder: Path, reason: str) -> str:
    """What to say of a checkpoint that cannot be read."""
    return (
        f"{folder}: damaged or not a checkpoint of this program ({reason}); "
        f"the run's other checkpoint, best or last, may be whole"
    )


def go_back_to_whole(run: Path) -> None:
    """Make the newest checkpoint that can be read the `last`; set aside those after it, and say so.

    Copying without links (scp -r, zip) turns each link into a folder of its own; it becomes a
    link again.

    Raises CheckpointError, which tells what is wrong with the newest, if none can be read.
    """
    folder = run / "checkpoints"
    _mend_copies(run)
    broken: dict[str, CheckpointError] = {}
    names = [entry.name for entry in folder.iterdir() if re.fullmatch(r"step-\d+", entry.name)]
    for name in sorted(names, key=lambda name: int(name.removeprefix("step-")), reverse=True):
        try:
            read_stored(run, name, with_state=True)
        except CheckpointError as error:
            broken[name] = error
            continue
        for other, wrong in broken.items():
            log.warning("%s; kept as damaged-%s, going back to %s", wrong, other, name)
            shutil.rmtree(folder / f"damaged-{other}", ignore_errors=True)
            (folder / other).rename(folder / f"damaged-{other}")
        link(folder, "last", name)
        if not (folder / "best").exists():
            link(folder, "best", name)
        return
    raise next(iter(broken.values()), CheckpointError(f"{folder}: no checkpoint"))


def _mend_copies(run: Path) -> None:
    """Links in place of copies, and back what a kill caught between two names."""
    folder = run / "checkpoints"
    for name in ("last", "best"):
        copy = folder / name
        if copy.is_symlink() or not copy.is_dir():
            continue
        try:
            step = f"step-{read_stored(run, name).step}"
        except CheckpointError:
            continue
        try:
            read_stored(run, step, with_state=True)
            shutil.rmtree(copy)
        except CheckpointError:  # the copy is the whole one
            if (folder / step).exists():
                (folder / step).rename(folder / f"damaged-{step}")
            copy.rename(folder / step)
        link(folder, name, step)
    for replaced in folder.glob(".step-*.replaced"):
        place = folder / replaced.name.removeprefix(".").removesuffix(".replaced")
        if not place.exists():
            replaced.rename(place)


def link(folder: Path, name: str, target: str) -> None:
    """Switch a link in one step, and see it onto the disk."""
    if (folder / name).is_symlink() and (folder / name).readlink() == Path(target):
        return
    temporary = folder / f".{name}.tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(folder / name)
    sync(folder)
