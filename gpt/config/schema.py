"""The tree of settings: the sections for model and sampling, and a table of all settings."""

import json
import re
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeFloat, model_validator

from gpt.config.data_config import DataConfig
from gpt.config.section import (
    ConfigSection,
    Fraction,
    NonNegativeInt,
    PositiveInt,
    Setting,
    fixed,
    inherited,
    resumable,
    setting,
)
from gpt.config.train_config import TrainConfig

# limits, so that creating the model of an untrusted config takes little time and memory
MAX_LAYERS = 1000  # limit on ensemble x n_layer, and on ensemble x ngram
MAX_ROTARY_ANGLES = 2**24  # largest T x head_size

Layers = Annotated[int, Field(gt=0, le=MAX_LAYERS)]
Probability = Annotated[float, Field(ge=0, le=1)]


class ModelConfig(ConfigSection):
    """Settings of the model: its size, attention, embeddings and dropout."""

    T: PositiveInt = inherited(
        64, "context length: the characters that attention sees at once", group="model: size"
    )
    C: PositiveInt = fixed(128, "channels: the width of the residual stream")
    n_layer: Layers = fixed(4, "transformer blocks, each with attention and an MLP")
    n_head: PositiveInt = fixed(4, "attention heads in each block")
    head_size: PositiveInt = fixed(
        lambda given: given["C"] // given["n_head"] or 1,
        "channels of a head's queries and keys; null = C / n_head",
    )
    value_size: PositiveInt = fixed(
        lambda given: given["head_size"], "channels of a head's values; null = head_size"
    )
    ensemble: Annotated[int, Field(gt=0, le=64)] = fixed(
        1, "models that differ only in their seed; their predicted probabilities are averaged"
    )

    positions: Literal["learned", "rotary"] = fixed(
        "rotary",
        "learned position embeddings, or RoPE applied to queries and keys",
        group="model: attention, embeddings, MLP",
    )
    qk_norm: bool = fixed(True, "normalise queries and keys, which bounds the attention scores")
    attention_scale: Annotated[float, Field(gt=0, le=1000)] = fixed(
        1.0, "attention scores are attention_scale * q k / sqrt(head_size)"
    )
    key_offset: bool = fixed(
        False,
        "take half of each key's channels from the previous character, so that a head can attend "
        "to what followed a match (partial key offset, for induction heads)",
    )
    qkv_bias: bool = fixed(False, "add a bias to queries, keys and values")
    ngram: Layers = fixed(
        4,
        "embeddings that are summed at each position: those of its character and of the "
        "ngram - 1 characters before it",
    )
    activation: Literal["gelu", "relu2"] = fixed(
        "relu2", "activation of the MLP: GELU, or the square of ReLU"
    )

    dropout: Fraction = inherited(
        0.0,
        "dropout of the embeddings and of what each block adds to the residual stream",
        group="model: regularisation",
    )
    character_dropout: Fraction = inherited(
        0.0, "token dropout: the probability that an input character's embedding is set to zero"
    )

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if "head_size" not in self.model_fields_set and self.C % self.n_head:
            raise ValueError(
                f"model.head_size: model.C {self.C} is not a multiple of model.n_head "
                f"{self.n_head}; set model.head_size (n_head x head_size need not equal C)"
            )
        if self.T * self.head_size > MAX_ROTARY_ANGLES:
            raise ValueError(
                f"model.T x model.head_size is {self.T} x {self.head_size}; expected at most "
                f"{MAX_ROTARY_ANGLES:,}; reduce one of the two"
            )
        for key, count in (("model.n_layer", self.n_layer), ("model.ngram", self.ngram)):
            if self.ensemble * count > MAX_LAYERS:
                raise ValueError(
                    f"model.ensemble x {key} is {self.ensemble} x {count}; expected at most "
                    f"{MAX_LAYERS:,}; reduce one of the two"
                )
        # rotary positions rotate pairs of channels; `key_offset` needs at least two pairs in a key
        is_paired = self.positions == "rotary" or self.key_offset
        if is_paired and (self.head_size % 2 or (self.key_offset and self.head_size < 4)):
            raise ValueError(
                f"model.head_size: expected an even number, at least 4 if model.key_offset is set, "
                f"got {self.head_size}"
            )
        return self


class SampleConfig(ConfigSection):
    """Settings of sampling: how to draw characters from the predicted probabilities."""

    length: NonNegativeInt = resumable(500, "characters to sample", group="sampling")
    temperature: NonNegativeFloat = resumable(
        0.8, "above 1: more random; below 1: more predictable; 0 = always the most likely character"
    )
    top_k: PositiveInt | None = resumable(
        None, "sample only from the k most likely characters; null = from all"
    )
    top_p: Probability = resumable(
        1.0, "sample only from the most likely characters that together have this probability"
    )
    min_p: Probability = resumable(
        0.005, "drop characters less likely than this times the most likely one"
    )


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
        T, first = self.model.T, self.train.first_window
        if first is not None and T % first:
            raise ValueError(
                f"train.first_window: expected a divisor of model.T ({T}), got {first}; every step "
                f"must have the same number of characters"
            )
        return self


def _settings(section: type[ConfigSection], prefix: str = "") -> Iterator[Setting]:
    group = ""
    for name, field in section.model_fields.items():
        if isinstance(field.default, ConfigSection):
            yield from _settings(type(field.default), f"{name}.")
            continue
        text, default = field.description or "", field.default
        if get_origin(field.annotation) is Literal:
            text = f"{' | '.join(get_args(field.annotation))}: {text}"
        if not isinstance(default, str):
            default = json.dumps(None if field.default_factory else default)
        own: Any = field.json_schema_extra
        group = own.get("group", group)
        kinds = _kinds(field.annotation)
        yield Setting(f"{prefix}{name}", text, kinds, default, **own | {"group": group})


def _kinds(annotation: Any) -> set[Any]:
    """Return the types in `annotation`; for a union or tuple, add the types of its parts."""
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
    """Return the values of `config` that were set, even if equal to a default, by dotted key."""
    return flat(config.model_dump(exclude_unset=True))
