"""The memory that sampling takes, from the shapes of a model's config alone."""

from gpt.config.schema import ModelConfig
from gpt.errors import counted
from gpt.memory import check_memory
from gpt.model.shapes import parameter_count
from gpt.runs.format import CheckpointData
from gpt.sampling.detokenizer import LONGEST_CHARACTER
from gpt.sampling.engine import device_for
from gpt.sampling.generate import PREFILL_CHARACTERS
from gpt.sampling.numpy_engine import FIRST_ROOM, SCORES_NUMBERS
from gpt.sampling.parallel import process_count

FLOAT = 4  # bytes
TEXT_BYTES = 100  # of a character that waits to be shown
SAMPLE_BYTES = 10_000  # of a sample's draws, its last characters and its place in a few lists


def check_sampling_memory(
    checkpoint: CheckpointData, device: str, B: int, longest_prompt: int, length: int | None
) -> None:
    """Raises OutOfMemory if B samples of `length` characters would take more than is free.

    Raises DeviceError if there is no such device.
    """
    device = device_for(checkpoint, device, B, length)
    vocabulary = checkpoint.vocabulary
    each = LONGEST_CHARACTER if vocabulary.is_bytes else 1
    ids = None if length is None else longest_prompt + each * length
    processes = process_count(checkpoint, device, B, length)
    parts = sampling_bytes(checkpoint.config.model, len(vocabulary), B, ids, processes)
    free = None
    if device.startswith("cuda"):
        import torch

        free = torch.cuda.mem_get_info(device)[0]
    advice = "generate fewer samples at once, or use a smaller model"
    check_memory(f"sampling {counted(B, 'text')}", parts, advice, free)


def sampling_bytes(
    model: ModelConfig, vocabulary_size: int, B: int, ids: int | None, processes: int = 1
) -> dict[str, float]:
    """Bytes that sampling takes at most, by part: an estimate, rather too high than too low.

    `ids` are those of a prompt and its sample together, if that is known.
    """
    C, H, K = model.C, model.n_head, model.ensemble
    heads = H * (2 * model.head_size + model.value_size)
    parameters = parameter_count(model, vocabulary_size)
    longest = model.T if ids is None else min(model.T, max(ids, FIRST_ROOM))
    room = min(model.T, 2 * longest)  # caches grow to twice their size, and are copied
    cached = 2 * FLOAT * K * model.n_layer * H * (model.head_size + model.value_size) + 16
    at_once = max(B, min(B * longest, max(PREFILL_CHARACTERS, longest)))
    scores = min(SCORES_NUMBERS + K * H * longest, K * B * H * longest * longest)
    tables = 16 * model.T * model.head_size if model.positions == "rotary" else 0
    # as read and as the engine takes them; each process is sent them, and has both
    copies = 2 if processes == 1 else 2 + 3 * processes
    if K > 1:
        copies += processes  # the members' side by side, before they become the engine's
    return {
        "weights": copies * FLOAT * parameters + tables,
        "keys and values": B * room * cached,
        "activations": FLOAT * (K * at_once * (14 * C + 3 * heads) + 4 * scores),
        "logits": B * (40 + 12 * (K - 1)) * vocabulary_size,
        "samples": B * SAMPLE_BYTES + (B - 1) * TEXT_BYTES * (ids or 0),  # the first is shown
    }
