"""Which of the two readers of a model is used where."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.runs.stored import Stored
from gpt.sampling.generator import encode_prompt, generate
from gpt.sampling.numpy_engine import NumpyReader
from gpt.sampling.writer import Reader
from gpt.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from gpt.model.transformer import GPT

SMALL = 2e11  # bytes of weights to go through; a CPU does that in the time a GPU takes to start


def work(stored: Stored, B: int, length: int | None) -> int:
    """Bytes of weights that are gone through for B texts; 1,000 characters stand for any length."""
    weights = sum(array.nbytes for array in stored.weights.values())
    return weights * B * (1000 if length is None else length)


def device_for(stored: Stored, device: str, B: int, length: int | None) -> str:
    """Where to write B texts: `auto` is the CPU if that takes seconds, else a GPU if there is one.

    Raises:
        DeviceError: there is no such device.
    """
    small = work(stored, B, length) < SMALL
    if device == "cpu" or (device == "auto" and (small or not _may_have_gpu())):
        return "cpu"
    from gpt.device import select_device

    chosen = select_device(device)
    return "cpu" if chosen.type == "cpu" else str(chosen)


def open_reader(stored: Stored, device: str, B: int) -> Reader:
    """A reader of B texts on `device`: in numpy on a CPU, which spares the seconds torch loads."""
    if device == "cpu":
        return NumpyReader(stored.config.model, stored.weights, B)
    import torch

    from gpt.runs.checkpoint import model_of
    from gpt.sampling.torch_engine import TorchReader

    return TorchReader(model_of(stored, torch.device(device)), B)


def _may_have_gpu() -> bool:
    nvidia = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
    return nvidia or sys.platform == "darwin"


def reader_of(model: "GPT", B: int) -> Reader:
    """A reader of B texts for a model in memory, where it is."""
    if next(model.parameters()).device.type != "cpu":
        from gpt.sampling.torch_engine import TorchReader

        return TorchReader(model, B)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return NumpyReader(model.config, weights, B)


def generate_text(model: "GPT", vocabulary: Vocabulary, prompt: str = "", **options: Any) -> str:
    """The text that a model in memory writes after one prompt; see `generate`."""
    pieces = generate(
        reader_of(model, 1), vocabulary, [encode_prompt(prompt, vocabulary)], **options
    )
    return "".join(piece.text for piece in pieces)
