"""Declare settings: the base class of the config's sections, `setting`, and shared types."""

import unicodedata
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_COUNT = 10**9  # largest integer setting, a guard against typing errors

FineTuning = Literal["new", "inherited", "scaled", "fixed"]
"""Value of an unset setting in a run that fine-tunes another one.

new: the default; inherited: that of the other run; scaled: that of the other run times a factor;
fixed: that of the other run, and the setting cannot be set to another value.
"""


class Section(BaseModel):
    """Strict (the string "3" is not a number), closed (no unknown keys) and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def setting(
    default: Any,
    description: str,
    *,
    group: str = "",
    resumable: bool = False,
    fine_tuning: FineTuning = "new",
    affects_choice: bool = False,
    aliases: str = "",
) -> Any:
    """Declare a setting as a pydantic field; `SETTINGS` in schema.py lists them all.

    Args:
        default: the default, or a function that computes it from the settings above this one.
        description: text in help and in config.yaml.
        group: name of the group of settings that starts with this one, in help and in config.yaml.
        resumable: whether the setting may change when a run is resumed.
        fine_tuning: see `FineTuning`.
        affects_choice: whether the config that is chosen for a text depends on this setting of
            training; if so, a sweep over it chooses a config for each value.
        aliases: names of the setting in other projects, separated by spaces; messages suggest it.
    """
    options: dict[str, Any] = {
        "group": group,
        "resumable": resumable,
        "fine_tuning": fine_tuning,
        "affects_choice": affects_choice,
        "aliases": aliases,
    }
    if callable(default):
        return Field(
            default_factory=default,
            validate_default=True,
            description=description,
            json_schema_extra=options,
        )
    return Field(default, description=description, json_schema_extra=options)


resumable = partial(setting, resumable=True)
inherited = partial(setting, fine_tuning="inherited")
fixed = partial(setting, fine_tuning="fixed")


def is_count(value: object) -> bool:
    """Return whether `value` is a positive integer; a bool is not."""
    return type(value) is int and 0 < value <= MAX_COUNT


def _check_utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("expected a text in UTF-8") from None
    return text


def check_text_name(name: str) -> str:
    """Raise ValueError if the name of a file or run has characters that could forge a message."""
    # Cc and Z* are control characters and line ends, Cs are surrogates, which UTF-8 cannot encode
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
