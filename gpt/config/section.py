"""Declare settings: the base class of the config's sections, `setting`, and shared types."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_COUNT = 10**9  # largest integer setting, a guard against typing errors


class ConfigSection(BaseModel):
    """Strict (the string "3" is not a number), closed (no unknown keys) and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Setting:
    """One setting of the tree: what `SETTINGS` lists.

    Attributes:
        description: text in help, after the possible values if there are few of them.
        kinds: the types of value it takes; `tuple` stands for a list.
        default: the default in the words of a config file; null if other settings determine it.
        group: name of the group it belongs to, in help and in config.yaml.
        resumable: whether it may change when a run is resumed.
        fine_tuning: its value in a run that fine-tunes another one. new: the default; inherited:
            that of the other run; scaled: the same times a factor; fixed: the same, and no other.
        affects_choice: whether the config that is chosen for a text depends on this setting of
            training; if so, a sweep over it chooses a config for each value.
    """

    key: str
    description: str
    kinds: set[Any]
    default: str
    group: str
    resumable: bool = False
    fine_tuning: Literal["new", "inherited", "scaled", "fixed"] = "new"
    affects_choice: bool = False


def setting(default: Any, description: str, **options: Any) -> Any:
    """Declare a setting as a pydantic field.

    Args:
        default: the default, or a function that computes it from the settings above this one.
        description: text in help and in config.yaml.
        options: `group`, if one starts here, and the last three attributes of `Setting`.
    """
    made = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**made, validate_default=True, description=description, json_schema_extra=options)


resumable = partial(setting, resumable=True)
inherited = partial(setting, fine_tuning="inherited")
fixed = partial(setting, fine_tuning="fixed")


def _check_utf8(text: str) -> str:
    text.encode()  # its UnicodeEncodeError is a ValueError
    return text


PositiveInt = Annotated[int, Field(gt=0, le=MAX_COUNT)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_COUNT)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, AfterValidator(_check_utf8)]
TextName = Annotated[str, Field(min_length=1), AfterValidator(_check_utf8)]
