"""Tools to declare settings: a base class for sections, the function `setting`, shared types."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_COUNT = 10**9  # largest value of an integer setting, a guard against typing errors


class ConfigSection(BaseModel):
    """Base class of config sections: immutable; unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Setting:
    """Description of one setting: an entry of the table `SETTINGS`.

    `fine_tuning` determines the default in a run that fine-tunes another run, the original:

    - "new": the attribute `default`
    - "inherited": the value in the original run
    - "scaled": the value in the original run times a factor (see runs/fine_tuning.py)
    - "fixed": the value in the original run, which the user cannot change
    """

    key: str  # dotted, such as `train.steps`
    description: str  # help text; begins with the allowed values if there are only a few
    kinds: set[Any]  # types that a value may have; `tuple` stands for a list in YAML
    default: str  # default as in a config file; null if it is computed from other settings
    group: str  # heading in help and config.yaml
    resumable: bool = False  # whether a resume of a run may change the setting
    fine_tuning: Literal["new", "inherited", "scaled", "fixed"] = "new"
    affects_choice: bool = False  # whether a train.* setting affects which model gpt chooses


def setting(default: Any, description: str, **options: Any) -> Any:
    """Declare a setting as a pydantic field.

    `default` may be a function that computes the default from the settings declared before
    this one. `options` are attributes of `Setting`; `group` is the heading of all settings up to
    the next `group`.
    """
    made = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**made, validate_default=True, description=description, json_schema_extra=options)


resumable = partial(setting, resumable=True)
inherited = partial(setting, fine_tuning="inherited")
fixed = partial(setting, fine_tuning="fixed")


def check_utf8(text: str) -> str:
    """Return `text`; raise ValueError if UTF-8 cannot encode it, as with some file names."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("expected UTF-8 text; rename the file") from None
    return text


PositiveInt = Annotated[int, Field(gt=0, le=MAX_COUNT)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, AfterValidator(check_utf8)]
TextName = Annotated[str, Field(min_length=1), AfterValidator(check_utf8)]
