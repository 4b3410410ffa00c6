"""The memory that sampling takes, from the shapes of a model's config alone."""

import math

from gpt.config.schema import ModelConfig
from gpt.memory import check_memory
from gpt.model.shapes import parameter_shapes
from gpt.sampling.generate import PREFILL_CHARACTERS
from gpt.sampling.numpy_engine import FIRST_ROOM, SCORES_NUMBERS

FLOAT = 4  # bytes
SAMPLE_BYTES = 10_000  # of a sample's draws, its last characters and its place in a few lists


def check_sampling_memory(
    model: ModelConfig, vocabulary_size: int, B: int, characters: int | None
) -> None:
    """Raises OutOfMemory if B samples would take more memory than is free.

    `characters` are those of a prompt and its sample together, if that is known.
    """
    parts = sampling_bytes(model, vocabulary_size, B, characters)
    check_memory(f"sampling {B:,} texts", parts, "use fewer --num-samples, or a smaller model")


def sampling_bytes(
    model: ModelConfig, vocabulary_size: int, B: int, characters: int | None
) -> dict[str, float]:
    """Bytes that sampling takes at most, by part: an estimate, rather too high than too low."""
    C, H = model.C, model.n_head
    heads = H * (2 * model.head_size + model.value_size)
    parameters = sum(map(math.prod, parameter_shapes(model, vocabulary_size).values()))
    longest = model.T if characters is None else min(model.T, max(characters, FIRST_ROOM))
    room = min(model.T, 2 * longest)  # caches grow to twice their size, and are copied
    cached = 2 * FLOAT * model.n_layer * H * (model.head_size + model.value_size) + 16
    at_once = max(B, min(B * longest, max(PREFILL_CHARACTERS, longest)))
    scores = min(SCORES_NUMBERS + H * longest, B * H * longest * longest)
    tables = 16 * model.T * model.head_size if model.positions == "rotary" else 0
    return {
        "weights": 2 * FLOAT * parameters + tables,  # as read, and as the engine takes them
        "keys and values": B * room * cached,
        "activations": FLOAT * (at_once * (14 * C + 3 * heads) + 4 * scores),
        "logits": B * 40 * vocabulary_size,
        "samples": B * SAMPLE_BYTES,
    }
