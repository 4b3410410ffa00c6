"""A checkpoint on disk: written in one step, and verified as it is read. Knows no torch.

    checkpoints/step-N/      model.safetensors      the weights, by parameter name
                             optimizer.safetensors  what the optimizers remember of each
                             config.json  vocabulary.json
                             training.json          the step, its val loss, the best step, counters
                             manifest.json          the format, and each file's SHA-256
    checkpoints/index.json   which of them is `last`, and which `best`

A checkpoint is written beside its place, synced and renamed into it; then the index is replaced. A
reader sees the old state or the new one, never half.

A checkpoint comes from a disk that may fail, or from a stranger. It is read only if each of its
files is a plain one with the hash in its manifest, and no larger than the model of its config
implies: a stranger can compute hashes too. Nothing in it can execute code.
"""

import errno
import hashlib
import json
import logging
import math
import re
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from safetensors import SafetensorError, safe_open

from gpt.config.removed import without_removed
from gpt.config.schema import Config
from gpt.errors import CheckpointError, ConfigError, Unreadable, UsageError
from gpt.files import sync_folder, write_atomically, write_synced
from gpt.memory import check_memory
from gpt.model.shapes import parameter_shapes
from gpt.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

FORMAT = 2  # 1 was a pickled training_state.pt, config.yaml and SHA256SUMS
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
CONFIG, VOCABULARY, TRAINING = "config.json", "vocabulary.json", "training.json"
FILES = (MODEL, OPTIMIZER, CONFIG, VOCABULARY, TRAINING)
MANIFEST = "manifest.json"
INDEX = "index.json"
MAX_JSON_BYTES = 2**24  # a vocabulary of all of Unicode fits
READ_ATTEMPTS = 20  # while another process writes the run
READ_ADVICE = "close other programs, or use a machine with more"

Tensors = dict[str, NDArray[np.float32]]
M = TypeVar("M", bound=BaseModel)

# what a damaged checkpoint raises; any other OSError says nothing of what is in the files
_DAMAGES = (
    *(FileNotFoundError, NotADirectoryError, IsADirectoryError),
    *(CheckpointError, SafetensorError, ValueError, KeyError, RecursionError),
)


@dataclass(frozen=True)
class CheckpointData:
    """A model's weights by parameter name, with all that is needed to use them.

    `val_loss` is that of these weights, if they were evaluated; `best_step` the step with the
    lowest val loss so far, if any was evaluated since training began. `finished` is the run, if
    training had a reason to stop here. `weights_sha256` is that of their file. `bits_per_byte` is
    the val loss in bits per byte of UTF-8, unknown for runs of older versions.
    """

    step: int
    config: Config
    vocabulary: Vocabulary
    weights: Tensors
    val_loss: float | None = None
    best_step: int | None = None
    finished: bool = False
    weights_sha256: str = ""
    bits_per_byte: float | None = None


@dataclass(frozen=True)
class TrainingState:
    """What training resumes with beside the weights: tensors by name, and numbers as JSON."""

    tensors: Tensors
    numbers: dict[str, Any]


class _Json(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Manifest(_Json):
    model_config = ConfigDict(extra="ignore")  # of a later format, say
    format: int
    sha256: dict[str, str]


class _Training(_Json):
    step: NonNegativeInt
    val_loss: float | None
    best_step: NonNegativeInt | None
    finished: bool = False
    numbers: dict[str, Any]


class Index(_Json):
    """The steps of the newest checkpoint, and of the one with the lowest val loss."""

    last: NonNegativeInt
    best: NonNegativeInt | None


# --- writing ---


def write_checkpoint(
    run: Path, data: CheckpointData, state: TrainingState, *, keep: int = 2
) -> None:
    """Write `checkpoints/step-N`, enter it into the index, and prune.

    Kept are the newest `keep`, the best, and the best before it, for the case that the new one is
    damaged.

    Raises:
        OSError: it cannot be written; the checkpoints are as they were.
    """
    folder = run / "checkpoints"
    if not folder.exists():
        folder.mkdir()
        sync_folder(run)  # otherwise a power cut could remove the whole folder
    try:
        best_before = read_index(folder).best
    except (CheckpointError, Unreadable):
        best_before = None
    _write(step_folder(folder, data.step), _contents(data, state))
    write_index(folder, data)
    newest = steps_in(folder)[-keep:]
    _prune(folder, {*newest, data.best_step, best_before})


def write_index(folder: Path, data: CheckpointData) -> None:
    """Make this checkpoint `last`, and its best step, if that is still there, `best`."""
    best = data.best_step
    if best is not None and not step_folder(folder, best).exists():
        best = None
    content = Index(last=data.step, best=best).model_dump_json().encode()
    path = folder / INDEX
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, [content])


def _contents(data: CheckpointData, state: TrainingState) -> dict[str, bytes]:
    training = _Training(
        step=data.step,
        val_loss=data.val_loss,
        best_step=data.best_step,
        finished=data.finished,
        numbers=state.numbers,
    )
    contents = {
        MODEL: safetensors.numpy.save(data.weights),
        OPTIMIZER: safetensors.numpy.save(state.tensors),
        CONFIG: data.config.model_dump_json(indent=2).encode(),
        VOCABULARY: data.vocabulary.to_json().encode(),
        TRAINING: json.dumps(training.model_dump(), indent=2, allow_nan=False).encode(),
    }
    return contents | {MANIFEST: manifest_of(contents)}


def manifest_of(contents: dict[str, bytes]) -> bytes:
    """The manifest of a checkpoint whose files have these contents."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    return _Manifest(format=FORMAT, sha256=hashes).model_dump_json(indent=2).encode()


def _write(place: Path, contents: dict[str, bytes]) -> None:
    temporary = place.with_name(f".{place.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a run that was killed right here
    try:
        temporary.mkdir()
        for name, content in contents.items():
            write_synced(temporary / name, [content])
        sync_folder(temporary)
        replaced = place.with_name(f".{place.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        if place.exists():  # the same step, evaluated since; recovery undoes a kill right here
            place.rename(replaced)
        temporary.rename(place)
        sync_folder(place.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # a full disk gets no fuller


def _prune(folder: Path, kept: set[int | None]) -> None:
    """Remove our own folders but for these steps, and what a kill left half written."""
    for entry in folder.iterdir():
        ours = re.fullmatch(r"step-(\d+)|\.step-\d+\.(tmp|replaced)", entry.name)
        if ours and not (ours[1] and int(ours[1]) in kept):
            shutil.rmtree(entry, ignore_errors=True)


# --- finding ---


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is, in `checkpoints`."""
    return folder / f"step-{step}"


def steps_in(folder: Path) -> list[int]:
    """The steps of which there are checkpoints, intact or not, in their order.

    Raises Unreadable if the folder cannot be listed.
    """
    try:
        found = [re.fullmatch(r"step-(\d+)", entry.name) for entry in folder.iterdir()]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            return []
        raise _unreadable(folder, error) from error
    return sorted(int(name[1]) for name in found if name)


def is_checkpoint(folder: Path) -> bool:
    """Whether this is the folder of one checkpoint, perhaps copied out of its run."""
    return (folder / MANIFEST).exists()


def read_index(folder: Path) -> Index:
    """Which checkpoints are `last` and `best`.

    Raises:
        CheckpointError: the index is missing or damaged.
        Unreadable: it cannot be read.
    """
    try:
        return _parse(Index, INDEX, _read_plain(folder, INDEX))
    except _DAMAGES as error:
        raise CheckpointError(
            f"{folder / INDEX}: cannot tell the last and the best checkpoint ({error!s:.200}); "
            f"name one by its step, of {steps_in(folder)}, or let gpt train --resume repair it"
        ) from error
    except OSError as error:
        raise _unreadable(folder / INDEX, error) from error


def _find(run: Path, which: str | int) -> tuple[Path, int | None]:
    """The folder of a checkpoint and its step, where that is known before it is read."""
    number = re.fullmatch(r"(?:step-)?(\d{1,18})", str(which))
    if number is None and which not in ("best", "last"):
        raise UsageError(f"--checkpoint {which}: expected best, last or a step")
    step = int(number[1]) if number else None
    if is_checkpoint(run):
        return run, step
    folder = run / "checkpoints"
    if folder.is_symlink():
        raise CheckpointError(f"{folder}: expected a folder, got a link")
    if step is None:
        steps = steps_in(folder)
        if not (folder / INDEX).exists() and steps:
            _check_format(step_folder(folder, steps[-1]))
        index = read_index(folder)
        step = index.last if which == "last" or index.best is None else index.best
    found = step_folder(folder, step)
    if not found.exists():
        kept = ", ".join(map(str, steps_in(folder)))
        raise CheckpointError(f"{found}: no such checkpoint; kept steps: {kept}")
    if found.is_symlink():
        raise CheckpointError(f"{found}: expected a folder, got a link")
    return found, step


# --- reading ---


def read_checkpoint(run: Path, which: str | int = "best") -> CheckpointData:
    """The checkpoint `best`, `last` or of a step (12 or `step-12`) of a run.

    `best` is `last` where nothing was evaluated since training began. `run` may also be the folder
    of one checkpoint, copied out of its run.

    Raises:
        CheckpointError: it is missing, damaged or not one of ours.
        OutOfMemory: it is larger than the memory that is free.
        Unreadable: the disk, or the permission to it, fails; it may well be intact.
        UsageError: `which` is none of these.
    """
    return _read_current(run, which, MODEL)


def read_summary(run: Path, which: str | int = "best") -> CheckpointData:
    """A checkpoint without its weights: little to read. For errors see `read_checkpoint`."""
    return _read_current(run, which)


def read_to_resume(run: Path, step: int) -> tuple[CheckpointData, TrainingState]:
    """All of a checkpoint. For errors see `read_checkpoint`."""
    return _read(*_find(run, step), MODEL, OPTIMIZER)


def _read_current(run: Path, which: str | int, *tensor_files: str) -> CheckpointData:
    """A checkpoint of a run that may be training, and prune or replace it as it is read."""
    for attempt in range(READ_ATTEMPTS):
        before = _last_change(run)
        try:
            return _read(*_find(run, which), *tensor_files)[0]
        except CheckpointError:
            # twice at least: a clock has ticks, and a run can save twice in one
            if attempt and _last_change(run) == before:
                raise
    return _read(*_find(run, which), *tensor_files)[0]


def _last_change(run: Path) -> int:
    """When an entry of the run's `checkpoints` was last renamed, made or removed; 0 without any."""
    with suppress(OSError):
        return (run / "checkpoints").stat().st_mtime_ns
    return 0


def _read(
    folder: Path, step: int | None, *tensor_files: str
) -> tuple[CheckpointData, TrainingState]:
    _check_format(folder)
    try:
        hashes = _hashes(folder)
        tree, notices = without_removed(_json_of(CONFIG, _verified(folder, CONFIG, hashes)))
        config = _validated(Config, CONFIG, tree)
        vocabulary = Vocabulary.from_json(_verified(folder, VOCABULARY, hashes).decode("utf-8"))
        training = _parse(_Training, TRAINING, _verified(folder, TRAINING, hashes))
        if step not in (None, training.step):
            raise ValueError(f"expected step {step}, got {training.step}")
        shapes = parameter_shapes(config.model, len(vocabulary))
        size = 4 * sum(math.prod(shape) for shape in shapes.values())
        weights, tensors = Tensors(), Tensors()
        if MODEL in tensor_files:
            weights = _read_tensors(folder, MODEL, hashes, size, shapes)
            for notice in notices:
                log.warning("%s: %s", folder, notice)
        if OPTIMIZER in tensor_files:
            tensors = _read_tensors(folder, OPTIMIZER, hashes, 4 * size)
    except ConfigError as error:  # a removed setting
        raise CheckpointError(f"{folder}: {error}") from None
    except _DAMAGES as error:
        raise _damaged(folder, error) from error
    except OSError as error:
        raise _unreadable(folder, error) from error
    data = CheckpointData(
        *(training.step, config, vocabulary, weights),
        *(training.val_loss, training.best_step, training.finished),
        hashes.get(MODEL, ""),
        bits if isinstance(bits := training.numbers.get("bits_per_byte"), float) else None,
    )
    return data, TrainingState(tensors, training.numbers)


def _damaged(folder: Path, error: Exception) -> CheckpointError:
    reason = " ".join(str(error).split())
    return CheckpointError(
        f"{folder}: damaged or not a checkpoint of this program ({reason:.300}); another of the "
        f"run may be intact: --checkpoint last, best or a step"
    )


def _unreadable(path: Path, error: OSError) -> Unreadable:
    return Unreadable(
        f"{error.filename or path}: cannot be read ({error.strerror or error}); nothing was "
        f"changed. Look at its permissions and its disk, then try again"
    )


def _check_format(folder: Path) -> None:
    if not is_checkpoint(folder) and (folder / "training_state.pt").exists():
        raise CheckpointError(
            f"{folder}: expected a checkpoint of format {FORMAT}, got format 1, of an older "
            f"version of this program; use that version, or train again"
        )


def _hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file."""
    manifest = _parse(_Manifest, MANIFEST, _read_plain(folder, MANIFEST))
    if manifest.format != FORMAT:
        raise CheckpointError(f"expected format {FORMAT}, got {manifest.format}")
    return manifest.sha256


def _check_plain(path: Path, max_bytes: int) -> None:
    """Raises CheckpointError if it is no file, or too large."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path.name}: expected a file, got a link, folder or device")
    if status.st_size > max_bytes:
        raise CheckpointError(
            f"{path.name}: expected at most {max_bytes:,} bytes, got {status.st_size:,}"
        )


def _read_plain(folder: Path, name: str) -> bytes:
    _check_plain(folder / name, MAX_JSON_BYTES)
    return (folder / name).read_bytes()


def _check_hash(name: str, found: str, hashes: dict[str, str]) -> None:
    if hashes.get(name) != found:
        raise CheckpointError(f"{name} is not what was written: its SHA-256 differs")


def _verified(folder: Path, name: str, hashes: dict[str, str]) -> bytes:
    content = _read_plain(folder, name)
    _check_hash(name, hashlib.sha256(content).hexdigest(), hashes)
    return content


def _parse(model: type[M], name: str, content: bytes) -> M:
    return _validated(model, name, _json_of(name, content))


def _json_of(name: str, content: bytes) -> Any:
    """Parse JSON without NaN or infinity. Raises ValueError, which names the file."""
    try:
        return json.loads(content, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: {error}") from None


def _validated(model: type[M], name: str, tree: Any) -> M:
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{name}: {key}: {first['msg']}") from None


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"expected finite numbers, got {number:.40}")
    return value


def _read_tensors(
    folder: Path,
    name: str,
    hashes: dict[str, str],
    size: int,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> Tensors:
    """The tensors of a file: float32, finite, at most `size` bytes, of these shapes if known."""
    path = folder / name
    _check_plain(path, size + MAX_JSON_BYTES)
    with path.open("rb") as file:
        _check_hash(name, hashlib.file_digest(file, "sha256").hexdigest(), hashes)
    with safe_open(path, framework="numpy") as file:
        found = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (no dict)
        if shapes is not None and found.keys() != shapes.keys():
            raise ValueError(f"{name}: its tensors are not those of a model with this config")
        for key, part in found.items():
            got = part.get_dtype(), tuple(part.get_shape())
            expected = "F32", got[1] if shapes is None else shapes[key]
            if got != expected:
                raise ValueError(f"{key}: expected {expected[0]} {expected[1]}, got {got}")
        check_memory(f"reading {path}", {"tensors": path.stat().st_size}, READ_ADVICE)
        tensors = {key: file.get_tensor(key) for key in found}
    for key, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise ValueError(f"{key}: expected finite numbers")
    return tensors
