"""From logits to ids: small pure functions, each (B, V) -> (B, V) or (B, V) -> (B,).

A character that is not to be drawn has the logit -inf. Every rule leaves at least one of each row.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from gpt.config.mistakes import explain
from gpt.config.schema import SampleConfig
from gpt.errors import UsageError

NEVER = -np.inf
PENALTY_CHARACTERS = 64  # the last ones of prompt and sample, which the penalties count

Floats = NDArray[np.float64]
Ints = NDArray[np.int_]


@dataclass(frozen=True)
class SamplingRules:
    """How text is sampled: what is done to the logits, in this order, and with which context.

    `context_after_overflow`: see `Generator`; None is half of the context length.

    Raises UsageError for a temperature that is negative, NaN or infinite.
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    context_after_overflow: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < np.inf:
            raise UsageError(f"temperature: expected a number from 0 on, got {self.temperature}")

    @classmethod
    def from_config(cls, config: SampleConfig, **changes: float | None) -> "SamplingRules":
        """Return the rules of the config with the changes that are not None.

        Raises:
            UsageError: a value is not allowed; the message names its keyword.
        """
        given = {
            key: value.item() if isinstance(value, np.generic) else value
            for key, value in changes.items()
            if value is not None
        }
        try:
            rules = SampleConfig.model_validate(config.model_dump() | given)
        except ValidationError as error:
            raise UsageError(*(message for _, message in explain(error))) from None
        return cls(**rules.model_dump(exclude={"length"}))


def log_softmax(logits: Floats) -> Floats:
    """The log-probabilities: logits of which each row's exponentials sum to 1."""
    logits = logits - logits.max(-1, keepdims=True)
    sums: Floats = np.exp(logits).sum(-1, keepdims=True)
    return logits - np.log(sums)


def apply_penalties(
    logits: Floats, recent: list[list[int]], presence: float, frequency: float
) -> Floats:
    """Subtract penalties from the logits of the ids that occur in each row's `recent` ids.

    An id that occurs count > 0 times loses presence + count * frequency, as in the OpenAI API.
    Example: `e` has the logit 5.0 and occurs 3 times. With presence 0.5 and frequency 0.2 its
    logit becomes 5.0 - 0.5 - 3 * 0.2 = 3.9, so its odds to any id that does not occur are
    exp(1.1) = 3.0 times smaller, however certain `e` was.

    Args:
        logits: (B, V).
        recent: the ids of each row to count, B lists.
        presence: subtracted once from each id that occurs.
        frequency: subtracted for each time that an id occurs.

    Returns:
        New logits (B, V).
    """
    logits = logits.copy()
    for row, ids in enumerate(recent):
        occurring, counts = np.unique(np.array(ids, np.intp), return_counts=True)
        logits[row, occurring] -= presence + counts * frequency
    return logits


def apply_temperature(logits: Floats, temperature: float) -> Floats:
    """Divide by the temperature: below 1 more predictable, above 1 more random."""
    with np.errstate(over="ignore"):  # to -inf: never
        cooled: Floats = (logits - logits.max(-1, keepdims=True)) / temperature
    return cooled


def keep_top_k(logits: Floats, k: int) -> Floats:
    """The k largest logits. Of equals at the edge, all stay."""
    V = logits.shape[-1]
    if k >= V:
        return logits
    kth = np.partition(logits, V - k)[:, V - k, None]
    return np.where(logits < kth, NEVER, logits)


def keep_top_p(logits: Floats, p: float) -> Floats:
    """The fewest likeliest characters whose probabilities sum to p at least.

    Nucleus sampling, arXiv:1904.09751, section 3.1. Of equals at the edge, all stay.
    """
    ordered = np.sort(logits)[:, ::-1]
    probabilities = np.exp(log_softmax(ordered))
    before = probabilities.cumsum(-1) - probabilities  # what the likelier ones sum to
    needed = np.maximum((before < p).sum(-1, keepdims=True), 1)
    return np.where(logits < np.take_along_axis(ordered, needed - 1, -1), NEVER, logits)


def keep_min_p(logits: Floats, p: float) -> Floats:
    """Drop characters less likely than p times the likeliest (arXiv:2407.01082, section 3)."""
    with np.errstate(divide="ignore"):  # all are at least 0 times as likely
        return np.where(logits - logits.max(-1, keepdims=True) < np.log(p), NEVER, logits)


def draw(logits: Floats, uniforms: Floats) -> Ints:
    """Ids (B,) from the softmax of each row, one for each number in [0, 1) of `uniforms` (B,).

    The id at which the cumulative probability passes the number (inverse transform sampling). No
    row depends on another.
    """
    sums = np.exp(logits - logits.max(-1, keepdims=True)).cumsum(-1)
    total = sums[:, -1:]
    passed = (sums <= uniforms[:, None] * total).sum(-1)
    last = (sums < total).sum(-1)  # the last of any probability, should rounding pass it
    ids: Ints = np.minimum(passed, last)
    return ids


def choose(
    logits: Floats, uniforms: Floats, rules: SamplingRules, recent: list[list[int]] | None = None
) -> Ints:
    """Apply the rules to logits (B, V), then draw an id for each row.

    Args:
        logits: (B, V).
        uniforms: a number in [0, 1) for each row, (B,).
        rules: how to sample; temperature 0 takes the likeliest (greedy).
        recent: the ids of each row that the penalties count.

    Returns:
        The ids (B,).
    """
    penalties = rules.presence_penalty, rules.frequency_penalty
    if recent is not None and any(penalties):
        logits = apply_penalties(logits, recent, *penalties)
    if rules.temperature == 0:
        likeliest: Ints = logits.argmax(-1)
        return likeliest
    logits = apply_temperature(logits, rules.temperature)
    if rules.top_k is not None:
        logits = keep_top_k(logits, rules.top_k)
    if rules.top_p < 1:
        logits = keep_top_p(logits, rules.top_p)
    if rules.min_p > 0:
        logits = keep_min_p(logits, rules.min_p)
    return draw(logits, uniforms)
