"""A model on disk, whole or not at all.

    checkpoints/step-N/   model.safetensors training_state.pt config.yaml vocabulary.json
    checkpoints/last      a link to the newest of them
    checkpoints/best      a link to the one with the lowest val loss

A checkpoint is written beside its place, synced and renamed into it; then the links are switched,
each in one step. A reader sees the old one or the new one, never half. Nothing that is read can
execute code: safetensors, `weights_only=True`, safe YAML, JSON.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from gpt.config import Config, load_config, to_yaml
from gpt.errors import CheckpointError, ConfigError
from gpt.model.transformer import GPT
from gpt.text.vocabulary import Vocabulary

_READ_ERRORS = (
    OSError,
    CheckpointError,  # vocabulary.json
    ConfigError,  # config.yaml
    SafetensorError,  # model.safetensors is none
    RuntimeError,  # its tensors do not fit the config
    ValueError,
    KeyError,
)


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
    for link in ["last", "best"] if is_best else ["last"]:
        temporary = folder / f".{link}.tmp"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(place.name)
        temporary.replace(folder / link)
    _sync(folder)
    for old in folder.glob("step-*"):
        if old.name not in _linked(folder):
            shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(run: Path, which: str, device: torch.device) -> Checkpoint:
    """The checkpoint `best` or `last` of a run, its model on `device` and ready to use.

    Raises:
        CheckpointError: it is missing, damaged or not one of ours.
    """
    folder = run / "checkpoints" / which
    if not folder.exists():
        raise CheckpointError(f"{folder}: no such checkpoint")
    try:
        config = load_config(folder / "config.yaml")
        vocabulary = Vocabulary.from_json((folder / "vocabulary.json").read_text("utf-8"))
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            step = int((file.metadata() or {})["step"])
        model = GPT(config.model, len(vocabulary))
        model.load_state_dict(weights)
    except (
        OSError,
        CheckpointError,
        ConfigError,
        SafetensorError,
        RuntimeError,
        ValueError,
        KeyError,
    ) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(_damaged(folder, f"{reason:.300}")) from error
    return Checkpoint(step, model.to(device), config, vocabulary)


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
        raise CheckpointError(_damaged(folder, f"training_state.pt: {error!s:.200}")) from error
    return state


def _write(place: Path, checkpoint: Checkpoint, training_state: dict[str, Any]) -> None:
    temporary = place.with_name(f".{place.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    safetensors.torch.save_file(
        {name: tensor.contiguous() for name, tensor in checkpoint.model.state_dict().items()},
        temporary / "model.safetensors",
        metadata={"step": str(checkpoint.step)},
    )
    torch.save(training_state, temporary / "training_state.pt")
    (temporary / "config.yaml").write_text(to_yaml(checkpoint.config), "utf-8")
    (temporary / "vocabulary.json").write_text(checkpoint.vocabulary.to_json(), "utf-8")
    for file in temporary.iterdir():
        _sync(file)
    _sync(temporary)
    temporary.rename(place)


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, so that a power cut cannot undo the rename."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _linked(folder: Path) -> set[str]:
    links = (folder / "last", folder / "best")
    return {link.readlink().name for link in links if link.is_symlink()}


def _damaged(folder: Path, reason: str) -> str:
    return (
        f"{folder}: damaged or not a checkpoint of this program ({reason}); "
        f"use the run's other checkpoint (--checkpoint best or last) or train again"
    )
