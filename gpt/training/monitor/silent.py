"""What the ranks but the first show of a run: nothing."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from gpt.config.schema import Config
from gpt.training.monitor.monitor import Monitor


class SilentMonitor(Monitor):
    """A Monitor that keeps the time, and leaves it to rank 0's to record and show anything."""

    def __init__(
        self,
        run: Path,
        config: Config,
        resumed_at: int | None,
        *,
        clock: Callable[[], float],
        elapsed_before: float = 0.0,
        **_: Any,
    ) -> None:
        self._clock, self._began = clock, clock() - elapsed_before

    def __exit__(self, *raised: object) -> None: ...

    def advance(self) -> None:
        """See Monitor."""

    def replan(self, steps: int) -> None:
        """See Monitor."""

    def evaluating(self, total: int) -> AbstractContextManager[Callable[[int], object]]:
        """See Monitor."""
        return nullcontext(lambda characters: None)

    def record(self, step: int, metrics: dict[str, float]) -> None:
        """See Monitor."""

    def notice(self, step: int, text: str) -> None:
        """See Monitor."""

    def event(self, step: int, text: str) -> None:
        """See Monitor."""
