"""Messages for mistakes in a config, with the setting that the user probably meant."""

import difflib
import re
import reprlib
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from gpt.config.schema import SETTINGS, Config
from gpt.errors import command, shown

MAX_COMPARED_KEY = 100  # only this many characters of an unknown key are compared with known keys
OTHER_NAMES = {  # names that other projects use for a setting
    "data.source": "dataset corpus input text",
    "model.C": "d_model embed_dim embedding_dim hidden_dim hidden_size n_embd n_embed width",
    "model.T": "block_size context context_length max_seq_len n_ctx n_positions seq_len",
    "model.n_head": "heads num_attention_heads num_heads",
    "model.n_layer": "depth layers num_hidden_layers num_layers",
    "sample.length": "max_length max_new_tokens",
    "sample.temperature": "temp",
    "train.accumulation": "grad_accum gradient_accumulation_steps",
    "train.batch_size": "bs batch micro_batch_size per_device_train_batch_size",
    "train.checkpoint_every": "save_every save_interval save_steps",
    "train.eval_every": "eval_interval eval_steps",
    "train.grad_clip": "clip max_grad_norm max_norm",
    "train.learning_rate": "lr max_lr peak_lr",
    "train.min_learning_rate": "min_lr",
    "train.steps": "epochs iterations iters max_epochs max_iters num_steps",
    "train.warmup_steps": "warmup warmup_iters",
    "train.weight_decay": "wd",
}


def explain(error: ValidationError, section: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the message of each mistake that pydantic found in a config.

    If only a section was validated, `section` is the prefix of its keys, such as `sample.`.
    """
    for mistake in error.errors(include_url=False):
        if mistake["type"] != "default_factory_not_called":  # always caused by another mistake
            key = section + ".".join(map(str, mistake["loc"]))
            yield key, _message(shown(key), mistake)


def _message(key: str, mistake: Any) -> str:
    kind, got = mistake["type"], reprlib.repr(mistake["input"])
    if kind == "extra_forbidden":
        near = nearest_setting(key)
        help_all = command("train", "--help-all")
        advice = f"did you mean {near}?" if near else f"{help_all} lists the keys"
        return f"{key}: unknown key; {advice}"
    if kind == "value_error":
        reason = str(mistake["ctx"]["error"])
        is_cross_field = isinstance(mistake["input"], dict) and reason.startswith(key)
        return reason if is_cross_field else f"{key}: {reason}, got {got}"
    if kind == "model_type":
        return f"{key}: expected keys below `{key}:`, got {got}"
    expected = re.sub("Input should be|String should have", "expected", mistake["msg"])
    expected = expected.replace("a valid boolean", "true or false")
    return f"{key}: {expected}, got {got}"


def nearest_setting(name: str) -> str | None:
    """Return the key of the setting or section that `name` probably means, or None."""
    section, _, leaf = name[:MAX_COMPARED_KEY].replace("-", "_").lower().rpartition(".")
    others = (key for key, names in OTHER_NAMES.items() if leaf in names.split())
    if key := next(others, None):
        return key
    keys = [*SETTINGS, *Config.model_fields]
    for candidates in ([key for key in keys if key.startswith(f"{section}.")], keys):
        by_leaf = {key.rpartition(".")[2].lower(): key for key in candidates}
        if near := difflib.get_close_matches(leaf, by_leaf, n=1):
            return by_leaf[near[0]]
    return None
