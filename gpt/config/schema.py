"""The tree of settings, and a table of all of them by dotted key."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, model_validator
from pydantic.fields import FieldInfo

from gpt.config.data_config import DataConfig
from gpt.config.model_config import ModelConfig
from gpt.config.sample_config import SampleConfig
from gpt.config.section import MAX_COUNT, FineTuning, NonNegativeInt, Section, setting
from gpt.config.train_config import TrainConfig

__all__ = [
    "MAX_COUNT",
    "SETTINGS",
    "Config",
    "DataConfig",
    "ModelConfig",
    "SampleConfig",
    "Setting",
    "TrainConfig",
    "explicit",
    "flat",
    "settled",
    "values",
]


def _device_name(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", name):
        raise ValueError("expected auto, cpu, cuda, cuda:N or mps")
    return name


def _thread_count(count: object) -> object:
    if count != "auto" and not (type(count) is int and 1 <= count <= 1024):
        raise ValueError("expected auto or a number from 1 to 1024")
    return count


class Config(Section):
    """All settings of a run."""

    device: Annotated[str, AfterValidator(_device_name)] = setting(
        "auto",
        "auto, cpu, cuda, cuda:N or mps; auto = CUDA if the machine has it",
        heading="run",
        resumable=True,
    )
    threads: Annotated[int | str, BeforeValidator(_thread_count)] = setting(
        "auto",
        "CPU threads; the last digits of results depend on it; auto = the number that torch "
        "chooses",
        resumable=True,
        other_names="num_threads",
    )
    seed: NonNegativeInt = setting(
        1337,
        "seed of every random draw, together with its purpose and step",
        other_names="manual_seed random_seed",
    )
    deterministic: bool = setting(
        False, "use only deterministic kernels, which are slower, also on CUDA"
    )
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    sample: SampleConfig = SampleConfig()

    @model_validator(mode="after")
    def _check_fine_tuning(self) -> Self:
        frozen, blocks = self.train.freeze, self.model.n_layer
        if self.train.init_from is None:
            if frozen:
                raise ValueError(
                    f"train.freeze: expected 0 without train.init_from, as new weights must be "
                    f"trained, got {frozen}"
                )
            return self
        if frozen > blocks:
            raise ValueError(
                f"train.freeze: expected at most model.n_layer ({blocks}), got {frozen}"
            )
        if self.data.vocabulary not in ("characters", "bytes") or self.data.max_vocabulary:
            raise ValueError(
                "train.init_from: its vocabulary is extended by all characters of the text; leave "
                "out data.vocabulary and data.max_vocabulary"
            )
        return self

    @model_validator(mode="after")
    def _check_windows(self) -> Self:
        T, first = self.model.T, self.train.first_window
        if first is not None and T % first:
            raise ValueError(
                f"train.first_window: expected a divisor of model.T ({T}), so that every step has "
                f"the same number of characters, got {first}; null = model.T"
            )
        left = self.sample.context_after_overflow
        if left is not None and left > T:
            raise ValueError(
                f"sample.context_after_overflow: expected at most model.T ({T}), got {left}"
            )
        return self


@dataclass(frozen=True)
class Setting:
    """One setting of the tree, with the options that `setting` gave it.

    Attributes:
        key: the dotted key, such as `train.steps`.
        description: the text in help, after the possible values if there are few of them.
        kinds: types of value it takes; `tuple` stands for a list. A list of texts may also be given
            as one text, so it has `tuple` and `str`.
        default: the default as it is written in a config file; null if other settings determine it.
        group: name of the group it belongs to, such as `model: size`.
        resumable, fine_tuning, affects_choice, other_names: see `setting`.
    """

    key: str
    description: str
    kinds: frozenset[object]
    default: str
    group: str
    resumable: bool
    fine_tuning: FineTuning
    affects_choice: bool
    other_names: str


def _settings(section: type[Section], prefix: str = "", group: str = "") -> Iterator[Setting]:
    for name, field in section.model_fields.items():
        if isinstance(field.default, Section):
            yield from _settings(type(field.default), f"{prefix}{name}.")
            continue
        assert isinstance(field.json_schema_extra, dict)
        options: dict[str, Any] = dict(field.json_schema_extra)
        group = options.pop("heading") or group
        description = field.description or ""
        if get_origin(field.annotation) is Literal:
            description = f"{' | '.join(get_args(field.annotation))}: {description}"
        kinds = frozenset(_kinds(field.annotation))
        default = _default_text(field)
        yield Setting(f"{prefix}{name}", description, kinds, default, group, **options)


def _kinds(annotation: Any) -> set[object]:
    """Return the types of value that an annotation accepts, see `Setting`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin in (Union, UnionType):
        return {kind for each in arguments for kind in _kinds(each)}
    if origin is tuple:
        return {tuple, *(_kinds(arguments[0]) & {str})}
    return {annotation}


def _default_text(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "null"
    value = field.default
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)


SETTINGS = {each.key: each for each in _settings(Config)}


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested `tree` by dotted key."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            leaves |= flat(value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves


def values(config: Config) -> dict[str, Any]:
    """Return the value of every setting by dotted key, in the order of the file."""
    return flat(config.model_dump())


def explicit(config: Config) -> dict[str, Any]:
    """Return the settings that are set, by dotted key; the others have their defaults."""
    return flat(config.model_dump(exclude_unset=True))


def settled(section: Section) -> dict[str, Any]:
    """Return the nested tree of `section` without the unset settings that others determine."""
    tree = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            tree[name] = settled(value)
        elif field.default_factory is None or name in section.model_fields_set:
            tree[name] = value
    return tree
