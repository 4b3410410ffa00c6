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


def _parsed(value: object) -> Period | None:
    """Return the period that a config contains as `value`, or None if it is not a period."""
    if isinstance(value, Period):
        return value
    if type(value) is int and 0 < value <= MAX_COUNT:
        return Period(steps=value)
    text = value if isinstance(value, str) else ""
    if re.fullmatch(PERCENT, text):
        return Period(percent=Decimal(text.removesuffix(" %")))
    if re.fullmatch(MINUTES, text):
        return Period(minutes=int(text.removesuffix(" min")))
    return None


def _steps_or_percent(value: object) -> Period:
    if (period := _parsed(value)) is None or period.minutes is not None:
        raise ValueError("expected a number of steps, or a part of the run such as `10 %`")
    return period


def _steps_or_minutes(value: object) -> Period:
    if (period := _parsed(value)) is None or period.percent is not None:
        raise ValueError("expected a number of steps, or of minutes such as `10 min`")
    return period


StepsOrPercent = Annotated[Period, BeforeValidator(_steps_or_percent), PlainSerializer(_written)]
StepsOrMinutes = Annotated[Period, BeforeValidator(_steps_or_minutes), PlainSerializer(_written)]
