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

from gpt.config.mistakes import explain
from gpt.config.schema import SETTINGS, Config, explicit, flat
from gpt.config.train_config import MAX_RATE, TrainConfig
from gpt.config.yaml import parse
from gpt.errors import ConfigError, setting_arguments, shown
from gpt.files import read_bounded

PACKAGE = Path(__file__).parents[1]
SHIPPED = PACKAGE / "configs"  # location in an installed wheel
if not SHIPPED.is_dir():
    SHIPPED = PACKAGE.parent / "configs"  # place in a clone of the repository

MAX_FILE_BYTES = 2**20  # largest size of a config file, in bytes
MAX_SHOWN_MISTAKES = 10  # largest number of mistakes that a message lists

Override = str | tuple[str, Any]
"""One setting: `section.key=value` as typed, or a pair of a dotted key and its value."""
Flat = dict[str, Any]
"""Values of settings by dotted key, such as train.steps. None stands for the default."""


def load_config(
    base: Config | Path | str | None,
    overrides: Sequence[Override] = (),
    *,
    inherit: Callable[[str], Flat] | None = None,
) -> Config:
    """Combine the defaults, a YAML file and overrides into a config; later ones take precedence.

    Args:
        base: the path of a YAML file, the name of a shipped config such as `quickstart`, a Config,
            or None for the defaults.
        overrides: settings to change. If they set `train.learning_rate`, but not
            `train.muon_learning_rate`, both rates are scaled by the same factor.
        inherit: function for fine-tuning. It takes the value of `train.init_from`, the name of a
            run, and returns settings that replace the defaults.

    Raises:
        ConfigError: the file, keys or values are wrong; the message lists the first mistakes.
    """
    settings, changes = _settings(base), _changes(overrides)
    run = (settings | changes).get("train.init_from")
    if inherit is not None and isinstance(run, str) and run:  # a wrong value is refused later
        settings = inherit(run) | settings
    given = settings | changes | _scaled_muon_rate(settings, changes)
    try:
        return Config.model_validate(_nested(given))
    except ValidationError as error:
        lines = []
        for key, message in islice(explain(error), MAX_SHOWN_MISTAKES):
            in_file = isinstance(base, str | Path) and not any(
                f"{change}.".startswith(f"{key}.") for change in changes
            )
            lines.append(f"{shown(str(base))}: {message}" if in_file else message)
        raise ConfigError(*lines) from None


def _scaled_muon_rate(settings: Flat, changes: Flat) -> Flat:
    """Return {key: rate} with Muon's learning rate, scaled by the same factor as AdamW's.

    Return {} if `changes` lack AdamW's rate or contain Muon's, or if `settings` lack Muon's.
    """
    key, rate_key = "train.muon_learning_rate", "train.learning_rate"
    if rate_key in changes and key not in changes and settings.get(key) is not None:
        with suppress(TypeError, ArithmeticError):  # invalid rates fail validation later
            default = TrainConfig().learning_rate
            before, after = (each.get(rate_key) or default for each in (settings, changes))
            return {key: min(settings[key] * (after / before), MAX_RATE)}
    return {}


def keys_given(base: Config | Path | str | None, overrides: Sequence[Override]) -> set[str]:
    """Return the dotted keys that `base` or `overrides` contain, including those set to null."""
    return {*_settings(base), *_changes(overrides)}


def keys_set_by(overrides: Sequence[Override]) -> set[str]:
    """Return the dotted keys that `overrides` set to a value other than null."""
    return {key for key, value in _changes(overrides).items() if value is not None}


def _changes(overrides: Sequence[Override]) -> Flat:
    return flat(dict(map(assignment, overrides)))


def check_effects(config: Config, given: Collection[str]) -> None:
    """Raise ConfigError if one of the keys in `given` has no effect in `config`."""
    train, warmup = config.train, config.train.warmup_steps
    exceeds = train.max_steps is not None and warmup > train.max_steps
    for key, is_unused, reason in (
        ("train.max_steps", train.minutes is None and not train.plans, "train.minutes is null"),
        ("train.warmup_steps", exceeds, "it is more than train.max_steps"),
        ("train.muon_learning_rate", train.optimizer == "adamw", "train.optimizer is adamw"),
        ("train.muon_momentum", train.optimizer == "adamw", "train.optimizer is adamw"),
        ("data.val_fraction", config.data.val_source is not None, "data.val_source is val"),
    ):
        if is_unused and key in given:
            raise ConfigError(
                f"{key} has no effect, because {reason}; leave it out, or change the other setting"
            )


def _settings(base: Config | Path | str | None) -> Flat:
    if base is None:
        return {}
    if isinstance(base, Config):
        return explicit(base)
    if not isinstance(base, str | Path):
        raise ConfigError(f"config: expected a Config, or the name of a file, got {base!r:.100}")
    shipped = {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}
    path = Path(base)
    if not os.path.exists(path) or path.is_dir():  # noqa: PTH110 (Path.exists can raise)
        path = shipped.get(str(base), path)
    origin = shown(str(path))
    is_yaml = path.suffix in (".yaml", ".yml")
    advice = "" if is_yaml else "; if it is a text, pass it as the text, not as the config"
    try:
        tree = parse(read_bounded(path, MAX_FILE_BYTES).decode(), origin)
    except ConfigError as error:
        raise ConfigError(f"{error}{advice}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{origin}: expected UTF-8 text, but {error}; convert it") from None
    except (OSError, ValueError) as error:  # a name with a NUL raises ValueError
        reason = getattr(error, "strerror", error)
        raise ConfigError(
            f"{origin}: cannot read the config ({reason}); expected a file, or the name of a "
            f"shipped config: {', '.join(shipped)}"
        ) from None
    if not isinstance(tree, dict | None):
        raise ConfigError(
            f"{origin}: expected keys such as `model:` and `train:`, got {reprlib.repr(tree)}"
            f"{advice}"
        )
    settings = flat(tree or {})
    has_both = settings.get("train.steps") and settings.get("train.minutes")
    if has_both and not settings.get("train.plans"):  # with `train.plans`, both may be set
        raise ConfigError(
            f"{origin}: expected train.steps or train.minutes, got both; leave out one"
        )
    return settings


def _nested(settings: Flat) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, name = key.split(".")
        section = tree
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise ConfigError(
                    f"{shown(key)}: expected keys below `{parent}:`, got {reprlib.repr(section)}"
                )
        if value is not None:
            section[name] = value
    return tree


def assignment(override: Override) -> tuple[str, Any]:
    """Parse an override, such as `train.steps=500`, into its dotted key and its value."""
    if isinstance(override, tuple):
        return override
    key, equals, text = override.partition("=") if isinstance(override, str) else ("", "", "")
    if not equals or not key:
        given = shown(str(override))
        raise ConfigError(
            f"{setting_arguments(given)}: expected SECTION.KEY=VALUE, such as train.steps=500"
        )
    return key, typed_value(key, text)


def typed_value(key: str, text: str) -> Any:
    """Return the value of the setting `key` for the `text` that was typed after `--set KEY=`.

    - `null` is None, which stands for the default.
    - Strings in quotation marks and lists in brackets are parsed as YAML.
    - Numbers and booleans are parsed, except for settings that take any string.
    - Everything else is returned as typed.
    """
    kinds = SETTINGS[key].kinds if key in SETTINGS else set()
    takes_text, takes_list = str in kinds and int not in kinds, tuple in kinds
    text = text if takes_text else text.strip()
    origin = setting_arguments(shown(f"{key}={text}"))
    if text == "null":
        return None
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    is_list = text.startswith("[") and text.endswith("]") and (takes_list or "," in text)
    if is_quoted or (takes_text and is_list):
        return parse(text, origin)
    if takes_text:
        return text
    is_yaml = text[:1] in ("[", "{") or re.fullmatch(r"[-+.\w]+", text)
    value = parse(text, origin) if is_yaml else None
    return text if value is None or isinstance(value, str) else value
