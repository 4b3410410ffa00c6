"""Defaults -> YAML file -> `--set`, then validated: a resolved config, or what is wrong."""

import difflib
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpt.config.schema import Config, fields
from gpt.config.yaml import parse, read_yaml
from gpt.errors import ConfigError


def load_config(
    base: Path | Config | None, overrides: Sequence[str] = (), source: str | None = None
) -> Config:
    """Defaults, then a YAML file or config, then `section.key=value` overrides, then the text.

    Raises:
        ConfigError: the file is missing or not YAML, or a key or value is wrong; all wrong
            keys are told at once, each with its dotted path.
    """
    if isinstance(base, Config):
        tree = base.model_dump(exclude_unset=True)
    else:
        tree = read_yaml(base) if base is not None else {}
    overridden = {_override(tree, assignment) for assignment in overrides}
    if source is not None:
        overridden.add(_put(tree, "data.source", source))
    try:
        return Config.model_validate(_without_nulls(tree))
    except ValidationError as error:
        raise ConfigError(
            "\n".join(
                f"{'command line' if key in overridden else base or 'command line'}: {message}"
                for key, message in _explain(error)
            )
        ) from None


def _without_nulls(tree: dict[str, Any]) -> dict[str, Any]:
    """An empty key or section means its default."""
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def _override(tree: dict[str, Any], assignment: str) -> str:
    key, equals, value = assignment.partition("=")
    if not equals or not key:
        raise ConfigError(
            f"--set {assignment}: expected SECTION.KEY=VALUE, such as --set train.steps=500"
        )
    return _put(tree, key, parse(value, f"--set {assignment}"))


def _put(tree: dict[str, Any], key: str, value: Any) -> str:
    *parents, name = key.split(".")
    for parent in parents:
        child = tree.get(parent)
        if child is not None and not isinstance(child, dict):
            raise ConfigError(
                f"{key}: expected keys below `{parent}:`, got {reprlib.repr(child)}; leave out "
                f"that, or {key}"
            )
        tree[parent] = tree = dict(child or {})
    tree[name] = value
    return key


def _explain(error: ValidationError) -> Iterator[tuple[str, str]]:
    """(dotted key, message) for each mistake that the user made."""
    for mistake in error.errors():
        key, kind, got = ".".join(map(str, mistake["loc"])), mistake["type"], mistake["input"]
        if kind == "default_factory_not_called":  # follows from another mistake, told elsewhere
            continue
        if kind == "extra_forbidden":
            yield key, f"{key}: unknown key; {_suggestion(key)}"
        elif kind == "value_error" and isinstance(got, dict):  # a cross-field check names its key
            yield key, str(mistake["ctx"]["error"])
        elif kind == "value_error":
            yield key, f"{key}: {mistake['ctx']['error']}, got {reprlib.repr(got)}"
        elif kind in ("model_type", "model_attributes_type"):
            yield key, f"{key}: expected keys below `{key}:`, got {reprlib.repr(got)}"
        else:
            expected = mistake["msg"].replace("Input should be", "expected")
            yield key, f"{key}: {expected}, got {reprlib.repr(got)}"


def _suggestion(key: str) -> str:
    known = [name for name, _, _ in fields(Config())]
    section, _, leaf = key.rpartition(".")
    by_leaf = {name.rpartition(".")[2]: name for name in known} | {
        name: name for name in Config.model_fields
    }
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    near = near or [by_leaf[m] for m in difflib.get_close_matches(leaf, by_leaf, n=1)]
    if near:
        return f"did you mean {near[0]}?"
    siblings = [name for name in known if name.startswith(f"{section}.")] if section else known
    return f"the keys are {', '.join(siblings)}"
