"""The tree of settings, and a table of all settings by dotted key."""

import json
import re
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, model_validator

from gpt.config.data_config import DataConfig
from gpt.config.model_config import ModelConfig
from gpt.config.sample_config import SampleConfig
from gpt.config.section import (
    MAX_COUNT,
    ConfigSection,
    NonNegativeInt,
    Setting,
    resumable,
    setting,
)
from gpt.config.train_config import TrainConfig

# for modules that need a part of the tree
__all__ = ["MAX_COUNT", "DataConfig", "ModelConfig", "SampleConfig", "TrainConfig"]


def _device_name(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", name):
        raise ValueError("expected auto, cpu, cuda, cuda:N or mps")
    return name


def _thread_count(count: object) -> object:
    if count != "auto" and not (type(count) is int and 1 <= count <= 1024):
        raise ValueError("expected auto or a number from 1 to 1024")
    return count


class Config(ConfigSection):
    """All settings of a run."""

    device: Annotated[str, AfterValidator(_device_name)] = resumable(
        "auto", "auto, cpu, cuda, cuda:N or mps; auto = CUDA if the machine has it", group="run"
    )
    threads: Annotated[int | str, BeforeValidator(_thread_count)] = resumable(
        "auto",
        "CPU threads, which affect the last digits of results; auto = as many as torch chooses",
        aliases="num_threads",
    )
    seed: NonNegativeInt = setting(
        1337,
        "seed of every random draw, together with its purpose and step",
        aliases="manual_seed random_seed",
    )
    deterministic: bool = setting(False, "use only deterministic kernels on CUDA; they are slower")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    sample: SampleConfig = SampleConfig()

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        T, first, data = self.model.T, self.train.first_window, self.data
        if first is not None and T % first:
            raise ValueError(
                f"train.first_window: expected a divisor of model.T ({T}), so that every step has "
                f"the same number of characters, got {first}; null = model.T"
            )
        own_vocabulary = data.vocabulary in ("characters", "bytes") and data.max_vocabulary is None
        if self.train.init_from is not None and not own_vocabulary:
            raise ValueError(
                "train.init_from: its vocabulary is extended by all characters of the text; leave "
                "out data.vocabulary and data.max_vocabulary"
            )
        return self

    def unused_settings(self) -> dict[str, str]:
        """Return the settings that have no effect beside the others, each with advice."""
        unused = self.train.unused_settings()
        if self.data.val_source is not None:
            unused["data.val_fraction"] = "all of data.val_source is val; leave out one of the two"
        return unused


def _settings(section: type[ConfigSection], prefix: str = "") -> Iterator[Setting]:
    group = ""
    for name, field in section.model_fields.items():
        if isinstance(field.default, ConfigSection):
            yield from _settings(type(field.default), f"{name}.")
            continue
        options: Any = field.json_schema_extra
        group = options.get("group", group)
        text = field.description or ""
        if get_origin(field.annotation) is Literal:
            text = f"{' | '.join(get_args(field.annotation))}: {text}"
        default = json.dumps(None if field.default_factory else field.default)
        if isinstance(field.default, str) and field.default.isprintable():
            default = field.default
        options = options | {"group": group}
        yield Setting(f"{prefix}{name}", text, _kinds(field.annotation), default, **options)


def _kinds(annotation: Any) -> set[object]:
    """Return the types of value that `annotation` accepts. A list of texts may also be one text."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin in (Union, UnionType):
        return {kind for each in arguments for kind in _kinds(each)}
    if origin is tuple:
        return {tuple, *(_kinds(arguments[0]) & {str})}
    return {annotation}


SETTINGS = {each.key: each for each in _settings(Config)}


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested `tree` by dotted key."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        is_section = isinstance(value, dict)
        leaves |= flat(value, f"{prefix}{name}.") if is_section else {f"{prefix}{name}": value}
    return leaves


def values(config: Config) -> dict[str, Any]:
    """Return the value of every setting by dotted key, in the order of the file."""
    return flat(config.model_dump())


def explicit(config: Config) -> dict[str, Any]:
    """Return the settings that are set, by dotted key; the others have their defaults."""
    return flat(config.model_dump(exclude_unset=True))


def settled(section: ConfigSection) -> dict[str, Any]:
    """Return the nested tree of `section` without the unset settings that others determine."""
    tree = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, ConfigSection):
            tree[name] = settled(value)
        elif field.default_factory is None or name in section.model_fields_set:
            tree[name] = value
    return tree
