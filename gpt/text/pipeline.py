"""Steps of a pipeline side by side: reading, hashing and writing need no GIL."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

WAITING = 4  # items between two steps


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, taken from their iterator in a thread, some ahead of who uses them."""
    end = object()
    with ThreadPoolExecutor(1) as thread:
        futures = deque(thread.submit(next, items, end) for _ in range(WAITING))
        try:
            while (item := futures.popleft().result()) is not end:
                futures.append(thread.submit(next, items, end))
                yield item  # type: ignore[misc]  # it is not the end
        finally:
            for future in futures:
                future.cancel()


class Behind:
    """Calls a function in a thread, in order, some calls behind who asks for them."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self.calls: deque[Future[object]] = deque()

    def __enter__(self) -> Callable[..., None]:
        self.thread = ThreadPoolExecutor(1)
        return self._call

    def _call(self, *arguments: Any) -> None:
        """Raises what an earlier call raised."""
        self.calls.append(self.thread.submit(self.function, *arguments))
        if len(self.calls) > WAITING:
            self.calls.popleft().result()

    def __exit__(self, *raised: object) -> None:
        self.thread.shutdown(cancel_futures=raised[0] is not None)
        if raised[0] is None:
            for call in self.calls:
                call.result()
