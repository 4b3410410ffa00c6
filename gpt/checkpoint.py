"""A model on disk, whole or not at all.

    checkpoints/step-N/   model.safetensors training_state.pt config.yaml vocabulary.json
    checkpoints/last      a link to the newest of them
    checkpoints/best      a link to the one with the lowest val loss

A checkpoint is written beside its place, synced and renamed into it; then the links are switched,
each in one step. A reader sees the old one or the new one, never half. Nothing that is read can
execute code: safetensors, `weights_only=True`, safe YAML, JSON.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from gpt.config import Config, to_yaml
from gpt.errors import CheckpointError
from gpt.files import sync
from gpt.model.transformer import GPT
from gpt.stored import Stored, damaged, read_stored, step_of
from gpt.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Checkpoint:
    """A model with all that is needed to use it, and the step after which it was taken."""

    step: int
    model: GPT
    config: Config
    vocabulary: Vocabulary


def save_checkpoint(
    run: Path, checkpoint: Checkpoint, training_state: dict[str, Any], *, is_best: bool
) -> None:
    """Write `checkpoints/step-N`, make it `last` (and `best`), and drop those no longer linked."""
    folder = run / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"step-{checkpoint.step}"
    if place.name not in _linked(folder):
        shutil.rmtree(place, ignore_errors=True)  # unlinked: left by a run that stopped right here
        _write(place, checkpoint, training_state)
    _link(folder, "last", place.name)
    if is_best:
        _link(folder, "best", place.name)
    _prune(folder)


def mend_links(run: Path, best_step: int) -> None:
    """Put right what a crash or a copy has done to the links, before a run is gone on with.

    A crash between the two switches leaves `best` behind the best step, which `last` then holds.
    Copying without links (scp -r, zip) turns each link into a folder of its own.
    """
    folder = run / "checkpoints"
    for name in ("last", "best"):
        copy = folder / name
        if copy.is_dir() and not copy.is_symlink():
            place = folder / f"step-{step_of(copy)}"
            if place.exists():
                shutil.rmtree(copy)
            else:
                copy.rename(place)
            _link(folder, name, place.name)
    if (folder / "last").readlink().name == f"step-{best_step}":
        _link(folder, "best", f"step-{best_step}")


def load_checkpoint(run: Path, which: str, device: torch.device) -> Checkpoint:
    """The checkpoint `best` or `last` of a run, its model on `device` and ready to use.

    Raises:
        CheckpointError: it is missing, damaged or not one of ours.
    """
    stored = read_stored(run, which)
    return Checkpoint(stored.step, model_of(stored, device), stored.config, stored.vocabulary)


def model_of(stored: Stored, device: torch.device) -> GPT:
    """The model with these weights, on `device`."""
    with torch.device("meta"):  # draw no weights only to replace them
        model = GPT(stored.config.model, len(stored.vocabulary))
    weights = {name: torch.from_numpy(array) for name, array in stored.weights.items()}
    model.load_state_dict(weights, assign=True)
    return model.to(device)


def load_training_state(run: Path) -> dict[str, Any]:
    """What `save_checkpoint` was given with the last checkpoint; tensors on the CPU.

    Raises:
        CheckpointError: it is missing, damaged or not one of ours.
    """
    folder = run / "checkpoints" / "last"
    try:
        state: dict[str, Any] = torch.load(
            folder / "training_state.pt", map_location="cpu", weights_only=True
        )
    except Exception as error:  # torch.load has no error of its own for a damaged file
        raise CheckpointError(damaged(folder, f"training_state.pt: {error!s:.200}")) from error
    return state


def _write(place: Path, checkpoint: Checkpoint, training_state: dict[str, Any]) -> None:
    temporary = place.with_name(f".{place.name}.tmp")
    try:
        temporary.mkdir()
        weights = {name: w.contiguous() for name, w in checkpoint.model.state_dict().items()}
        metadata = {"step": str(checkpoint.step)}
        content = safetensors.torch.save(weights, metadata)  # save_file would make it private
        (temporary / "model.safetensors").write_bytes(content)
        torch.save(training_state, temporary / "training_state.pt")
        (temporary / "config.yaml").write_text(to_yaml(checkpoint.config), "utf-8")
        (temporary / "vocabulary.json").write_text(checkpoint.vocabulary.to_json(), "utf-8")
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        temporary.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # a disk that is full stays no fuller


def _link(folder: Path, name: str, target: str) -> None:
    """Switch a link in one step, and see it onto the disk."""
    temporary = folder / f".{name}.tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(folder / name)
    sync(folder)


def _prune(folder: Path) -> None:
    """Remove our own folders that nothing links to, and what a crash left half written."""
    kept = _linked(folder)
    for entry in folder.iterdir():
        ours = re.fullmatch(r"step-\d+|\.step-\d+\.tmp", entry.name)
        if ours and entry.name not in kept:
            shutil.rmtree(entry, ignore_errors=True)


def _linked(folder: Path) -> set[str]:
    links = (folder / "last", folder / "best")
    return {link.readlink().name for link in links if link.is_symlink()}
