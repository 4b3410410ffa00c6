"""Declare settings: the base class of the config's sections, `setting`, and shared types."""

import unicodedata
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_COUNT = 10**9  # largest integer setting, a guard against typing errors

FineTuning = Literal["new", "inherited", "scaled", "fixed"]
"""Value of a setting in a run that fine-tunes another one, unless it is set.

new: the default; inherited: that of the other run; scaled: that of the other run times a factor;
fixed: that of the other run, and it cannot be set to another value.
"""


class Section(BaseModel):
    """Strict (the string "3" is not a number), closed (no unknown keys) and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def setting(
    default: Any,
    description: str,
    *,
    heading: str = "",
    resumable: bool = False,
    fine_tuning: FineTuning = "new",
    affects_choice: bool = False,
    other_names: str = "",
) -> Any:
    """Declare a setting as a pydantic field; `Setting` in schema.py reads the options back.

    Args:
        default: the default, or a function that computes it from the settings above this one.
        description: the text in help and in config.yaml.
        heading: name of the group of settings that starts with this one.
        resumable: whether the setting may change when a run is resumed.
        fine_tuning: see `FineTuning`.
        affects_choice: whether the config chosen for a text depends on this training setting. If
            so, a sweep chooses one for each of its values.
        other_names: names of this setting in other projects, separated by spaces.
    """
    options: dict[str, Any] = {
        "heading": heading,
        "resumable": resumable,
        "fine_tuning": fine_tuning,
        "affects_choice": affects_choice,
        "other_names": other_names,
    }
    if callable(default):
        return Field(
            default_factory=default,
            validate_default=True,
            description=description,
            json_schema_extra=options,
        )
    return Field(default, description=description, json_schema_extra=options)


def is_count(value: object) -> bool:
    """Return whether `value` is a positive integer; a bool is not."""
    return type(value) is int and 0 < value <= MAX_COUNT


def _check_utf8(text: str) -> str:
    """Raise ValueError if `text` has a surrogate, which no config file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("expected a text in UTF-8") from None
    return text


def check_text_name(name: str) -> str:
    """Raise ValueError if the name of a file or run would break a message into lines."""
    # control characters and line ends could forge messages; surrogates fit into no config file
    if any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in name):
        raise ValueError(
            "expected a name in UTF-8 without control characters and line ends; rename the file"
        )
    return name


PositiveInt = Annotated[int, Field(gt=0, le=MAX_COUNT)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_COUNT)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, AfterValidator(_check_utf8)]
TextName = Annotated[str, Field(min_length=1), AfterValidator(check_text_name)]
