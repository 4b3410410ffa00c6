"""Read a checkpoint and verify it. Imports no torch; format.py says what is verified and why."""

import hashlib
import math
import re
import stat
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from gpt.config.removed import without_removed
from gpt.config.schema import Config
from gpt.errors import CheckpointError, ConfigError, UsageError
from gpt.memory import check_memory
from gpt.model.shapes import parameter_shapes
from gpt.runs import format as layout
from gpt.runs.format import CheckpointData, Tensors, TrainingState
from gpt.text.vocabulary import Vocabulary

MAX_JSON_BYTES = 2**24  # a vocabulary of all of Unicode fits
READ_ATTEMPTS = 20  # while another process writes the run

# errors that mean damage; any other OSError says nothing about the content of the files
WRONG_FILES = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
DAMAGE = (*WRONG_FILES, CheckpointError, SafetensorError, ValueError, KeyError, RecursionError)


def read_checkpoint(run: Path, which: str | int = "best") -> CheckpointData:
    """Read a checkpoint with its weights.

    Args:
        run: the folder of a run, or of a checkpoint that was copied out of it.
        which: `best`, `last` or a step (12 or `step-12`); `best` without evaluations is `last`.

    Raises:
        CheckpointError: the checkpoint is missing, damaged or not one of ours.
        OutOfMemory: it is larger than the free memory.
        Unreadable: the disk or its permissions fail; the checkpoint may be intact.
        UsageError: `which` is none of these.
    """
    return _read_current(run, which, layout.MODEL)


def read_summary(run: Path, which: str | int = "best") -> CheckpointData:
    """Read a checkpoint without its weights, which is fast. For errors see `read_checkpoint`."""
    return _read_current(run, which)


def read_to_resume(run: Path, step: int) -> tuple[CheckpointData, TrainingState]:
    """Read all of the checkpoint of `step`. For errors see `read_checkpoint`."""
    return _read(*_find(run, step), layout.MODEL, layout.OPTIMIZER)


def read_index(folder: Path) -> layout.Index:
    """Read which checkpoints in `folder` are `last` and `best`.

    Raises:
        CheckpointError: the index is missing or damaged.
        Unreadable: it cannot be read.
    """
    path = folder / layout.INDEX
    try:
        return layout.parse_as(layout.Index, layout.INDEX, _read_plain(path))
    except DAMAGE as error:
        steps = layout.steps_in(folder)
        raise CheckpointError(
            f"{path}: cannot find the last and the best checkpoint ({error!s:.200}); name one by "
            f"its step, of {steps}, or let gpt train --resume repair it"
        ) from error
    except OSError as error:
        raise layout.unreadable(path, error) from error


def _read_current(run: Path, which: str | int, *tensor_files: str) -> CheckpointData:
    """Read a checkpoint of a run that may be removing or replacing checkpoints meanwhile."""
    attempt = 0
    while True:
        attempt += 1
        before = _last_change(run)
        try:
            return _read(*_find(run, which), *tensor_files)[0]
        except CheckpointError:
            # the first try proves nothing: a run can save twice in one tick of the clock
            unchanged = attempt > 1 and _last_change(run) == before
            if unchanged or attempt == READ_ATTEMPTS:
                raise


def _last_change(run: Path) -> int:
    """Return when an entry of `checkpoints` was last made, renamed or removed; 0 without any."""
    with suppress(OSError):
        return (run / "checkpoints").stat().st_mtime_ns
    return 0


def _find(run: Path, which: str | int) -> tuple[Path, int | None]:
    """Return the folder of a checkpoint, and its step if that is known before it is read."""
    number = re.fullmatch(r"(?:step-)?(\d{1,18})", str(which))
    if number is None and which not in ("best", "last"):
        raise UsageError(f"--checkpoint {which}: expected best, last or a step")
    step = int(number[1]) if number else None
    if layout.is_checkpoint(run):
        return run, step
    folder = run / "checkpoints"
    if folder.is_symlink():
        raise CheckpointError(f"{folder}: expected a folder, got a link")
    if step is None:
        steps = layout.steps_in(folder)
        if steps and not (folder / layout.INDEX).exists():
            _check_format(layout.step_folder(folder, steps[-1]))
        index = read_index(folder)
        step = index.last if which == "last" or index.best is None else index.best
    found = layout.step_folder(folder, step)
    if not found.exists():
        kept = ", ".join(map(str, layout.steps_in(folder)))
        raise CheckpointError(f"{found}: no such checkpoint; kept steps: {kept}")
    if found.is_symlink():
        raise CheckpointError(f"{found}: expected a folder, got a link")
    return found, step


def _read(
    folder: Path, step: int | None, *tensor_files: str
) -> tuple[CheckpointData, TrainingState]:
    """Read the checkpoint in `folder`, which is of `step`, with these files of tensors."""
    _check_format(folder)
    try:
        files = _Files(folder)
        content = files.verified(layout.CONFIG)
        config = layout.parse_as(Config, layout.CONFIG, content, without_removed)
        vocabulary = Vocabulary.from_json(files.verified(layout.VOCABULARY).decode("utf-8"))
        content = files.verified(layout.TRAINING)
        counters = layout.parse_as(layout.Counters, layout.TRAINING, content)
        if step not in (None, counters.step):
            raise ValueError(f"expected step {step}, got {counters.step}")
        shapes = parameter_shapes(config.model, len(vocabulary))
        size = 4 * sum(math.prod(shape) for shape in shapes.values())
        weights, state = Tensors(), Tensors()
        if layout.MODEL in tensor_files:
            weights = files.tensors(layout.MODEL, size, shapes)
        if layout.OPTIMIZER in tensor_files:
            state = files.tensors(layout.OPTIMIZER, 4 * size)
    except ConfigError as error:  # a removed setting
        raise CheckpointError(f"{folder}: {error}") from None
    except DAMAGE as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{folder}: damaged or not a checkpoint of this program ({reason:.300}); another of "
            f"the run may be intact: --checkpoint last, best or a step"
        ) from error
    except OSError as error:
        raise layout.unreadable(folder, error) from error
    bits = counters.numbers.get("bits_per_byte")
    data = CheckpointData(
        step=counters.step,
        config=config,
        vocabulary=vocabulary,
        weights=weights,
        val_loss=counters.val_loss,
        best_step=counters.best_step,
        finished=counters.finished,
        weights_sha256=files.sha256.get(layout.MODEL, ""),
        bits_per_byte=bits if isinstance(bits, float) else None,
    )
    return data, TrainingState(state, counters.numbers)


def _check_format(folder: Path) -> None:
    """Raise CheckpointError if the folder is a checkpoint of format 1."""
    if not layout.is_checkpoint(folder) and (folder / "training_state.pt").exists():
        raise CheckpointError(
            f"{folder}: expected a checkpoint of format {layout.FORMAT}, got format 1, of an older "
            f"version of this program; use that version, or train again"
        )


class _Files:
    """The files of a checkpoint, each verified as it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        content = _read_plain(folder / layout.MANIFEST)
        manifest = layout.parse_as(layout.Manifest, layout.MANIFEST, content)
        if manifest.format != layout.FORMAT:
            raise CheckpointError(f"expected format {layout.FORMAT}, got {manifest.format}")
        self.sha256 = manifest.sha256

    def verified(self, name: str) -> bytes:
        """Return the content of a small file."""
        content = _read_plain(self.folder / name)
        self._check_hash(name, hashlib.sha256(content).hexdigest())
        return content

    def tensors(
        self, name: str, max_bytes: int, shapes: dict[str, tuple[int, ...]] | None = None
    ) -> Tensors:
        """Return the tensors of a file, which must be float32 and finite.

        Args:
            name: name of the file.
            max_bytes: largest size of all tensors together.
            shapes: the expected shape of each tensor, if they are known.
        """
        path = self.folder / name
        _check_plain(path, max_bytes + MAX_JSON_BYTES)
        with path.open("rb") as file:
            self._check_hash(name, hashlib.file_digest(file, "sha256").hexdigest())
        with safe_open(path, framework="numpy") as file:
            found = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (no dict)
            if shapes is not None and found.keys() != shapes.keys():
                raise ValueError(f"{name}: its tensors are not those of a model with this config")
            for key, part in found.items():
                got = part.get_dtype(), tuple(part.get_shape())
                expected = "F32", got[1] if shapes is None else shapes[key]
                if got != expected:
                    raise ValueError(f"{key}: expected {expected[0]} {expected[1]}, got {got}")
            needed = {"tensors": path.stat().st_size}
            check_memory(f"reading {path}", needed, "close other programs, or use a larger machine")
            tensors = {key: file.get_tensor(key) for key in found}
        for key, tensor in tensors.items():
            if not np.isfinite(tensor).all():
                raise ValueError(f"{key}: expected finite numbers")
        return tensors

    def _check_hash(self, name: str, found: str) -> None:
        if self.sha256.get(name) != found:
            raise CheckpointError(f"{name} is not what was written: its SHA-256 differs")


def _check_plain(path: Path, max_bytes: int) -> None:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path.name}: expected a file, got a link, folder or device")
    if status.st_size > max_bytes:
        raise CheckpointError(
            f"{path.name}: expected at most {max_bytes:,} bytes, got {status.st_size:,}"
        )


def _read_plain(path: Path) -> bytes:
    _check_plain(path, MAX_JSON_BYTES)
    return path.read_bytes()
