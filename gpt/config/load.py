"""Defaults -> YAML file -> `--set`, then validated: a resolved config, or what is wrong."""

import difflib
import reprlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpt.config.schema import Config, fields
from gpt.config.yaml import parse, read_yaml
from gpt.errors import ConfigError

PACKAGE = Path(__file__).parents[1]
SHIPPED = PACKAGE / "configs"  # in an installed wheel
if not SHIPPED.is_dir():
    SHIPPED = PACKAGE.parent / "configs"  # in a clone


def load_config(
    base: Config | Path | str | None,
    overrides: Sequence[str] = (),
    source: str | Sequence[str] | None = None,
    *,
    init_from: str | None = None,
    inherit: Callable[[str], dict[str, Any]] | None = None,
) -> Config:
    """Defaults, then the YAML file, then `section.key=value` overrides, then the text.

    Args:
        base: a file, the name of a shipped config such as quickstart, or a Config.
        overrides: `section.key=value`, the value in YAML.
        source: in place of `data.source`: a name or several.
        init_from: in place of `train.init_from`.
        inherit: gives the settings, as a tree, that take the place of defaults where the run of
            that name is fine-tuned.

    Raises:
        ConfigError: the file is missing or not YAML, or a key or value is wrong; all wrong
            keys are listed at once, each with its dotted path.
    """
    if isinstance(base, Config):
        tree = base.model_dump(exclude_unset=True)
    else:
        tree = {} if base is None else read_yaml(_find(Path(base)))
    overridden = set[str]()

    def origin(key: str) -> str:
        set_here = any(f"{other}.".startswith(f"{key}.") for other in overridden)
        return "" if set_here or not isinstance(base, str | Path) else f"{base}: "

    assignments = [_assignment(text) for text in overrides]
    if source is not None:
        assignments.append(("data.source", source if isinstance(source, str) else [*source]))
    if init_from is not None:
        assignments.append(("train.init_from", init_from))
    for key, value in assignments:
        _put(tree, key, value, origin)
        overridden.add(key)
    if inherit is not None and (run := _run_to_fine_tune(tree)) is not None:
        tree = _merged(inherit(run), tree)
    try:
        return Config.model_validate(_without_nulls(tree))
    except ValidationError as error:
        mistakes = [f"{origin(key)}{message}" for key, message in explain(error)]
        raise ConfigError(*mistakes) from None


def keys_set_by(overrides: Sequence[str]) -> set[str]:
    """The dotted keys to which these give a value. Raises ConfigError if one is not YAML."""
    tree: dict[str, Any] = {}
    for key, value in map(_assignment, overrides):
        _put(tree, key, value, lambda key: "")
    return {*_leaves(_without_nulls(tree))}


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _find(path: Path) -> Path:
    """The file at that path, else the shipped config of that name."""
    if path.exists() and not (path.is_dir() and str(path) in _shipped()):
        return path
    if str(path) in _shipped():
        return SHIPPED / f"{path}.yaml"
    raise ConfigError(
        f"{path}: no such config file; expected the path of one, or the name of a shipped config: "
        f"{', '.join(_shipped())}"
    )


def _shipped() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def _run_to_fine_tune(tree: dict[str, Any]) -> str | None:
    train = tree.get("train")
    run = train.get("init_from") if isinstance(train, dict) else None
    return run if isinstance(run, str) and run else None  # what else it is will be refused


def _merged(below: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """The tree over the one below; a key that is null has its default, not what is below."""
    merged = below | tree
    for key in below.keys() & tree.keys():
        if isinstance(below[key], dict) and isinstance(tree[key], dict | None):
            merged[key] = _merged(below[key], tree[key] or {})
    return merged


def _without_nulls(tree: dict[str, Any]) -> dict[str, Any]:
    """An empty key or section means its default."""
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(
            f"--set {text}: expected SECTION.KEY=VALUE, such as --set train.steps=500"
        )
    return key, parse(value, f"--set {text}")


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
    """(dotted key, message) for each mistake that the user made."""
    for mistake in error.errors():
        key, kind, got = ".".join(map(str, mistake["loc"])), mistake["type"], mistake["input"]
        if kind == "default_factory_not_called":  # follows from another mistake
            continue
        if kind == "extra_forbidden" and any("." in str(name) for name in mistake["loc"]):
            yield key, f"{key}: expected nested keys, {_nested(key)}, got one with a dot"
        elif kind == "extra_forbidden":
            yield key, f"{key}: unknown key; {_suggestion(key)}"
        elif kind == "value_error":
            told = str(mistake["ctx"]["error"])
            by_itself = isinstance(got, dict) and told.startswith(key)  # of a cross-field check
            yield key, told if by_itself else f"{key}: {told}, got {reprlib.repr(got)}"
        elif kind in ("model_type", "model_attributes_type"):
            yield key, f"{key}: expected keys below `{key}:`, got {reprlib.repr(got)}"
        else:
            expected = mistake["msg"].replace("Input should be", "expected")
            yield key, f"{key}: {expected}, got {reprlib.repr(got)}"


def _nested(key: str) -> str:
    """`train.steps` -> `train: {steps: ...}`."""
    *sections, name = key.split(".")
    return f"`{''.join(f'{section}: {{' for section in sections)}{name}: ...{'}' * len(sections)}`"


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
