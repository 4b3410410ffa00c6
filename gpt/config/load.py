"""Resolve a config from defaults, a YAML file and `--set`."""

import os
import re
import reprlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpt.config.mistakes import explain, mistakes_in
from gpt.config.schema import SETTINGS, Config, TrainConfig, flat
from gpt.config.train_config import MAX_RATE
from gpt.config.yaml import parse
from gpt.errors import ConfigError, shown, unescaped
from gpt.files import read_bounded

PACKAGE = Path(__file__).parents[1]
SHIPPED = PACKAGE / "configs"  # in an installed wheel
if not SHIPPED.is_dir():
    SHIPPED = PACKAGE.parent / "configs"  # in a clone

MAX_FILE_BYTES = 2**20  # size of a config file
MAX_SHOWN_MISTAKES = 10  # mistakes that a message lists
_QUOTED = re.compile(r"""\"([^"\\\n\r\x85\u2028\u2029]|\\.)*\"|'([^'\n\r\x85\u2028\u2029]|'')*'""")

Override = str | tuple[str, Any]
"""One setting: `section.key=value` as typed, or a pair of a dotted key and its value."""
Tree = dict[str, Any]
"""Settings as in a file: values by key, nested by section."""


def load_config(
    base: Config | Path | str | None,
    overrides: Sequence[Override] = (),
    *,
    inherit: Callable[[str], Tree] | None = None,
) -> Config:
    """Return the config of the defaults, a YAML file and overrides; later ones take precedence.

    Args:
        base: a file, the name of a shipped config such as quickstart, or a Config.
        overrides: settings to change; train.learning_rate also scales train.muon_learning_rate.
        inherit: returns the settings that a run to fine-tune has in place of the defaults.

    Raises:
        ConfigError: the file, keys or values are wrong; the message lists all mistakes.
    """
    below = _tree(base)
    changes = dict(map(assignment, overrides))
    tree = _changed(below, changes)
    run = flat(tree).get("train.init_from")
    if inherit is not None and isinstance(run, str) and run:  # validation refuses other values
        inherited = inherit(run)
        tree, below = _merged(inherited, tree), _merged(inherited, below)
    if "train.learning_rate" in changes and "train.muon_learning_rate" not in changes:
        _keep_muon_ratio(tree["train"], below.get("train") or {})
    try:
        return Config.model_validate(_without_nulls(tree))
    except ValidationError as error:
        lines = []
        for key, message in islice(explain(error), MAX_SHOWN_MISTAKES):
            in_file = isinstance(base, str | Path) and not any(
                f"{change}.".startswith(f"{key}.") for change in changes
            )
            lines.append(f"{shown(str(base))}: {message}" if in_file else message)
        if (count := len(mistakes_in(error))) > MAX_SHOWN_MISTAKES:
            lines.append(f"{count:,} mistakes in all; these are the first {MAX_SHOWN_MISTAKES}")
        raise ConfigError(*lines) from None


def _keep_muon_ratio(train: Tree, below: Tree) -> None:
    """Scale `muon_learning_rate` by the factor between the learning rates in `below` and `train`.

    `below` is the section without overrides. If it has no Muon rate, the default is in proportion.
    """
    default = TrainConfig().learning_rate
    rates: list[Any] = [below.get("muon_learning_rate")]
    rates += [section.get("learning_rate") or default for section in (below, train)]
    if all(type(rate) in (int, float) and rate > 0 for rate in rates):  # else validation fails
        muon, before, after = rates
        train["muon_learning_rate"] = min(muon * (after / before), MAX_RATE)


def keys_given(base: Config | Path | str | None, overrides: Sequence[Override]) -> set[str]:
    """Return the dotted keys that a config or its overrides contain, including null ones."""
    return {*flat(_changed(_tree(base), dict(map(assignment, overrides))))}


def keys_set_by(overrides: Sequence[Override]) -> set[str]:
    """Return the dotted keys that `overrides` set to a value other than null."""
    return {*flat(_without_nulls(_changed({}, dict(map(assignment, overrides)))))}


def check_effects(config: Config, given: Collection[str]) -> None:
    """Raise ConfigError if one of the keys in `given` has no effect in `config`."""
    train, warmup = config.train, config.train.warmup_steps
    exceeds = train.max_steps is not None and warmup > train.max_steps
    for key, is_unused, reason in (
        ("train.max_steps", train.minutes is None and not train.plans, "it limits --minutes"),
        ("train.warmup_steps", exceeds, "it is more than train.max_steps"),
        ("train.muon_learning_rate", train.optimizer == "adamw", "train.optimizer is adamw"),
        ("data.val_fraction", config.data.val_source is not None, "data.val_source is all of val"),
    ):
        if is_unused and key in given:
            raise ConfigError(f"{key} has no effect: {reason}; leave out one of the two")


def _tree(base: Config | Path | str | None) -> Tree:
    """Return the settings that a config, or a file, sets explicitly."""
    if base is None:
        return {}
    if isinstance(base, Config):
        return base.model_dump(exclude_unset=True)
    if not isinstance(base, str | Path):
        raise ConfigError(f"config: expected a Config, a str or a Path, got {shown(repr(base))}")
    shipped = {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}
    path = Path(base)
    if not os.path.exists(path) or path.is_dir():  # noqa: PTH110 (no errors)
        path = shipped.get(str(base), path)
    origin = shown(str(path))
    try:
        content = read_bounded(path, MAX_FILE_BYTES)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"{origin}: expected a config of at most 1 MiB, got a larger file")
        tree = parse(content.decode(), origin)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{origin}: expected UTF-8 text, got {error}") from None
    except OSError as error:
        raise ConfigError(
            f"{origin}: cannot read the config ({error.strerror}); expected a file, or the name of "
            f"a shipped config: {', '.join(shipped)}"
        ) from None
    if not isinstance(tree, dict | None):
        raise ConfigError(
            f"{origin}: expected keys such as `model:` and `train:`, got {reprlib.repr(tree)}"
        )
    return tree or {}


def _changed(tree: Tree, changes: Tree) -> Tree:
    """Return a copy of `tree` with `changes`, which are by dotted key."""
    tree = dict(tree)
    for key, value in changes.items():
        *parents, name = key.split(".")
        section = tree
        for parent in parents:
            child = section.get(parent)
            if not isinstance(child, dict | None):
                raise ConfigError(
                    f"{key}: expected keys below `{parent}:`, got {reprlib.repr(child)}"
                )
            section[parent] = section = dict(child or {})
        section[name] = value
    return tree


def _merged(below: Tree, tree: Tree) -> Tree:
    """Merge `tree` into `below`; a null in `tree` stands for the default."""
    merged = below | tree
    for key in below.keys() & tree.keys():
        if isinstance(below[key], dict) and isinstance(tree[key], dict | None):
            merged[key] = _merged(below[key], tree[key] or {})
    return merged


def _without_nulls(tree: Tree) -> Tree:
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
    r"""Return the value that `--set KEY=TEXT` gives to the setting `key`.

    `null` is None: the default. YAML is parsed if the text is in quotation marks, or is a list of
    texts for a setting that takes a list, or for a sweep. Any other value of a text setting is
    taken as typed, but `\n` is a line end in a separator or column. Other settings get a number, a
    boolean or a word.

    Raises:
        ConfigError: the YAML is invalid.
    """
    kinds = SETTINGS[key].kinds if key in SETTINGS else set()
    takes_text, takes_list = str in kinds and int not in kinds, tuple in kinds
    text = text if takes_text else text.strip()
    origin = f"--set {shown(f'{key}={text}')}"
    if text == "null":
        return None
    if _QUOTED.fullmatch(text):
        return parse(text, origin)
    if not takes_text:
        is_yaml = text[:1] in ("[", "{") or re.fullmatch(r"[-+.\w]+", text)
        value = parse(text, origin) if is_yaml else None
        return text if value is None or isinstance(value, str) else value
    if text[:1] == "[" and text[-1:] == "]":
        if takes_list:
            return parse(text, origin)
        with suppress(ConfigError):
            if len(values := parse(text, origin)) > 1:  # for a sweep
                return values
    is_escaped = key in (
        "data.separator",
        "data.column",
    )  # other texts are names, without line ends
    return unescaped(text) if is_escaped else text
