"""What a checkpoint holds, read without torch: enough to sample from it on a CPU.

A checkpoint comes from a disk that may fail, or from a stranger. It is read only if each of its
files is a plain one with the hash that was written beside it, and if what is to be read is no
larger than the model of its config: a stranger can compute hashes too.
"""

import hashlib
import logging
import re
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from gpt.config import Config, load_config
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


def read_stored(run: Path, which: str) -> Stored:
    """The checkpoint `best` or `last` of a run.

    Raises:
        CheckpointError: it is missing, damaged or not one of ours.
    """
    folder = run / "checkpoints" / which
    if not folder.exists():
        raise CheckpointError(f"{folder}: no such checkpoint")
    try:
        check_whole(folder, [name for name in FILES if name != "training_state.pt"])
        config = load_config(folder / "config.yaml")
        vocabulary = Vocabulary.from_json((folder / "vocabulary.json").read_text("utf-8"))
        with safe_open(folder / "model.safetensors", framework="numpy") as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            if max(config.model.n_layer, config.model.ngram) > len(found):
                raise ValueError("its tensors are fewer than its config's layers")
            expected = parameter_shapes(config.model, len(vocabulary))
            if set(found) != set(expected):
                raise ValueError("its tensors are not those of a model with this config")
            for name, part in found.items():
                got = part.get_dtype(), tuple(part.get_shape())
                if got != ("F32", expected[name]):
                    raise ValueError(f"{name}: expected {expected[name]} of F32, got {got}")
            weights = {name: file.get_tensor(name) for name in found}
        for name, array in weights.items():
            if not np.isfinite(array).all():
                raise ValueError(f"{name}: expected finite numbers")
        step = step_of(folder)
    except _READ_ERRORS as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(damaged(folder, f"{reason:.300}")) from error
    return Stored(step, config, vocabulary, weights)


def hashes(folder: Path, names: Sequence[str] = FILES) -> list[str]:
    """The lines of SHA256SUMS for these files of a checkpoint."""
    lines = []
    for name in names:
        with (folder / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}")
    return lines


def check_whole(folder: Path, names: Sequence[str] = FILES) -> None:
    """Raises CheckpointError if one of these files is no plain file, or not as it was written.

    Raises OSError if one is missing or cannot be read.
    """
    link = folder.readlink() if folder.is_symlink() else Path("step-0")
    if not re.fullmatch(r"step-\d+", str(link)):
        raise CheckpointError(f"expected a link to step-N beside it, got one to {link}")
    for name in (*names, HASHES):
        status = (folder / name).lstat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{name}: expected a file, got a link, folder or device")
        if name.endswith((".yaml", ".json", HASHES)) and status.st_size > LONGEST_TEXT:
            raise CheckpointError(f"{name}: expected at most 16 MiB, got {status.st_size:,} bytes")
    written = (folder / HASHES).read_text("utf-8", "replace").splitlines()
    for name, line in zip(names, hashes(folder, names), strict=True):
        if line not in written:
            raise CheckpointError(f"{name} is not what was written: its SHA-256 differs")


def step_of(folder: Path) -> int:
    """The step after which a checkpoint was taken."""
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        return int((file.metadata() or {})["step"])


def damaged(folder: Path, reason: str) -> str:
    """What to say of a checkpoint that cannot be read."""
    return (
        f"{folder}: damaged or not a checkpoint of this program ({reason}); "
        f"the run's other checkpoint, best or last, may be whole"
    )


def go_back_to_whole(run: Path) -> None:
    """Make the newest checkpoint that is whole the `last`; set aside those after it, and say so.

    Copying without links (scp -r, zip) turns each link into a folder of its own; it becomes a
    link again.

    Raises CheckpointError, which tells what is wrong with the newest, if none is whole.
    """
    folder, wrong, broken = run / "checkpoints", "", []
    for name in ("last", "best"):
        copy = folder / name
        if copy.is_dir() and not copy.is_symlink():
            try:
                place = folder / f"step-{step_of(copy)}"
            except _READ_ERRORS:
                continue
            if place.exists():
                shutil.rmtree(copy)
            else:
                copy.rename(place)
            link(folder, name, place.name)
    names = [entry.name for entry in folder.iterdir() if re.fullmatch(r"step-\d+", entry.name)]
    for name in sorted(names, key=lambda name: int(name.removeprefix("step-")), reverse=True):
        try:
            check_whole(folder / name)
        except (CheckpointError, OSError) as error:
            wrong = wrong or damaged(folder / name, str(error))
            log.warning(
                "%s is damaged (%s): kept as damaged-%s; going back to the one before it",
                *(folder / name, error, name),
            )
            broken.append(name)
        else:
            for other in broken:
                shutil.rmtree(folder / f"damaged-{other}", ignore_errors=True)
                (folder / other).rename(folder / f"damaged-{other}")
            link(folder, "last", name)
            return
    raise CheckpointError(wrong or f"{folder}: no checkpoint")


def link(folder: Path, name: str, target: str) -> None:
    """Switch a link in one step, and see it onto the disk."""
    temporary = folder / f".{name}.tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(folder / name)
    sync(folder)
