"""What predicts the next character of texts as they grow: the protocol, and which engine to use."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from gpt.runs.format import CheckpointData
from gpt.sampling.numpy_engine import NumpyEngine

if TYPE_CHECKING:
    from gpt.model.ensemble import LanguageModel

CPU_BYTES = 2e11  # of weights to read; a CPU does that in the time a GPU takes to start


class Engine(Protocol):
    """A model and B texts, of at most T characters each, with what it has computed of them."""

    T: int

    def prefill(self, rows: list[int], texts: list[list[int]]) -> None:
        """Replace the texts in these rows by those, of any lengths up to T."""

    def decode(self, ids: list[int]) -> NDArray[np.float32]:
        """Append one character to each text: the logits (B, V) of the next."""

    def fork(self, row: int, rows: list[int]) -> None:
        """Replace the texts in `rows` by that in `row`."""

    def select(self, rows: list[int]) -> None:
        """Drop all texts but those in these rows, which become rows 0, 1, 2 and so on."""


def bytes_to_read(checkpoint: CheckpointData, B: int, length: int | None) -> int:
    """Bytes of weights to read for B texts; 1,000 characters stand for an unknown length."""
    weights = sum(array.nbytes for array in checkpoint.weights.values())
    return weights * B * (1000 if length is None else length)


def device_for(checkpoint: CheckpointData, device: str, B: int, length: int | None) -> str:
    """Where to generate B texts: `auto` is the CPU if that takes seconds, else a GPU if there is.

    Raises:
        DeviceError: there is no such device.
    """
    small = bytes_to_read(checkpoint, B, length) < CPU_BYTES
    if device == "cpu" or (device == "auto" and (small or not _may_have_gpu())):
        return "cpu"
    from gpt.device import select_device

    chosen = select_device(device)
    return "cpu" if chosen.type == "cpu" else str(chosen)


def open_engine(checkpoint: CheckpointData, device: str, B: int) -> Engine:
    """An engine for B texts: numpy on a CPU, to spare the seconds of importing torch."""
    if device == "cpu":
        return NumpyEngine(checkpoint.config.model, checkpoint.weights, B)
    import torch

    from gpt.runs.weights import load_model
    from gpt.sampling.torch_engine import TorchEngine

    return TorchEngine(load_model(checkpoint, torch.device(device)), B)


def engine_of(model: "LanguageModel", B: int) -> Engine:
    """An engine for B texts and a model in memory, on the device where the model is."""
    if next(model.parameters()).device.type != "cpu":
        from gpt.sampling.torch_engine import TorchEngine

        return TorchEngine(model, B)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return NumpyEngine(model.config, weights, B)


def _may_have_gpu() -> bool:
    nvidia = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
    return nvidia or sys.platform in ("darwin", "win32")
