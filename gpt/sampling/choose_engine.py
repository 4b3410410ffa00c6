"""Choose an engine, which computes logits to sample from, and estimate its memory use."""

import sys
from typing import TYPE_CHECKING, TypeAlias

from gpt.config.schema import ModelConfig
from gpt.errors import counted
from gpt.memory import check_memory
from gpt.model.shapes import parameter_count
from gpt.runs.format import CheckpointData
from gpt.sampling.numpy_engine import FIRST_ROOM, SCORES_NUMBERS, NumpyEngine
from gpt.sampling.stopping import UTF8_BYTES

if TYPE_CHECKING:
    from gpt.model.ensemble import LanguageModel
    from gpt.sampling.torch_engine import TorchEngine

# Bytes of weights that a CPU reads in the time that a GPU takes to start, and in half a second.
CPU_BYTES, FEW_CPU_BYTES = 2e11, 1e10
UNKNOWN_LENGTH = 1000  # assumed length, in characters, of a sample that only a stop string ends
PREFILL_CHARACTERS = 2048  # largest number of characters per prefill; more would save no time
TEXT_BYTES = 100  # largest memory, in bytes, of a character that waits to be shown
SAMPLE_BYTES = 10_000  # largest memory, in bytes, of a sample's generator and list entries

Engine: TypeAlias = "NumpyEngine | TorchEngine"
"""A model, and cached keys and values of B texts; `T` is the largest length of a context in ids."""


def open_engine(
    checkpoint: CheckpointData, device: str, B: int, length: int | None = None, prompt: int = 0
) -> Engine:
    """Return an engine for B texts, after checking that there is enough memory.

    On a CPU, the engine uses numpy, because importing torch takes seconds. If `device` is auto, the
    CPU is used without a GPU, or if the CPU samples all texts in seconds (if this process already
    uses a GPU: in half a second). `length` is the number of characters of each sample (None if
    unknown), `prompt` the number of ids of the longest prompt.

    Raises:
        DeviceError: the device does not exist.
        OutOfMemory: sampling B texts would take more memory than is free.
    """
    config, weights, vocabulary = checkpoint.config.model, checkpoint.weights, checkpoint.vocabulary
    characters = B * (UNKNOWN_LENGTH if length is None else length)
    loaded = sys.modules.get("torch")
    uses_gpu = loaded is not None and loaded.cuda.is_initialized()
    weight_bytes = characters * sum(array.nbytes for array in weights.values())
    if device == "auto" and weight_bytes < (FEW_CPU_BYTES if uses_gpu else CPU_BYTES):
        device = "cpu"
    free = None
    if device != "cpu":
        import torch

        from gpt.device import select_device

        device = str(select_device(device))
        free = torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else None
    unit = UTF8_BYTES if vocabulary.is_bytes else 1
    ids = None if length is None else prompt + unit * length
    parts = sampling_bytes(config, len(vocabulary), B, ids)
    advice = "generate fewer samples at once, or use a smaller model"
    check_memory(f"sampling {counted(B, 'text')}", parts, advice, free)
    if device == "cpu":
        return NumpyEngine(config, weights, B)

    from gpt.runs.weights import load_model
    from gpt.sampling.torch_engine import TorchEngine

    return TorchEngine(load_model(checkpoint, torch.device(device)), B)


def engine_of(model: "LanguageModel", B: int) -> Engine:
    """Return an engine for B texts of `model`, on the device of its parameters."""
    if next(model.parameters()).device.type != "cpu":
        from gpt.sampling.torch_engine import TorchEngine

        return TorchEngine(model, B)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return NumpyEngine(model.config, weights, B)


def sampling_bytes(model: ModelConfig, V: int, B: int, ids: int | None) -> dict[str, int]:
    """Return the peak memory of sampling B texts, in bytes, by part, such as `weights`.

    `ids` is the number of ids of a prompt and its sample together; None if unknown.
    """
    K, H = model.ensemble, model.n_head
    T = model.T if ids is None else min(model.T, max(ids, FIRST_ROOM))
    sizes = H * (model.head_size + model.value_size)  # numbers in a character's keys and values
    at_once = B + min(B * T, PREFILL_CHARACTERS + T)  # characters computed together
    scores = min(SCORES_NUMBERS + K * H * T, K * B * H * T * T)
    numbers = {
        # three copies (as read, stacked by member, prepared by the engine), and rotary angles
        "weights": 3 * parameter_count(model, V) + 4 * model.T * model.head_size,
        # caches grow to twice their size, and are copied as they grow
        "keys and values": 2 * B * min(model.T, 2 * T) * K * model.n_layer * sizes,
        # the stream, the MLP's 4 C channels, queries, keys and values, each with temporary copies
        "activations": K * at_once * (14 * model.C + 6 * sizes) + 4 * scores,
        # each member's logits, and the float64 copies that the sampling rules make
        "logits": B * (10 + 3 * K) * V,
    }
    # a single sample is printed as it is generated; several samples may wait in memory
    samples = B * (SAMPLE_BYTES + TEXT_BYTES * (ids or 0)) if B > 1 else 0
    return {part: 4 * count for part, count in numbers.items()} | {"samples": samples}
