"""Resolve a config from defaults, a YAML file and `--set`, and explain all mistakes in it."""

import difflib
import os
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpt.config.schema import LARGEST, REPLACED_PENALTY, Config, TrainConfig, fields, kinds
from gpt.config.yaml import has_comment, parse, read_yaml
from gpt.errors import ConfigError, command, shown, unescaped

PACKAGE = Path(__file__).parents[1]
SHIPPED = PACKAGE / "configs"  # in an installed wheel
if not SHIPPED.is_dir():
    SHIPPED = PACKAGE.parent / "configs"  # in a clone


MISTAKES_SHOWN = 10
MAX_LISTED_KEYS = 20  # keys of a section that a message lists
LONGEST_KEY = 100  # characters of an unknown key that are compared with known ones
OTHER_NAMES = {  # names of the settings in nanoGPT, litgpt, Hugging Face and textbooks
    "data.source": "dataset corpus input text",
    "model.T": "block_size context context_length context_size context_window max_seq_len "
    "max_seq_length n_ctx n_positions seq_len seq_length sequence_length",
    "model.C": "d_model dim embed_dim emb_dim embedding_dim embedding_size hidden_dim hidden_size "
    "n_embd n_embed width",
    "model.n_layer": "depth layers n_layers num_hidden_layers num_layers",
    "model.n_head": "heads n_heads num_attention_heads num_heads",
    "model.head_size": "d_head head_dim",
    "model.dropout": "drop_rate dropout_rate",
    "model.qkv_bias": "bias",
    "train.steps": "epochs iterations iters max_epochs max_iterations max_iters n_epochs "
    "num_epochs num_iters num_steps num_train_epochs train_steps",
    "train.batch_size": "bs batch micro_batch_size per_device_train_batch_size",
    "train.accumulation": "grad_accum gradient_accumulation_steps",
    "train.learning_rate": "lr max_lr peak_lr",
    "train.min_learning_rate": "min_lr",
    "train.weight_decay": "wd",
    "train.grad_clip": "clip gradient_clip_val max_grad_norm max_norm",
    "train.warmup_steps": "warmup warmup_iters",
    "train.decay": "lr_scheduler scheduler",
    "train.precision": "dtype",
    "train.eval_every": "eval_interval eval_steps",
    "train.eval_characters": "eval_iters",
    "train.log_every": "log_interval logging_steps",
    "train.checkpoint_every": "save_every save_interval save_steps",
    "train.patience": "early_stopping",
    "sample.length": "max_length max_new_tokens",
    "seed": "manual_seed random_seed",
    "threads": "num_threads",
}
_QUOTED = re.compile(r"""\"([^"\\\n\r\x85\u2028\u2029]|\\.)*\"|'([^'\n\r\x85\u2028\u2029]|'')*'""")
_WORD = re.compile(r"[-+.\w]+")
_ESCAPED = ("data.separator", "data.column")  # other texts are names, which have no line ends

Override = str | tuple[str, Any]
"""One setting: `section.key=value` as typed, or a pair of a dotted key and its value."""


def load_config(
    base: Config | Path | str | None,
    overrides: Sequence[Override] = (),
    source: str | Sequence[str] | None = None,
    *,
    init_from: str | None = None,
    inherit: Callable[[str], dict[str, Any]] | None = None,
) -> Config:
    """Return the config of the defaults, a YAML file and overrides; later ones take precedence.

    Args:
        base: a file, the name of a shipped config such as quickstart, or a Config.
        overrides: `section.key=value` as typed (see `typed_value`), or (key, value). An override of
            `train.learning_rate` alone also scales `train.muon_learning_rate`.
        source: a name or several, in place of `data.source`.
        init_from: a run, in place of `train.init_from`.
        inherit: called with the name of the run to fine-tune; returns a tree of settings to use in
            place of the defaults.

    Raises:
        ConfigError: the file is missing or not YAML, or keys or values are wrong. The message lists
            all of them.
    """
    if not isinstance(base, Config | str | Path | None):
        raise ConfigError(f"config: expected a Config, a str or a Path, got {shown(repr(base))}")
    tree = _tree(base)
    below = dict(tree)  # the settings without the overrides
    overridden = set[str]()

    def origin(key: str) -> str:
        set_here = any(f"{other}.".startswith(f"{key}.") for other in overridden)
        return "" if set_here or not isinstance(base, str | Path) else f"{shown(str(base))}: "

    assignments = [assignment(override) for override in overrides]
    if source is not None:
        assignments.append(("data.source", source if isinstance(source, str) else [*source]))
    if init_from is not None:
        assignments.append(("train.init_from", init_from))
    for key, value in assignments:
        _put(tree, key, value, origin)
        overridden.add(key)
    if inherit is not None and (run := _run_to_fine_tune(tree)) is not None:
        inherited = inherit(run)
        tree, below = _merged(inherited, tree), _merged(inherited, below)
    if "train.learning_rate" in overridden and "train.muon_learning_rate" not in overridden:
        _keep_muon_ratio(tree["train"], below.get("train"))
    try:
        return Config.model_validate(_without_nulls(tree))
    except ValidationError as error:
        found = explain(error)
        lines = [f"{origin(key)}{message}" for key, message in islice(found, MISTAKES_SHOWN)]
        if (count := len(_mistakes(error))) > MISTAKES_SHOWN:
            lines.append(f"{count:,} mistakes in all; these are the first {MISTAKES_SHOWN}")
        raise ConfigError(*lines) from None


def _tree(base: Config | Path | str | None) -> dict[str, Any]:
    """Return the settings that a config, or a file, sets explicitly."""
    if isinstance(base, Config):
        return base.model_dump(exclude_unset=True)
    return {} if base is None else read_yaml(_find(Path(base)))


def _keep_muon_ratio(train: dict[str, Any], below: Any) -> None:
    """Scale `muon_learning_rate` in `train` by the factor by which `learning_rate` is overridden.

    `below` is the section without overrides. If it has no Muon rate, the default is in proportion.
    """
    default = TrainConfig().learning_rate
    muon, before = (below or {}).get("muon_learning_rate"), (below or {}).get("learning_rate")
    rates: tuple[Any, ...] = (muon, before or default, train.get("learning_rate") or default)
    if all(type(rate) in (int, float) and rate > 0 for rate in rates):  # else validation fails
        train["muon_learning_rate"] = rates[0] * (rates[2] / rates[1])


def keys_set_by(overrides: Sequence[Override]) -> set[str]:
    """Return the dotted keys that `overrides` set to a value.

    Raises:
        ConfigError: an override has no key, or invalid YAML.
    """
    tree: dict[str, Any] = {}
    for key, value in map(assignment, overrides):
        _put(tree, key, value, lambda key: "")
    return {*_leaves(_without_nulls(tree))}


def keys_given(base: Config | Path | str | None, overrides: Sequence[Override]) -> set[str]:
    """Return the dotted keys that a config or its overrides contain, including null ones."""
    tree = _tree(base)
    for key, value in map(assignment, overrides):
        _put(tree, key, value, lambda key: "")
    return {*_leaves(tree)}


def check_effects(config: Config, given: Collection[str]) -> None:
    """Raise ConfigError if one of the keys in `given` has no effect in `config`."""
    data, train, every = config.data, config.train, config.train.eval_every
    part = float(every.removesuffix(" %")) / 100 if isinstance(every, str) else every / train.steps
    evaluations, patience = ceil(1 / part), train.patience or 0
    most = LARGEST if train.max_steps is None else train.max_steps
    for key, has_none, advice in (
        (
            "train.max_steps",
            most < LARGEST and train.minutes is None and not train.plans,
            "it limits the steps of a run of some minutes; set --minutes, or train.steps instead",
        ),
        (
            "train.warmup_steps",
            train.warmup_steps > most,
            f"{train.warmup_steps} steps of warmup are more than train.max_steps ({most}) allows; "
            f"set fewer",
        ),
        (
            "train.muon_learning_rate",
            train.optimizer == "adamw",
            "train.optimizer is adamw; set train.learning_rate instead",
        ),
        (
            "train.distill_weight",
            train.distill is None,
            "there is no train.distill; name the run to distill, or leave it out",
        ),
        (
            "train.patience",
            patience > evaluations,
            f"the run has {evaluations} evaluations after the first, fewer than {patience}; set a "
            f"smaller train.patience or train.eval_every",
        ),
        (
            "data.val_fraction",
            data.val_source is not None,
            "all of data.val_source is val; leave out one of the two",
        ),
    ):
        if has_none and key in given:
            raise ConfigError(f"{key} has no effect: {advice}")


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _find(path: Path) -> Path:
    """Return the file at `path`, else the shipped config of that name."""
    if os.path.exists(path) and not (path.is_dir() and str(path) in _shipped()):  # noqa: PTH110 (no errors)
        return path
    if str(path) in _shipped():
        return SHIPPED / f"{path}.yaml"
    raise ConfigError(
        f"{shown(str(path))}: no such config file; expected the path of one, or the name of a "
        f"shipped config: {', '.join(_shipped())}"
    )


def _shipped() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def _run_to_fine_tune(tree: dict[str, Any]) -> str | None:
    train = tree.get("train")
    run = train.get("init_from") if isinstance(train, dict) else None
    return run if isinstance(run, str) and run else None  # validation refuses other types


def _merged(below: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """Merge `tree` into `below`; a null in `tree` stands for the default."""
    merged = below | tree
    for key in below.keys() & tree.keys():
        if isinstance(below[key], dict) and isinstance(tree[key], dict | None):
            merged[key] = _merged(below[key], tree[key] or {})
    return merged


def _without_nulls(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree without empty keys and sections, which stand for defaults."""
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def assignment(override: Override) -> tuple[str, Any]:
    """Return the key and the value of an override."""
    if not isinstance(override, str):
        return override
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(
            f"--set {shown(override)}: expected SECTION.KEY=VALUE, such as --set train.steps=500"
        )
    return key, typed_value(key, text)


def typed_value(key: str, text: str) -> Any:
    """Return the value that `--set KEY=TEXT` gives to the setting `key`.

    `null` is None: the default. A text in quotation marks, and a list where the setting takes one
    or where it has several values (a sweep), are parsed as YAML. Other values of text settings are
    taken as typed, except that `data.separator` and `data.column` have escapes (see `unescaped`).
    Other settings get a number, a boolean or a word.

    Raises:
        ConfigError: the text must be YAML and is not, or has a comment, which would be lost.
    """
    of = kinds(key)
    takes_text = str in of and int not in of
    text = text if takes_text else text.strip()
    origin = f"--set {shown(f'{key}={text}')}"
    if text == "null":
        return None
    if _QUOTED.fullmatch(text):
        return parse(text, origin)
    if takes_text and text[:1] == "[" and text[-1:] == "]":
        try:
            values = _parsed(text, origin)
        except ConfigError as error:
            if tuple in of:
                raise ConfigError(
                    f"""{error}; put quotation marks around each text, as in ["*.md", "!a.md"]"""
                ) from None
        else:
            if tuple in of or len(values) > 1:
                return values
    if takes_text:
        return unescaped(text) if key in _ESCAPED else text
    if text[:1] in ("[", "{"):
        return _parsed(text, origin)
    value = parse(text, origin) if _WORD.fullmatch(text) else None
    return value if isinstance(value, bool | int | float) else text


def _parsed(text: str, origin: str) -> Any:
    """Parse YAML; raise ConfigError if it has comments, which would be lost."""
    value = parse(text, origin)
    if has_comment(text):
        raise ConfigError(f"{origin}: expected no comment; put texts with # in quotation marks")
    return value


def _put(tree: dict[str, Any], key: str, value: Any, origin: Callable[[str], str]) -> None:
    *parents, name = key.split(".")
    for depth, parent in enumerate(parents, start=1):
        child = tree.get(parent)
        if child is not None and not isinstance(child, dict):
            section = ".".join(parents[:depth])
            raise ConfigError(
                f"{origin(section)}{section}: expected keys below `{section}:`, got "
                f"{reprlib.repr(child)}; leave out that, or {key}"
            )
        tree[parent] = tree = dict(child or {})
    tree[name] = value


def explain(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the message of each mistake in a config."""
    return ((_key(mistake), _message(mistake)) for mistake in _mistakes(error))


def _mistakes(error: ValidationError) -> list[Any]:
    """Return the mistakes that pydantic found, without those that follow from others."""
    found = error.errors(include_url=False)
    return [each for each in found if each["type"] != "default_factory_not_called"]


def _key(mistake: Any) -> str:
    return ".".join(map(str, mistake["loc"]))


def _message(mistake: Any) -> str:
    """Return a message about one mistake: the key, what was expected and what was found."""
    key, kind, got = shown(_key(mistake)), mistake["type"], reprlib.repr(mistake["input"])
    if kind == "extra_forbidden" and any("." in str(name) for name in mistake["loc"]):
        return f"{key}: expected nested keys, {_nested(key)}, got one with a dot"
    if kind == "extra_forbidden" and mistake["loc"][-1] == REPLACED_PENALTY:
        section = key.removesuffix(REPLACED_PENALTY)
        return (
            f"{key}: no longer exists; delete it, or use {section}presence_penalty or "
            f"{section}frequency_penalty, which are subtracted from logits (0: no effect)"
        )
    if kind == "extra_forbidden":
        return f"{key}: unknown key; {_suggestion(key)}"
    if kind == "value_error":
        reason = str(mistake["ctx"]["error"])
        is_cross_field = isinstance(mistake["input"], dict) and reason.startswith(key)
        return reason if is_cross_field else f"{key}: {reason}, got {got}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{key}: expected keys below `{key}:`, got {got}"
    if kind == "string_too_short":
        return f"{key}: expected a text that is not empty, got {got}"
    return f"{key}: {mistake['msg'].replace('Input should be', 'expected')}, got {got}"


def _nested(key: str) -> str:
    """Return a dotted key as nested YAML: `train: {steps: ...}`."""
    *sections, name = key.split(".")
    return f"`{''.join(f'{section}: {{' for section in sections)}{name}: ...{'}' * len(sections)}`"


def _suggestion(key: str) -> str:
    if near := nearest_setting(key):
        return f"did you mean {near}?"
    section = key.rpartition(".")[0]
    known = [name for name, *_ in fields(Config())]
    siblings = [name for name in known if name.startswith(f"{section}.")] if section else []
    siblings = siblings or [*Config.model_fields]
    if len(siblings) > MAX_LISTED_KEYS:
        return f"{command('train', '--help-all')} lists the keys"
    return f"the keys are {', '.join(siblings)}"


def nearest_setting(name: str, cutoff: float = 0.6) -> str | None:
    """Return the key that is most similar to `name`; None if none is.

    Args:
        name: a key, with or without a section. Names in other projects are recognised: `n_embd` and
            `train.n_embd` are model.C.
        cutoff: the least similarity, see `difflib.get_close_matches`.
    """
    known = [key for key, *_ in fields(Config())]
    by_leaf = {key.rpartition(".")[2]: key for key in known}
    by_leaf |= {name: name for name in Config.model_fields}
    name = name[:LONGEST_KEY].replace("-", "_")
    leaf = name.rpartition(".")[2]
    if leaf in by_leaf:
        return by_leaf[leaf]
    for key, others in OTHER_NAMES.items():
        if leaf.lower() in others.split():
            return key
    if near := difflib.get_close_matches(name, known, n=1, cutoff=max(cutoff, 0.75)):
        return near[0]
    near = difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=cutoff)
    return by_leaf[near[0]] if near else None
