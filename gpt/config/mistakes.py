"""Explain mistakes in a config, and find the setting that was meant."""

import difflib
import reprlib
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from gpt.config.removed import REMOVED
from gpt.config.schema import SETTINGS, Config
from gpt.errors import command, shown

MAX_LISTED_KEYS = 20  # keys of a section that a message lists
MAX_COMPARED_KEY = 100  # characters of an unknown key that are compared with known ones
OTHER_NAMES = {  # of settings in other projects
    "data.source": "dataset corpus input text",
    "model.C": "d_model embed_dim embedding_dim hidden_dim hidden_size n_embd n_embed width",
    "model.T": "block_size context context_length max_seq_len n_ctx n_positions seq_len",
    "model.n_head": "heads num_attention_heads num_heads",
    "model.n_layer": "depth layers num_hidden_layers num_layers",
    "sample.length": "max_length max_new_tokens",
    "train.accumulation": "grad_accum gradient_accumulation_steps",
    "train.batch_size": "bs batch micro_batch_size per_device_train_batch_size",
    "train.checkpoint_every": "save_every save_interval save_steps",
    "train.eval_every": "eval_interval eval_steps",
    "train.grad_clip": "clip max_grad_norm max_norm",
    "train.learning_rate": "lr max_lr peak_lr",
    "train.log_every": "log_interval logging_steps",
    "train.min_learning_rate": "min_lr",
    "train.steps": "epochs iterations iters max_epochs max_iters num_steps",
    "train.warmup_steps": "warmup warmup_iters",
    "train.weight_decay": "wd",
}


def mistakes_in(error: ValidationError) -> list[Any]:
    """Return the mistakes that pydantic found, without those that follow from others."""
    found = error.errors(include_url=False)
    return [each for each in found if each["type"] != "default_factory_not_called"]


def explain(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the message of each mistake that pydantic found in a config."""
    for mistake in mistakes_in(error):
        key = ".".join(map(str, mistake["loc"]))
        yield key, _message(shown(key), mistake)


def _message(key: str, mistake: Any) -> str:
    """Return the message for one of pydantic's mistakes: what was expected and what was found."""
    kind, got = mistake["type"], reprlib.repr(mistake["input"])
    if kind == "extra_forbidden":
        return f"{key}: {_advice_for_unknown(key)}"
    if kind == "value_error":
        reason = str(mistake["ctx"]["error"])
        is_cross_field = isinstance(mistake["input"], dict) and reason.startswith(key)
        return reason if is_cross_field else f"{key}: {reason}, got {got}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{key}: expected keys below `{key}:`, got {got}"
    if kind == "string_too_short":
        return f"{key}: expected a text that is not empty, got {got}"
    return f"{key}: {mistake['msg'].replace('Input should be', 'expected')}, got {got}"


def _advice_for_unknown(key: str) -> str:
    if key in SETTINGS:
        return "expected nested keys, such as `train: {steps: 500}`, got one with a dot"
    if key in REMOVED:
        return "no longer exists; delete it"
    if near := nearest_setting(key):
        return f"unknown key; did you mean {near}?"
    keys = [each for each in SETTINGS if each.startswith(f"{key.rpartition('.')[0]}.")]
    if len(keys) > MAX_LISTED_KEYS:
        return f"unknown key; {command('train', '--help-all')} lists the keys"
    return f"unknown key; the keys are {', '.join(keys or Config.model_fields)}"


def nearest_setting(name: str, cutoff: float = 0.6) -> str | None:
    """Return the key that is most similar to `name`; None if no key is similar.

    Args:
        name: a key, with or without a section. Names in other projects are recognised: `n_embd` and
            `train.n_embd` are model.C.
        cutoff: smallest similarity, see `difflib.get_close_matches`.
    """
    by_leaf = {key.rpartition(".")[2]: key for key in [*SETTINGS, *Config.model_fields]}
    name = name[:MAX_COMPARED_KEY].replace("-", "_")
    leaf = name.rpartition(".")[2]
    others = (key for key, names in OTHER_NAMES.items() if leaf.lower() in names.split())
    if key := by_leaf.get(leaf) or next(others, None):
        return key
    if near := difflib.get_close_matches(name, SETTINGS, n=1, cutoff=max(cutoff, 0.75)):
        return near[0]
    near = difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=cutoff)
    return by_leaf[near[0]] if near else None
