"""The layout of a run's checkpoints on disk. Imports no torch.

    checkpoints/step-N/      model.safetensors      the weights, by parameter name
                             optimizer.safetensors  the state of the optimizers
                             config.json  vocabulary.json
                             training.json          step, val loss, best step, counters
                             manifest.json          the format, and the SHA-256 of each file
    checkpoints/index.json   which checkpoint is `last` and which is `best`

write.py writes a checkpoint next to its place, syncs it and renames it; then it replaces the index.
A reader sees the old state or the new one.

read.py does not trust what it reads: the disk may fail, and the files may come from a stranger, who
can compute hashes, too. Every file must be a plain one with the hash in its manifest, and no larger
than the model of its config implies. Nothing in a checkpoint can execute code.
"""

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from gpt.config.schema import Config
from gpt.errors import Unreadable
from gpt.text.vocabulary import Vocabulary

FORMAT = 2  # version of the layout
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
CONFIG, VOCABULARY, TRAINING = "config.json", "vocabulary.json", "training.json"
FILES = (MODEL, OPTIMIZER, CONFIG, VOCABULARY, TRAINING)
MANIFEST = "manifest.json"
INDEX = "index.json"

Tensors = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class CheckpointData:
    """The weights of a model, and all that is needed to use them."""

    step: int
    config: Config
    vocabulary: Vocabulary
    weights: Tensors  # by parameter name; empty if only a summary was read
    val_loss: float | None = None  # val loss of these weights, if they were evaluated
    best_step: int | None = None  # step with the lowest val loss, if any was evaluated
    finished: bool = False  # whether training had a reason to stop here
    weights_sha256: str = ""  # hash of the file of the weights
    bits_per_byte: float | None = None  # `val_loss` per byte of UTF-8; None in older versions


@dataclass(frozen=True)
class TrainingState:
    """State of training other than the weights: tensors by name, and numbers as JSON."""

    tensors: Tensors
    numbers: dict[str, Any]


class _Json(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Manifest(_Json):
    """Content of manifest.json. A later format may have more keys."""

    model_config = ConfigDict(extra="ignore")
    format: int
    sha256: dict[str, str]


class Counters(_Json):
    """Content of training.json."""

    step: NonNegativeInt
    val_loss: float | None
    best_step: NonNegativeInt | None
    finished: bool = False
    numbers: dict[str, Any]


class Index(_Json):
    """Content of index.json: steps of the newest checkpoint and of the best one."""

    last: NonNegativeInt
    best: NonNegativeInt | None


def step_folder(checkpoints: Path, step: int) -> Path:
    """Return the path of the checkpoint of `step`."""
    return checkpoints / f"step-{step}"


def steps_in(checkpoints: Path, name: str = r"step-(\d+)") -> list[int]:
    """Return the steps of all checkpoints, intact or not, in increasing order."""
    try:
        found = [re.fullmatch(name, entry) for entry in os.listdir(checkpoints)]  # noqa: PTH208
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            return []
        raise unreadable(checkpoints, error) from error
    return sorted(int(match[1]) for match in found if match)


def is_checkpoint(folder: Path) -> bool:
    """Return whether `folder` is a checkpoint, perhaps copied out of its run."""
    return os.path.isfile(folder / MANIFEST)  # noqa: PTH113 (no errors)


def has_checkpoint(run: Path) -> bool:
    """Return whether the run has a checkpoint to resume from, intact or not."""
    # after a kill between two renames, the only one may have its other name until a resume
    return bool(steps_in(run / "checkpoints", r"\.?step-(\d+)(?:\.replaced)?"))


def unreadable(path: Path, error: OSError) -> Unreadable:
    """Return the error for a file that cannot be read now, which need not be damaged."""
    return Unreadable(
        f"{error.filename or path}: cannot be read ({error.strerror or error}); nothing was "
        f"changed. Look at its permissions and its disk, then try again"
    )
