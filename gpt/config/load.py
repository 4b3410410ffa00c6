"""Resolve a config from defaults, a YAML file and `--set`."""

import os
import re
import reprlib
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpt.config.mistakes import explain, mistakes_in
from gpt.config.schema import SETTINGS, Config, TrainConfig, flat
from gpt.config.train_config import MAX_RATE
from gpt.config.yaml import has_comment, parse, read_yaml
from gpt.errors import ConfigError, shown, unescaped

PACKAGE = Path(__file__).parents[1]
SHIPPED = PACKAGE / "configs"  # in an installed wheel
if not SHIPPED.is_dir():
    SHIPPED = PACKAGE.parent / "configs"  # in a clone

MAX_SHOWN_MISTAKES = 10  # mistakes that a message lists
ESCAPED = ("data.separator", "data.column")  # the other texts are names, without line ends
_QUOTED = re.compile(r"""\"([^"\\\n\r\x85\u2028\u2029]|\\.)*\"|'([^'\n\r\x85\u2028\u2029]|'')*'""")
_WORD = re.compile(r"[-+.\w]+")

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
        overrides: settings to change; train.learning_rate also scales train.muon_learning_rate.
        source: a name or several, in place of `data.source`.
        init_from: a run, in place of `train.init_from`.
        inherit: returns the settings that a run to fine-tune has in place of the defaults.

    Raises:
        ConfigError: the file, keys or values are wrong; the message lists all mistakes.
    """
    if not isinstance(base, Config | str | Path | None):
        raise ConfigError(f"config: expected a Config, a str or a Path, got {shown(repr(base))}")
    tree = _tree(base)
    below = dict(tree)  # the settings without the overrides
    overridden = set[str]()

    def origin(key: str) -> str:
        set_here = any(f"{other}.".startswith(f"{key}.") for other in overridden)
        return "" if set_here or not isinstance(base, str | Path) else f"{shown(str(base))}: "

    changes: list[Override] = [*overrides]
    if source is not None:
        changes.append(("data.source", source if isinstance(source, str) else [*source]))
    if init_from is not None:
        changes.append(("train.init_from", init_from))
    for key, value in map(assignment, changes):
        _put(tree, key, value, origin)
        overridden.add(key)
    run = flat(tree).get("train.init_from")
    if inherit is not None and isinstance(run, str) and run:  # validation refuses other values
        inherited = inherit(run)
        tree, below = _merged(inherited, tree), _merged(inherited, below)
    if "train.learning_rate" in overridden and "train.muon_learning_rate" not in overridden:
        _keep_muon_ratio(tree["train"], below.get("train") or {})
    try:
        return Config.model_validate(_without_nulls(tree))
    except ValidationError as error:
        found = explain(error)
        lines = [f"{origin(key)}{message}" for key, message in islice(found, MAX_SHOWN_MISTAKES)]
        if (count := len(mistakes_in(error))) > MAX_SHOWN_MISTAKES:
            lines.append(f"{count:,} mistakes in all; these are the first {MAX_SHOWN_MISTAKES}")
        raise ConfigError(*lines) from None


def _tree(base: Config | Path | str | None) -> dict[str, Any]:
    """Return the settings that a config, or a file, sets explicitly."""
    if isinstance(base, Config):
        return base.model_dump(exclude_unset=True)
    return {} if base is None else read_yaml(_find(Path(base)))


def _keep_muon_ratio(train: dict[str, Any], below: dict[str, Any]) -> None:
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
    return {*_given(base, overrides)}


def keys_set_by(overrides: Sequence[Override]) -> set[str]:
    """Return the dotted keys that `overrides` set to a value other than null."""
    return {key for key, value in _given(None, overrides).items() if value is not None}


def _given(base: Config | Path | str | None, overrides: Sequence[Override]) -> dict[str, Any]:
    tree = _tree(base)
    for key, value in map(assignment, overrides):
        _put(tree, key, value, lambda key: "")
    return flat(tree)


def check_effects(config: Config, given: Collection[str]) -> None:
    """Raise ConfigError if one of the keys in `given` has no effect in `config`."""
    for key, advice in config.unused_settings().items():
        if key in given:
            raise ConfigError(f"{key} has no effect: {advice}")


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

    `null` is None: the default. YAML is parsed if the text is in quotation marks, or is a list of
    texts for a setting that takes a list, or for a sweep. Any other value of a text setting is
    taken as typed (`unescaped` if it is in ESCAPED). Other settings get a number, a boolean or a
    word. Raises ConfigError if YAML is invalid or has a comment, which would be lost.
    """
    kinds = SETTINGS[key].kinds if key in SETTINGS else frozenset()
    takes_text = str in kinds and int not in kinds
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
            if tuple in kinds:
                raise ConfigError(
                    f"""{error}; put quotation marks around each text, as in ["*.md", "!a.md"]"""
                ) from None
        else:
            if tuple in kinds or len(values) > 1:
                return values
    if takes_text:
        return unescaped(text) if key in ESCAPED else text
    if text[:1] in ("[", "{"):
        return _parsed(text, origin)
    value = parse(text, origin) if _WORD.fullmatch(text) else None
    return value if isinstance(value, bool | int | float) else text


def _parsed(text: str, origin: str) -> Any:
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
