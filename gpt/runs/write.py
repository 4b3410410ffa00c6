"""Write checkpoints atomically, so that a reader never sees an incomplete one."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import safetensors.numpy

from gpt.errors import CheckpointError, Unreadable
from gpt.files import sync_folder, write_atomically, write_synced
from gpt.runs import format as layout
from gpt.runs.format import CheckpointData, TrainingState
from gpt.runs.read import read_index

KEPT_CHECKPOINTS = 2  # number of newest checkpoints to keep; the best is kept as well


def write_checkpoint(run: Path, data: CheckpointData, state: TrainingState) -> None:
    """Write a checkpoint to `checkpoints/step-N`, update the index, and remove old checkpoints.

    The newest KEPT_CHECKPOINTS checkpoints, the best and the previous best are kept.

    Raises:
        OSError: the checkpoint cannot be written; the other checkpoints are unchanged.
    """
    folder = run / "checkpoints"
    if not folder.exists():
        folder.mkdir()
        for new in (run, run.absolute().parent):  # a power cut could remove unsynced folders
            sync_folder(new)
    try:
        best_before = read_index(folder).best
    except (CheckpointError, Unreadable):
        best_before = None
    training = layout.Counters(
        step=data.step,
        val_loss=data.val_loss,
        best_step=data.best_step,
        finished=data.finished,
        numbers=state.numbers,
    )
    contents = {
        layout.MODEL: safetensors.numpy.save(data.weights),
        layout.OPTIMIZER: safetensors.numpy.save(state.tensors),
        layout.CONFIG: data.config.model_dump_json(indent=2).encode(),
        layout.VOCABULARY: data.vocabulary.to_json().encode(),
        layout.TRAINING: json.dumps(training.model_dump(), indent=2, allow_nan=False).encode(),
    }
    contents[layout.MANIFEST] = manifest_of(contents)
    _write(layout.step_folder(folder, data.step), contents)
    write_index(folder, data)
    newest = layout.steps_in(folder)[-KEPT_CHECKPOINTS:]
    _prune(folder, {*newest, data.best_step, best_before})


def write_index(folder: Path, data: CheckpointData) -> None:
    """Write index.json with the last and the best step; omit a best step that was deleted."""
    best = data.best_step
    if best is not None and not layout.step_folder(folder, best).exists():
        best = None
    content = layout.Index(last=data.step, best=best).model_dump_json().encode()
    path = folder / layout.INDEX
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, [content])


def manifest_of(contents: dict[str, bytes]) -> bytes:
    """Return the content of manifest.json for files with these `contents`, by name."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    return layout.Manifest(format=layout.FORMAT, sha256=hashes).model_dump_json(indent=2).encode()


def _write(place: Path, contents: dict[str, bytes]) -> None:
    """Write files (`contents` by name) to a temporary folder, then rename it to `place`."""
    temporary = place.with_name(f".{place.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a run that was killed while it wrote
    try:
        temporary.mkdir()
        for name, content in contents.items():
            write_synced(temporary / name, [content])
        sync_folder(temporary)
        replaced = place.with_name(f".{place.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        if place.exists():  # the same step, saved again; `recover` undoes this after a kill
            place.rename(replaced)
        temporary.rename(place)
        sync_folder(place.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # frees the space on a full disk


def _prune(folder: Path, kept: set[int | None]) -> None:
    """Remove temporary folders, and all checkpoints except those of the steps in `kept`."""
    for entry in folder.iterdir():
        ours = re.fullmatch(r"step-(\d+)|\.step-\d+\.(tmp|replaced)", entry.name)
        if ours and not (ours[1] and int(ours[1]) in kept):
            shutil.rmtree(entry, ignore_errors=True)
