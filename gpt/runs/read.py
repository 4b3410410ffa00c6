"""Read a checkpoint, and verify the size and SHA-256 of each file. Imports no torch."""

import hashlib
import json
import math
import re
import reprlib
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open

from gpt.config.mistakes import explain
from gpt.config.schema import Config
from gpt.errors import CheckpointError, Unreadable, UsageError, arguments, resume_command, shown
from gpt.memory import check_memory
from gpt.model.shapes import parameter_shapes
from gpt.runs import format as layout
from gpt.runs.format import CheckpointData, Tensors, TrainingState
from gpt.text.vocabulary import Vocabulary

MAX_JSON_BYTES = 2**24  # largest size of a JSON file; a vocabulary of all of Unicode is smaller
READ_ATTEMPTS = 10  # number of attempts to read a checkpoint that another process may be replacing

# errors that mean that a checkpoint is damaged; after any other OSError, it may be intact
WRONG_FILES = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
DAMAGE = (*WRONG_FILES, CheckpointError, SafetensorError, ValueError, KeyError, RecursionError)

JsonModel = TypeVar("JsonModel", bound=BaseModel)


def read_checkpoint(run: Path, which: str | int = "best") -> CheckpointData:
    """Read a checkpoint with its weights.

    Args:
        run: the folder of a run, or of a checkpoint that was copied out of it.
        which: `best`, `last` or a step. If the run was not evaluated, `best` is the last one.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        OutOfMemory: the checkpoint is larger than the free memory.
        Unreadable: a file cannot be read now, such as for lack of permission, but may be intact; or
            another version of gpt wrote the checkpoint.
        UsageError: `which` is neither `best` nor `last` nor a step.
    """
    return _read_current(run, which, layout.MODEL)


def read_summary(run: Path, which: str | int = "best") -> CheckpointData:
    """Read a checkpoint without its weights. `which` is `best`, `last` or a step."""
    return _read_current(run, which)


def read_to_resume(run: Path, step: int) -> tuple[CheckpointData, TrainingState]:
    """Read the weights and the training state (optimizer, progress) of the checkpoint of `step`."""
    return _read(*_find(run, step), layout.MODEL, layout.OPTIMIZER)


def read_index(folder: Path) -> layout.Index:
    """Read index.json, which gives the steps of the last and the best checkpoint in `folder`."""
    path = folder / layout.INDEX
    try:
        return _parse(layout.Index, path)
    except DAMAGE as error:
        steps = layout.steps_in(folder)
        raise CheckpointError(
            f"{path}: cannot find the last and the best checkpoint ({error!s:.200}); choose a step "
            f"from {steps} by {arguments('checkpoint')}, or let {resume_command(folder.parent)} "
            f"repair the file"
        ) from error
    except OSError as error:
        raise layout.unreadable(path, error) from error


def _read_current(run: Path, which: str | int, *tensor_files: str) -> CheckpointData:
    """Read a checkpoint; after an error, try again, as another process may be replacing it."""
    for _ in range(READ_ATTEMPTS - 1):
        with suppress(CheckpointError):
            return _read_scored(run, which, *tensor_files)
    return _read_scored(run, which, *tensor_files)


def _read_scored(run: Path, which: str | int, *tensor_files: str) -> CheckpointData:
    """Read a checkpoint. If the best lacks its loss on all of val, take that of the last.

    The last checkpoint of a finished run contains the best checkpoint's loss on all of val.
    """
    data = _read(*_find(run, which), *tensor_files)[0]
    if data.val_loss is None and not layout.is_checkpoint(run):
        with suppress(CheckpointError, Unreadable):
            last, state = _read(*_find(run, "last"))
            progress = state.numbers.get("progress")
            loss = progress.get("best_val_loss") if isinstance(progress, dict) else None
            if data.step == last.best_step and isinstance(loss, float) and last.val_loss:
                bits = last.bits_per_byte and last.bits_per_byte * loss / last.val_loss
                return replace(data, val_loss=loss, bits_per_byte=bits)
    return data


def _find(run: Path, which: str | int) -> tuple[Path, int | None]:
    """Return the folder of a checkpoint, and the step that it must have (None for any)."""
    number = re.fullmatch(r"(?:step-)?(\d{1,18})", str(which))
    if number is None and which not in ("best", "last"):
        raise UsageError(f"{arguments('checkpoint')} {which}: expected best, last or a step")
    step = int(number[1]) if number else None
    if layout.is_checkpoint(run):
        return run, step
    folder = run / "checkpoints"
    if step is None:
        index = read_index(folder)
        step = index.last if which == "last" or index.best is None else index.best
    found = layout.step_folder(folder, step)
    if not found.exists():
        kept = ", ".join(map(str, layout.steps_in(folder)))
        raise CheckpointError(f"{found}: no such checkpoint; choose one of the steps {kept}")
    return found, step


def _read(
    folder: Path, step: int | None, *tensor_files: str
) -> tuple[CheckpointData, TrainingState]:
    """Read and verify the checkpoint in `folder`, which must be of `step` unless `step` is None."""
    try:
        sha256 = _read_manifest(folder).sha256
        config = _read_config(folder, sha256)
        text = _small_file(folder / layout.VOCABULARY, sha256).decode("utf-8")
        vocabulary = Vocabulary.from_json(text)
        counters = _parse(layout.Counters, folder / layout.TRAINING, sha256)
        if step not in (None, counters.step):
            raise ValueError(f"expected step {step}, got {counters.step}")
        shapes = parameter_shapes(config.model, len(vocabulary))
        size = 4 * sum(math.prod(shape) for shape in shapes.values())
        weights, state = Tensors(), Tensors()
        if layout.MODEL in tensor_files:
            weights = _tensors(folder / layout.MODEL, sha256, size, shapes)
        if layout.OPTIMIZER in tensor_files:
            state = _tensors(folder / layout.OPTIMIZER, sha256, 4 * size)
    except DAMAGE as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{folder}: damaged or not a checkpoint of this program ({reason:.300}); another "
            f"checkpoint of the run may be intact"
        ) from error
    except OSError as error:
        raise layout.unreadable(folder, error) from error
    bits, text_sha256 = (counters.numbers.get(key) for key in ("bits_per_byte", "text_sha256"))
    data = CheckpointData(
        step=counters.step,
        config=config,
        vocabulary=vocabulary,
        weights=weights,
        val_loss=counters.val_loss,
        best_step=counters.best_step,
        finished=counters.finished,
        weights_sha256=sha256.get(layout.MODEL, ""),
        bits_per_byte=bits if isinstance(bits, float) else None,
        text_sha256=text_sha256 if isinstance(text_sha256, str) else None,
    )
    return data, TrainingState(state, counters.numbers)


def _read_manifest(folder: Path) -> layout.Manifest:
    """Read manifest.json; raise Unreadable if it has another format than FORMAT."""
    tree = _json(folder / layout.MANIFEST, None)
    found = tree.get("format") if isinstance(tree, dict) else None
    if isinstance(found, int) and found != layout.FORMAT:
        raise Unreadable(
            f"{folder}: expected a checkpoint of format {layout.FORMAT}, got format {found}; use "
            f"the version of gpt that wrote it"
        )
    return _validated(layout.Manifest, tree, layout.MANIFEST)


def _read_config(folder: Path, sha256: dict[str, str]) -> Config:
    """Read config.json. If its hash is right but not its settings, another version wrote it."""
    tree = _json(folder / layout.CONFIG, sha256)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        key, value = ".".join(map(str, mistake["loc"])), reprlib.repr(mistake["input"])
        raise Unreadable(
            f"{folder}: this version of gpt has no setting {shown(key)} with the value "
            f"{shown(value)}; use the version that wrote the checkpoint"
        ) from None


def _parse(model: type[JsonModel], path: Path, sha256: dict[str, str] | None = None) -> JsonModel:
    """Parse a JSON file as `model`; check its hash if `sha256` (hashes by file name) is given."""
    return _validated(model, _json(path, sha256), path.name)


def _json(path: Path, sha256: dict[str, str] | None) -> Any:
    content = _small_file(path, sha256)
    try:
        tree = json.loads(content)
        json.dumps(tree, allow_nan=False)  # refuse NaN and infinity
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: {error}") from None
    return tree


def _validated(model: type[JsonModel], tree: Any, name: str) -> JsonModel:
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise ValueError(f"{name}: {next(explain(error))[1]}") from None


def _tensors(
    path: Path,
    sha256: dict[str, str],
    max_bytes: int,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> Tensors:
    """Return the float32 tensors of a file by name; check their shapes if `shapes` is given.

    Raise ValueError if the file is larger than about `max_bytes`, its hash is wrong, or its tensors
    are not finite float32 of these shapes; OutOfMemory if it is larger than the free memory.
    """
    _check_plain(path, max_bytes + MAX_JSON_BYTES)
    with path.open("rb") as file:
        _check_hash(path.name, hashlib.file_digest(file, "sha256").hexdigest(), sha256)
    needed = {"tensors": path.stat().st_size}
    check_memory(f"reading {path}", needed, "close other programs, or use a larger machine")
    with safe_open(path, framework="numpy") as file:
        try:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (`file` is no dict)
        except (TypeError, AttributeError) as error:  # a type that numpy lacks
            raise ValueError(f"{path.name}: expected dtypes that numpy has ({error})") from None
    is_usable = all(t.dtype == np.float32 and np.isfinite(t).all() for t in tensors.values())
    found = {key: tensor.shape for key, tensor in tensors.items()}
    if not is_usable or (shapes is not None and found != shapes):
        raise ValueError(f"{path.name}: expected finite float32 tensors that fit this config")
    return tensors


def _check_hash(name: str, found: str, sha256: dict[str, str]) -> None:
    if sha256.get(name) != found:
        raise ValueError(f"{name}: its SHA-256 differs from that in the manifest")


def _check_plain(path: Path, max_bytes: int) -> None:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path.name}: expected a file, got a link, folder or device")
    if status.st_size > max_bytes:
        raise ValueError(
            f"{path.name}: expected at most {max_bytes:,} bytes, got {status.st_size:,}"
        )


def _small_file(path: Path, sha256: dict[str, str] | None) -> bytes:
    _check_plain(path, MAX_JSON_BYTES)
    content = path.read_bytes()
    if sha256 is not None:
        _check_hash(path.name, hashlib.sha256(content).hexdigest(), sha256)
    return content
