"""Compute items or batches in a thread before they are needed."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

ITEMS_AHEAD = 4  # number of items that `ahead` reads in advance


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield `items` in order, while a thread reads the next ITEMS_AHEAD of them in advance."""
    end = object()
    with ThreadPoolExecutor(1) as thread:
        futures = deque(thread.submit(next, items, end) for _ in range(ITEMS_AHEAD))
        try:
            while (item := futures.popleft().result()) is not end:
                futures.append(thread.submit(next, items, end))
                yield item  # type: ignore[misc]  # not the sentinel `end`
        finally:
            for future in futures:
                future.cancel()


class Prefetch(Generic[T]):
    """Draws the next step's batch in a thread while the model computes the current step.

    Training then does not wait for a slow disk. Steps can be requested in any order.
    """

    def __init__(self, draw: Callable[[int], T], steps: int) -> None:
        """Prepare to draw batches by the pure function `draw(step)`, for steps 0 to `steps` - 1."""
        self.draw, self.steps, self.thread = draw, steps, ThreadPoolExecutor(1)
        self.ahead: tuple[int, Future[T]] | None = None

    def __call__(self, step: int) -> T:
        """Return the batch of `step`, and start to draw the next one. Re-raise errors of `draw`."""
        ahead, self.ahead = self.ahead, None
        drawn = ahead[1].result() if ahead and ahead[0] == step else self.draw(step)
        if step + 1 < self.steps:
            self.ahead = step + 1, self.thread.submit(self.draw, step + 1)
        return drawn
