"""Whether a text repeats itself, as code does: what a model gains by looking up the last time."""

from gpt.text.batches import scored_windows
from gpt.text.vocabulary import Ids

CONTEXT = 8  # ids: what followed as many the last time is repeated
SCORED = 60_000  # ids at most, evenly spread
MUCH = 0.1  # of all ids: prose has 0.00 to 0.04, documentation and code 0.15 to 0.27


def repeats_much(ids: Ids, T: int) -> bool:
    """Whether in windows of T so many ids follow CONTEXT others as they did the last time there."""
    return repeated_part(ids, T) > MUCH


def repeated_part(ids: Ids, T: int) -> float:
    """Of the ids scored, those that follow CONTEXT others as they did the last time, in a window.

    It is what an induction head gets right (arXiv:2209.11895, "prefix matching").
    """
    repeated = scored = 0
    for x, y in scored_windows(ids, T, SCORED):
        for before, after in zip(x.tolist(), y.tolist(), strict=True):
            followed: dict[tuple[int, ...], int] = {}
            for t in range(CONTEXT, len(before) + 1):
                context = tuple(before[t - CONTEXT : t])
                repeated += followed.get(context) == after[t - 1]
                followed[context] = after[t - 1]
            scored += len(after)
    return repeated / scored
