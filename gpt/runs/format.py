"""The layout of a run's checkpoints on disk. Imports no torch.

    checkpoints/step-N/      model.safetensors      the weights, by parameter name
                             optimizer.safetensors  the state of the optimizers
                             config.json  vocabulary.json
                             training.json          step, val loss, best step, counters
                             manifest.json          the format, and the SHA-256 of each file
    checkpoints/index.json   which checkpoint is `last` and which is `best`

write.py writes a checkpoint under a temporary name, syncs it and renames it. Then it replaces the
index. A reader sees the old state or the new one; it retries while a checkpoint is replaced.

read.py verifies the files of a checkpoint. Each must be a regular file, not a link, and must have
the SHA-256 in the manifest. This finds disk errors, but an attacker can write a matching manifest.
Therefore, files that are too large for the config's model are refused, and no file contains code.
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

FORMAT = 6  # version of the layout
STEP_NAME = "step-(0|[1-9][0-9]*)"  # regular expression of the name of a checkpoint's folder
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
CONFIG, VOCABULARY, TRAINING = "config.json", "vocabulary.json", "training.json"
FILES = (MODEL, OPTIMIZER, CONFIG, VOCABULARY, TRAINING)
MANIFEST = "manifest.json"
INDEX = "index.json"

Tensors = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class CheckpointData:
    """A checkpoint without its training state: weights, config, vocabulary and scores."""

    step: int
    config: Config
    vocabulary: Vocabulary
    weights: Tensors  # by parameter name; empty if only a summary was read
    val_loss: float | None = None  # val loss of these weights in nats per id, if evaluated
    best_step: int | None = None  # step with the lowest val loss, if any was evaluated
    finished: bool = False  # whether training ended at this step, without an interruption
    weights_sha256: str = ""  # SHA-256 of model.safetensors
    bits_per_byte: float | None = None  # `val_loss` in bits per byte of UTF-8, if stored
    text_sha256: str | None = None  # hash of the run's text; see Corpus


@dataclass(frozen=True)
class TrainingState:
    """State of training other than the weights."""

    tensors: Tensors  # state of the optimizers, by name; saved in optimizer.safetensors
    numbers: dict[str, Any]  # counters and other JSON values, by name; saved in training.json


class _Json(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Manifest(_Json):
    """Content of manifest.json. Unknown keys are ignored, as a later version may have more keys."""

    model_config = ConfigDict(extra="ignore")
    format: int
    sha256: dict[str, str]


class Counters(_Json):
    """Content of training.json: the step, the scores, and the `numbers` of `TrainingState`."""

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


def steps_in(checkpoints: Path, name: str = STEP_NAME) -> list[int]:
    """Return the steps, ascending, of the checkpoints whose folder names match the regex `name`.

    The first group of the regex is the step.
    """
    try:
        found = [re.fullmatch(name, entry) for entry in os.listdir(checkpoints)]  # noqa: PTH208
    except ValueError:  # no folder can have this name: it contains a NUL or a lone surrogate
        return []
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            return []
        raise unreadable(checkpoints, error) from error
    return sorted(int(match[1]) for match in found if match)


def is_checkpoint(folder: Path) -> bool:
    """Return whether `folder` is the folder of a checkpoint, in a run or copied elsewhere."""
    return os.path.isfile(folder / MANIFEST)  # noqa: PTH113 (Path.is_file can raise)


def has_checkpoint(run: Path) -> bool:
    """Return whether the run has a checkpoint, intact or damaged."""
    # a kill between two renames may leave the only checkpoint under the name .step-N.replaced
    return bool(steps_in(run / "checkpoints", rf"\.?{STEP_NAME}(?:\.replaced)?"))


def unreadable(path: Path, error: OSError) -> Unreadable:
    """Return the error for a file that may be intact, but could not be read because of `error`."""
    return Unreadable(
        f"{error.filename or path}: cannot be read ({error.strerror or error}); nothing was "
        f"changed. Check its permissions and its disk, then try again"
    )
