"""Work done ahead in threads, while its results are not needed yet."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

ITEMS_AHEAD = 4  # number of items that `ahead` takes before they are asked for


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the same items, but take some of them from their iterator ahead, in a thread."""
    end = object()
    with ThreadPoolExecutor(1) as thread:
        futures = deque(thread.submit(next, items, end) for _ in range(ITEMS_AHEAD))
        try:
            while (item := futures.popleft().result()) is not end:
                futures.append(thread.submit(next, items, end))
                yield item  # type: ignore[misc]  # it is not the end
        finally:
            for future in futures:
                future.cancel()


class Prefetch(Generic[T]):
    """Draws the batch of the next step in a thread while the model computes this one.

    Training then does not wait for a text on a slow disk. A step that does not follow the previous
    one is drawn when it is asked for.
    """

    def __init__(self, draw: Callable[[int], T], steps: int) -> None:
        """Draw batches by `draw(step)`, a pure function, for `step` from 0 to `steps` - 1."""
        self.draw, self.steps, self.thread = draw, steps, ThreadPoolExecutor(1)
        self.ahead: tuple[int, Future[T]] | None = None

    def __call__(self, step: int) -> T:
        """Return the batch of `step`, and start to draw the next one. Raises what `draw` raises."""
        ahead, self.ahead = self.ahead, None
        drawn = ahead[1].result() if ahead and ahead[0] == step else self.draw(step)
        if step + 1 < self.steps:
            self.ahead = step + 1, self.thread.submit(self.draw, step + 1)
        return drawn
