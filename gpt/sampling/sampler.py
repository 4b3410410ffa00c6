"""Choose ids from logits, by pure functions that map logits (B, V) to logits (B, V) or ids (B,).

Shapes: B texts, V vocabulary size. The functions `keep_...` exclude characters by setting their
logits to -inf; each keeps at least one character of each row.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from gpt.config.mistakes import explain
from gpt.config.schema import SampleConfig
from gpt.errors import UsageError

NEVER = -np.inf  # the logit of a character that must not be drawn

Floats = NDArray[np.float64]
Ints = NDArray[np.int_]


def sampling_rules(config: SampleConfig, **changes: object) -> SampleConfig:
    """Return `config` with the `changes` that are not None; raise UsageError for invalid ones."""
    given = {key: value for key, value in changes.items() if value is not None}
    given = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
    try:
        return SampleConfig.model_validate(config.model_dump() | given)
    except ValidationError as error:
        raise UsageError(*(message for _, message in explain(error, "sample."))) from None


def log_softmax(logits: Floats) -> Floats:
    """Return the log-probabilities (B, V) of logits (B, V)."""
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def apply_temperature(logits: Floats, temperature: float) -> Floats:
    """Divide the logits by `temperature`; above 1, likely ids are drawn less often."""
    with np.errstate(over="ignore"):  # dividing by a very small temperature can give -inf
        return (logits - logits.max(-1, keepdims=True)) / temperature


def keep_top_k(logits: Floats, k: int) -> Floats:
    """Keep the k largest logits, and any logit that equals the smallest of these.

    Example: with k = 2 the logits [2.0, 0.5, 1.0, -1.0] become [2.0, -inf, 1.0, -inf]; with
    k = 3 only -1.0 becomes -inf.
    """
    V = logits.shape[-1]
    if k >= V:
        return logits
    kth = np.partition(logits, V - k)[:, V - k, None]
    return np.where(logits < kth, NEVER, logits)


def keep_top_p(logits: Floats, p: float) -> Floats:
    """Keep the smallest set of likeliest characters whose probabilities sum to at least p.

    This is nucleus sampling (arXiv:1904.09751, section 3.1). Ties with the least likely character
    of the set are kept, too. Example with the probabilities [0.5, 0.1, 0.3, 0.1]:

        p = 0.5: keep the first alone, since 0.5 >= 0.5
        p = 0.7: keep the first and third, since 0.5 < 0.7 and 0.5 + 0.3 >= 0.7
        p = 0.9: keep all four, since 0.5 + 0.3 < 0.9 and the other two are equally likely
    """
    ordered = np.sort(logits)[:, ::-1]  # the likeliest first
    probabilities = np.exp(log_softmax(ordered))
    sum_of_likelier = probabilities.cumsum(-1) - probabilities  # example: [0, 0.5, 0.8, 0.9]
    needed = np.maximum((sum_of_likelier < p).sum(-1, keepdims=True), 1)
    least = np.take_along_axis(ordered, needed - 1, -1)  # the smallest logit to keep
    return np.where(logits < least, NEVER, logits)


def keep_min_p(logits: Floats, p: float) -> Floats:
    """Keep characters at least p times as likely as the likeliest (arXiv:2407.01082, section 3).

    Example: the probabilities are [0.6, 0.25, 0.1, 0.05] and p is 0.2. The threshold is
    0.2 * 0.6 = 0.12, so the first two are kept. A model that is certain, [0.97, 0.01, 0.01, 0.01],
    has the threshold 0.194, and only its first is kept.
    """
    with np.errstate(divide="ignore"):  # for p = 0, log(p) is -inf, which keeps all characters
        return np.where(logits - logits.max(-1, keepdims=True) < np.log(p), NEVER, logits)


def draw(logits: Floats, uniforms: Floats) -> Ints:
    """Draw an id from the softmax of each row, given a uniform number in [0, 1) for each row.

    The method is inverse transform sampling. Example: the probabilities of ids 0, 1, 2 are
    [0.2, 0.5, 0.3]. Their cumulative sums are [0.2, 0.7, 1.0]. The uniform number 0.6 draws id 1,
    the first id whose sum exceeds 0.6.
    """
    sums = np.exp(logits - logits.max(-1, keepdims=True)).cumsum(-1)
    total = sums[:, -1:]
    passed = (sums <= uniforms[:, None] * total) & (sums < total)  # the last id is never passed
    return passed.sum(-1)


def choose(logits: Floats, uniforms: Floats, rules: SampleConfig) -> Ints:
    """Draw an id for each row of logits (B, V), given a uniform number in [0, 1) for each row.

    The sampling `rules` are applied first.
    """
    if rules.temperature == 0:
        return logits.argmax(-1)
    logits = apply_temperature(logits, rules.temperature)
    if rules.top_k is not None:
        logits = keep_top_k(logits, rules.top_k)
    if rules.top_p < 1:
        logits = keep_top_p(logits, rules.top_p)
    if rules.min_p > 0:
        logits = keep_min_p(logits, rules.min_p)
    return draw(logits, uniforms)
