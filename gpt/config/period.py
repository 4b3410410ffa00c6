"""The period of an event in training: a number of steps, a percentage of the run, or minutes."""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from gpt.config.section import MAX_COUNT

PERCENT = r"(100|(?!0+(\.0+)? )\d\d?(\.\d{1,3})?) %"  # above 0, at most 100
MINUTES = r"[1-9]\d{0,5} min"


@dataclass(frozen=True)
class Period:
    """How often an event occurs, such as an evaluation. Exactly one of the fields is set."""

    steps: int | None = None
    percent: Decimal | None = None  # part of the run; Decimal keeps the zeros in `2.50 %`
    minutes: int | None = None


def _written(period: Period) -> int | str:
    """Return `period` as a config contains it: `250`, `10 %` or `10 min`."""
    if period.steps is not None:
        return period.steps
    return f"{period.percent} %" if period.percent is not None else f"{period.minutes} min"


def _steps_or_percent(value: object) -> Period:
    if isinstance(value, str) and re.fullmatch(PERCENT, value):
        return Period(percent=Decimal(value.removesuffix(" %")))
    return _steps(value, "a part of the run such as `10 %`")


def _steps_or_minutes(value: object) -> Period:
    if isinstance(value, str) and re.fullmatch(MINUTES, value):
        return Period(minutes=int(value.removesuffix(" min")))
    return _steps(value, "of minutes such as `10 min`")


def _steps(value: object, other: str) -> Period:
    if type(value) is int and 0 < value <= MAX_COUNT:
        return Period(steps=value)
    raise ValueError(f"expected a number of steps, or {other}")


StepsOrPercent = Annotated[Period, BeforeValidator(_steps_or_percent), PlainSerializer(_written)]
StepsOrMinutes = Annotated[Period, BeforeValidator(_steps_or_minutes), PlainSerializer(_written)]
