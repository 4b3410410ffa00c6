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
from gpt.config.section import MAX_COUNT, ConfigSection, NonNegativeInt, Setting, resumable, setting
from gpt.config.train_config import TrainConfig

# includes the sections, so that other modules can import them from here
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
        "auto",
        "auto, cpu, cuda, cuda:N or mps; auto = a GPU if the machine has one",
        group="general",
    )
    threads: Annotated[int | str, BeforeValidator(_thread_count)] = resumable(
        "auto",
        "number of CPU threads; auto = torch's default, or a container's limit; affects the "
        "last digits of results",
    )
    seed: NonNegativeInt = setting(
        1337, "seed of every random draw, together with its purpose and step"
    )
    deterministic: bool = setting(False, "use only deterministic kernels on CUDA; they are slower")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    sample: SampleConfig = SampleConfig()

    def changed(self, **sections: dict[str, Any]) -> "Config":
        """Return a copy with changes, such as `train={"steps": 9}`, without validating them."""
        update = {name: getattr(self, name).model_copy(update=s) for name, s in sections.items()}
        return self.model_copy(update=update)

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        T, first, data = self.model.T, self.train.first_window, self.data
        if first is not None and T % first:
            raise ValueError(
                f"train.first_window: expected a divisor of model.T ({T}), so that every step has "
                f"the same number of characters, got {first}"
            )
        is_own = data.vocabulary in ("characters", "bytes")
        if self.train.init_from is not None and not is_own:
            raise ValueError(
                "train.init_from already sets the vocabulary: that of its run, with new characters "
                "of the text; leave out data.vocabulary"
            )
        return self


def _settings(section: type[ConfigSection], prefix: str = "") -> Iterator[Setting]:
    options: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        if isinstance(field.default, ConfigSection):
            yield from _settings(type(field.default), f"{name}.")
            continue
        text, default = field.description or "", field.default
        if get_origin(field.annotation) is Literal:
            text = f"{' | '.join(get_args(field.annotation))}: {text}"
        if not (isinstance(default, str) and default.isprintable()):
            default = json.dumps(None if field.default_factory else default)
        own: Any = field.json_schema_extra
        options = {"group": options.get("group")} | own
        yield Setting(f"{prefix}{name}", text, _kinds(field.annotation), default, **options)


def _kinds(annotation: Any) -> set[Any]:
    """Return the types in `annotation`: for a union or tuple, itself and the types of its parts."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin in (Union, UnionType, tuple):
        return {origin}.union(*map(_kinds, arguments))
    return {annotation}


SETTINGS = {each.key: each for each in _settings(Config)}


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested `tree` by dotted key, such as `train.steps`."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        is_section = isinstance(value, dict)
        leaves |= flat(value, f"{prefix}{name}.") if is_section else {f"{prefix}{name}": value}
    return leaves


def values(config: Config) -> dict[str, Any]:
    """Return the value of every setting by dotted key, in the order of config.yaml."""
    return flat(config.model_dump())


def explicit(config: Config) -> dict[str, Any]:
    """Return the values of `config` that were set, by dotted key; omit defaults."""
    return flat(config.model_dump(exclude_unset=True))
