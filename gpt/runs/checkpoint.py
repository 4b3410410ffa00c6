"""A model on disk, whole or not at all.

    checkpoints/step-N/   model.safetensors training_state.pt config.yaml vocabulary.json SHA256SUMS
    checkpoints/last      a link to the newest of them
    checkpoints/best      a link to the one with the lowest val loss

A checkpoint is written beside its place, synced and renamed into it; then the links are switched,
each in one step. A reader sees the old one or the new one, never half. Nothing that is read can
execute code: safetensors, `weights_only=True`, safe YAML, JSON.
"""

import io
import pickletools
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from gpt.config.schema import Config
from gpt.config.yaml import to_yaml
from gpt.errors import CheckpointError
from gpt.files import sync
from gpt.model.transformer import GPT
from gpt.runs.stored import Stored, damaged, link, read_stored, write_hashes
from gpt.text.vocabulary import Vocabulary

STATE_HOLDS = ("collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch FloatStorage")


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
    """Write `checkpoints/step-N`, make it `last` (and `best`), and drop older ones.

    Those that were `last` and `best` before it stay until the next: should the new one be damaged,
    the run goes back to them.
    """
    folder = run / "checkpoints"
    folder.mkdir(exist_ok=True)
    place, before = folder / f"step-{checkpoint.step}", _linked(folder)
    _write(place, checkpoint, training_state)
    link(folder, "last", place.name)
    if is_best:
        link(folder, "best", place.name)
    _prune(folder, before | _linked(folder))


def mend_best(run: Path, best_step: int) -> None:
    """Let `best` be the checkpoint of the best step so far, before a run is gone on with.

    A crash between the two switches leaves it behind; going back from a damaged checkpoint leaves
    it ahead. Without that checkpoint, it is `last`.
    """
    folder = run / "checkpoints"
    best = f"step-{best_step}"
    link(folder, "best", best if (folder / best).exists() else (folder / "last").readlink().name)


def load_checkpoint(run: Path, which: str, device: torch.device) -> Checkpoint:
    """The checkpoint `best` or `last` of a run, its model on `device` and ready to use.

    Raises:
        CheckpointError: it is missing, damaged or not one of ours.
    """
    stored = read_stored(run, which)
    return Checkpoint(stored.step, model_of(stored, device), stored.config, stored.vocabulary)


def model_of(stored: Stored, device: torch.device) -> GPT:
    """The model with these weights, on `device` and in evaluation mode."""
    with torch.device("meta"):  # draw no weights only to replace them
        model = GPT(stored.config.model, len(stored.vocabulary))
    weights = {name: torch.from_numpy(array) for name, array in stored.weights.items()}
    model.load_state_dict(weights, assign=True)
    return model.to(device).eval()


def load_training_state(run: Path) -> dict[str, Any]:
    """What `save_checkpoint` was given with the last checkpoint; tensors on the CPU.

    Raises:
        CheckpointError: it is missing, damaged or not one of ours.
    """
    folder = run / "checkpoints" / "last"
    read_stored(run, "last", with_state=True)
    try:
        _check_harmless(folder / "training_state.pt")
        state: dict[str, Any] = torch.load(
            folder / "training_state.pt", map_location="cpu", weights_only=True
        )
    except Exception as error:  # torch.load has no error of its own for a damaged file
        raise CheckpointError(damaged(folder, f"training_state.pt: {error!s:.200}")) from error
    return state


def _check_harmless(path: Path) -> None:
    """Raises CheckpointError if a state may take more memory than its file is long.

    `weights_only` executes nothing, but it makes a bytearray of any length.
    """
    with zipfile.ZipFile(path) as file:
        for entry in file.infolist():
            if entry.file_size != entry.compress_size:
                raise CheckpointError("compressed, so that it may be larger than it seems")
            if entry.filename.endswith("data.pkl"):
                for operation, argument, _ in pickletools.genops(file.read(entry)):
                    if operation.name == "GLOBAL" and argument not in STATE_HOLDS:
                        raise CheckpointError(f"it holds a {argument}")
                    if operation.name in ("STACK_GLOBAL", "INST", "BYTEARRAY8"):
                        raise CheckpointError("it holds more than tensors and numbers")


def _write(place: Path, checkpoint: Checkpoint, training_state: dict[str, Any]) -> None:
    temporary = place.with_name(f".{place.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a run that was killed right here
    try:
        temporary.mkdir()
        weights = {name: w.contiguous() for name, w in checkpoint.model.state_dict().items()}
        metadata = {"step": str(checkpoint.step)}
        content = safetensors.torch.save(weights, metadata)  # save_file would make it private
        (temporary / "model.safetensors").write_bytes(content)
        state = io.BytesIO()  # on a full disk torch.save itself fails as no OSError
        torch.save(training_state, state)
        (temporary / "training_state.pt").write_bytes(state.getbuffer())
        (temporary / "config.yaml").write_text(to_yaml(checkpoint.config), "utf-8")
        (temporary / "vocabulary.json").write_text(checkpoint.vocabulary.to_json(), "utf-8")
        write_hashes(temporary)
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        replaced = place.with_name(f".{place.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        if place.exists():  # the same step, with more known of it; a kill right here is made up for
            place.rename(replaced)
        temporary.rename(place)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # a disk that is full stays no fuller


def _prune(folder: Path, kept: set[str]) -> None:
    """Remove our own folders but for these, and what a crash left half written."""
    for entry in folder.iterdir():
        ours = re.fullmatch(r"step-\d+|\.step-\d+\.(tmp|replaced)", entry.name)
        if ours and entry.name not in kept:
            shutil.rmtree(entry, ignore_errors=True)


def _linked(folder: Path) -> set[str]:
    links = (folder / "last", folder / "best")
    return {link.readlink().name for link in links if link.is_symlink()}
