"""What a checkpoint holds, read without torch: enough to sample from it on a CPU."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from gpt.config import Config, load_config
from gpt.errors import CheckpointError, ConfigError
from gpt.model.shapes import parameter_shapes
from gpt.text.vocabulary import Vocabulary

_READ_ERRORS = (
    OSError,
    CheckpointError,  # vocabulary.json
    ConfigError,  # config.yaml
    SafetensorError,  # model.safetensors is none
    ValueError,
    KeyError,
)


@dataclass(frozen=True)
class Stored:
    """A model's weights by name, with all that is needed to use them."""

    step: int
    config: Config
    vocabulary: Vocabulary
    weights: dict[str, NDArray[np.float32]]


def read_stored(run: Path, which: str) -> Stored:
    """The checkpoint `best` or `last` of a run.

    Raises:
        CheckpointError: it is missing, damaged or not one of ours.
    """
    folder = run / "checkpoints" / which
    if not folder.exists():
        raise CheckpointError(f"{folder}: no such checkpoint")
    try:
        config = load_config(folder / "config.yaml")
        vocabulary = Vocabulary.from_json((folder / "vocabulary.json").read_text("utf-8"))
        with safe_open(folder / "model.safetensors", framework="numpy") as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            expected = parameter_shapes(config.model, len(vocabulary))
            if set(found) != set(expected):
                raise ValueError("its tensors are not those of a model with this config")
            for name, part in found.items():
                got = part.get_dtype(), tuple(part.get_shape())
                if got != ("F32", expected[name]):
                    raise ValueError(f"{name}: expected {expected[name]} of F32, got {got}")
            weights = {name: file.get_tensor(name) for name in found}
        step = step_of(folder)
    except _READ_ERRORS as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(damaged(folder, f"{reason:.300}")) from error
    return Stored(step, config, vocabulary, weights)


def step_of(folder: Path) -> int:
    """The step after which a checkpoint was taken."""
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        return int((file.metadata() or {})["step"])


def damaged(folder: Path, reason: str) -> str:
    """What to say of a checkpoint that cannot be read."""
    return (
        f"{folder}: damaged or not a checkpoint of this program ({reason}); "
        f"the run's other checkpoint, best or last, may be whole"
    )
