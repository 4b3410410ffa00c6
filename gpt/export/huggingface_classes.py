"""Convert a model for the class of transformers that computes the same function.

class                   positions   queries and keys
GPT2LMHeadModel         learned     not normalised
PersimmonForCausalLM    rotary      normalised
Jais2ForCausalLM        rotary      not normalised

All other models are exported with the class in huggingface_files/modeling_gpt.py.

Shapes: C channels, H heads, hs head_size, V vocabulary size.
"""

import re
from typing import Any, NamedTuple

import numpy as np

from gpt.config.schema import ModelConfig
from gpt.model.shapes import member_prefixes
from gpt.runs.format import CheckpointData, Tensors

Array = np.ndarray[Any, Any]

OWN_CLASS = "CharacterGPTForCausalLM"

# Names of the layers in each class, by their names in gpt; {i} is the index of the block.
GPT2 = {
    "token_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "attention_norm": "transformer.h.{i}.ln_1",
    "attention.projection": "transformer.h.{i}.attn.c_proj",
    "mlp_norm": "transformer.h.{i}.ln_2",
    "mlp.expand": "transformer.h.{i}.mlp.c_fc",
    "mlp.projection": "transformer.h.{i}.mlp.c_proj",
    "norm": "transformer.ln_f",
    "head": "lm_head",
}
PERSIMMON = {
    "token_embedding": "model.embed_tokens",
    "attention_norm": "model.layers.{i}.input_layernorm",
    "attention.projection": "model.layers.{i}.self_attn.dense",
    "mlp_norm": "model.layers.{i}.post_attention_layernorm",
    "mlp.expand": "model.layers.{i}.mlp.dense_h_to_4h",
    "mlp.projection": "model.layers.{i}.mlp.dense_4h_to_h",
    "norm": "model.final_layernorm",
    "head": "lm_head",
}
JAIS2 = PERSIMMON | {
    "attention.projection": "model.layers.{i}.self_attn.o_proj",
    "mlp.expand": "model.layers.{i}.mlp.up_proj",
    "mlp.projection": "model.layers.{i}.mlp.down_proj",
    "norm": "model.norm",
}


class Converted(NamedTuple):
    """A model, converted for a class of transformers."""

    config: dict[str, Any]  # content of config.json
    weights: Tensors  # by parameter name of the class


def convert_network(checkpoint: CheckpointData) -> Converted:
    """Convert the model of `checkpoint` for its class of transformers."""
    model, weights = checkpoint.config.model, checkpoint.weights
    is_plain = (model.ensemble, model.ngram, model.key_offset) == (1, 1, False)
    is_square = model.C == model.n_head * model.head_size == model.n_head * model.value_size
    convert = _own
    if is_plain and is_square:
        kinds = {("learned", False): _gpt2, ("rotary", True): _persimmon, ("rotary", False): _jais2}
        convert = kinds.get((model.positions, model.qk_norm), _own)
    made = convert(model, weights)
    common = {
        "vocab_size": len(checkpoint.vocabulary),
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in made.weights.items()}
    return Converted(made.config | common, arrays)


def _gpt2(model: ModelConfig, weights: Tensors) -> Converted:
    made = {
        # the Conv1D layers of GPT-2 store transposed matrices
        name: weight.T if ".c_" in name else weight
        for name, weight in rename_layers(weights, GPT2).items()
    }
    for i in range(model.n_layer):
        weight, bias = scaled_qkv(model, weights, i)
        made[f"transformer.h.{i}.attn.c_attn.weight"] = weight.reshape(-1, model.C).T
        made[f"transformer.h.{i}.attn.c_attn.bias"] = bias.ravel()
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_positions": model.T,
        "n_embd": model.C,
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "activation_function": "relu2" if model.activation == "relu2" else "gelu_new",
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": 0.0,
    }
    return Converted(config, made)


def _persimmon(model: ModelConfig, weights: Tensors) -> Converted:
    made, H, hs = rename_layers(weights, PERSIMMON), model.n_head, model.head_size
    for i in range(model.n_layer):
        weight, bias = scaled_qkv(model, weights, i)
        attention = f"model.layers.{i}.self_attn."
        fused = weight.reshape(3, H, hs, -1).swapaxes(0, 1)  # (H, 3, hs, C)
        made[f"{attention}query_key_value.weight"] = fused.reshape(-1, model.C)
        fused_bias = bias.reshape(3, H, hs).swapaxes(0, 1)
        made[f"{attention}query_key_value.bias"] = fused_bias.ravel()
        for name, scale in (("q", model.attention_scale), ("k", 1.0)):
            made[f"{attention}{name}_layernorm.weight"] = np.full(hs, scale, np.float32)
            made[f"{attention}{name}_layernorm.bias"] = np.zeros(hs, np.float32)
    config = {
        "architectures": ["PersimmonForCausalLM"],
        "model_type": "persimmon",
        "qk_layernorm": True,
        "partial_rotary_factor": 1.0,
        "hidden_dropout": model.dropout,
    }
    return Converted(config | _rotary(model), made)


def _jais2(model: ModelConfig, weights: Tensors) -> Converted:
    made = rename_layers(weights, JAIS2)
    for i in range(model.n_layer):
        weight, bias = scaled_qkv(model, weights, i)
        for index, name in enumerate("qkv"):
            layer = f"model.layers.{i}.self_attn.{name}_proj"
            made[f"{layer}.weight"], made[f"{layer}.bias"] = weight[index], bias[index]
    config = {"architectures": ["Jais2ForCausalLM"], "model_type": "jais2"}
    return Converted(config | _rotary(model), made)


def _own(model: ModelConfig, weights: Tensors) -> Converted:
    config = {
        "architectures": [OWN_CLASS],
        "auto_map": {
            "AutoConfig": "modeling_gpt.CharacterGPTConfig",
            "AutoModelForCausalLM": f"modeling_gpt.{OWN_CLASS}",
        },
        "model_type": "character_gpt",
        "max_position_embeddings": model.T,
        "hidden_size": model.C,
        "num_hidden_layers": 1 + model.ensemble * model.n_layer,
        "num_attention_heads": model.n_head,
    }
    same = (
        "n_layer", "ensemble", "head_size", "value_size", "positions", "qk_norm",
        "attention_scale", "key_offset", "qkv_bias", "ngram", "activation",
    )  # fmt: skip
    prefix = "members.0." if member_prefixes(model) == [""] else ""
    return Converted(
        config | model.model_dump(include=set(same)),
        {f"{prefix}{name}": weight for name, weight in weights.items()},
    )


def _rotary(model: ModelConfig) -> dict[str, Any]:
    """Return the settings that the classes with rotary positions share."""
    return {
        "hidden_size": model.C,
        "intermediate_size": 4 * model.C,
        "num_hidden_layers": model.n_layer,
        "num_attention_heads": model.n_head,
        "hidden_act": "relu2" if model.activation == "relu2" else "gelu_pytorch_tanh",
        "max_position_embeddings": model.T,
        "rope_theta": 10000.0,
    }


def rename_layers(weights: Tensors, names: dict[str, str]) -> Tensors:
    """Rename layers by `names`, which maps old to new names; leave out all other layers."""
    parameters = {}
    for name, weight in weights.items():
        match = re.fullmatch(r"(?:blocks\.(\d+)\.)?(.+)\.(weight|bias)", name)
        if match and match[2] in names:
            parameters[f"{names[match[2]].format(i=match[1])}.{match[3]}"] = weight
    return parameters


def scaled_qkv(model: ModelConfig, weights: Tensors, i: int) -> tuple[Array, Array]:
    """Return block i's weight (3, C, C) and bias (3, C) for queries, keys and values.

    Without QK norm, the queries are multiplied by `attention_scale`, because the target
    formats have no such setting. The arrays are copies.

    Args:
        model: a config whose heads have C / n_head channels.
        weights: the parameters by name.
        i: the index of the block.
    """
    layer = f"blocks.{i}.attention.qkv"
    weight = weights[f"{layer}.weight"].reshape(3, model.C, model.C).copy()
    bias = weights.get(f"{layer}.bias", np.zeros(3 * model.C, np.float32)).reshape(3, -1).copy()
    if not model.qk_norm:
        weight[0] *= model.attention_scale
        bias[0] *= model.attention_scale
    return weight, bias
