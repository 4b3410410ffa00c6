"""The batch of the next step, drawn while the model computes this one."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """`draw(step)` of one step after the other, each but the first drawn ahead, in a thread.

    So training does not wait for a text on a slow disk. `draw` depends on the step alone: where
    another step is asked for than the next, after a rollback say, it is drawn there and then. No
    thread outlives its one draw, and none is started past the last of `steps`.
    """

    def __init__(self, draw: Callable[[int], T], steps: int) -> None:
        self.draw, self.steps = draw, steps
        self.ahead: tuple[int, Future[T]] | None = None

    def __call__(self, step: int) -> T:
        """What `draw` gives for this step. Raises what it raises."""
        ahead, self.ahead = self.ahead, None
        drawn = ahead[1].result() if ahead and ahead[0] == step else self.draw(step)
        if step + 1 < self.steps:
            self.ahead = step + 1, self._start(step + 1)
        return drawn

    def _start(self, step: int) -> Future[T]:
        future = Future[T]()

        def run() -> None:
            try:
                future.set_result(self.draw(step))
            except BaseException as error:
                future.set_exception(error)

        Thread(target=run, name=f"batch of step {step}", daemon=True).start()
        return future
