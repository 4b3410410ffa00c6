"""Names and shapes of a model's parameters, and rotary angles, without importing torch."""

import math

import numpy as np
from numpy.typing import NDArray

from gpt.config.schema import ModelConfig


def parameter_shapes(config: ModelConfig, vocabulary_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter in a model's `state_dict()`, by name."""
    C, V = config.C, vocabulary_size
    queries, values = config.n_head * config.head_size, config.n_head * config.value_size
    shapes: dict[str, tuple[int, ...]] = {"token_embedding.weight": (V, C)}
    shapes |= {f"ngram_embeddings.{i}.weight": (V, C) for i in range(config.ngram - 1)}
    if config.positions == "learned":
        shapes["position_embedding.weight"] = (config.T, C)
    for i in range(config.n_layer):
        block = {
            "attention_norm": (C,),
            "attention.qkv": (2 * queries + values, C),
            "attention.projection": (C, values),
            "mlp_norm": (C,),
            "mlp.expand": (4 * C, C),
            "mlp.projection": (C, 4 * C),
        }
        for name, weight in block.items():
            shapes[f"blocks.{i}.{name}.weight"] = weight
            if name != "attention.qkv" or config.qkv_bias:
                shapes[f"blocks.{i}.{name}.bias"] = weight[:1]
    shapes |= {"norm.weight": (C,), "norm.bias": (C,), "head.weight": (V, C)}
    return {f"{m}{name}": shape for m in member_prefixes(config) for name, shape in shapes.items()}


def member_prefixes(config: ModelConfig) -> list[str]:
    """Return the prefix of the parameter names of each ensemble member; `[""]` for one model."""
    return [f"members.{m}." for m in range(config.ensemble)] if config.ensemble > 1 else [""]


def parameter_count(config: ModelConfig, vocabulary_size: int) -> int:
    """Return the number of scalar parameters of a model."""
    return sum(map(math.prod, parameter_shapes(config, vocabulary_size).values()))


def kept_pairs(head_size: int) -> int:
    """Return how many of a key's channel pairs `model.key_offset` keeps.

    Channels i and i + head_size / 2 are a pair. `model.key_offset` takes the last pairs, the least
    rotated by rotary positions, from the previous character's key.
    """
    return head_size // 4


def rotary_angles(T: int, head_size: int) -> NDArray[np.float64]:
    """Return rotary angles (T, head_size / 2) in radians, by position and pair of channels."""
    half = head_size // 2
    return np.outer(np.arange(T), 10000.0 ** -(np.arange(half) / half))
