"""Generate and score the texts of many requests in one batch, in a thread of its own."""

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt.errors import GPTError
from gpt.sampling.generate import Generator, GrowingText
from gpt.serve.refusal import Refusal
from gpt.serve.served_run import MAX_TEXTS, ServedModel

MAX_ADMITTED = 256  # texts that are generated, wait for it, or wait for their client to read them
RETRY_AFTER_S = 1  # seconds after which a refused client should try again
STOPPING = Refusal(503, "the server is stopping")

log = logging.getLogger(__name__)


class Token(NamedTuple):
    """An id of a text, with its log-probability and those of the most likely ids."""

    id: int
    log_probability: float | None  # None for the first id of a text that is scored
    likely: dict[int, float] | None


@dataclass(eq=False)
class TextTask:
    """A text to generate or to score.

    The thread of the batch appends ids to `text`. The thread of the event loop, in which the
    requests are answered, receives the tokens and can cancel the task.

    Attributes:
        model: the model to use.
        text: the prompt, the sampling rules and the random numbers; `text.given` is scored.
        count: the number of ids to append.
        likely: the number of likely ids to report with each id; None for no log-probabilities.
        changed: event that is set when `tokens` or `error` changes.
        tokens: the tokens that have arrived.
        error: why the task failed, if it did.
        is_cancelled: whether its tokens are no longer wanted.
    """

    model: ServedModel
    text: GrowingText
    count: int
    likely: int | None
    changed: asyncio.Event
    tokens: list[Token] = field(default_factory=list)
    error: Refusal | None = None
    is_cancelled: bool = False


class Batch(threading.Thread):
    """Thread that generates all texts together. They join and leave between two characters.

    Neither the other texts nor the time at which a text joins changes its ids. If a new checkpoint
    is loaded, texts that were begun with the old one are continued with the old one.
    """

    def __init__(self) -> None:
        super().__init__(name="gpt batch", daemon=True)
        self._changed = threading.Condition()
        self._waiting = deque[TextTask]()
        self._running: dict[ServedModel, tuple[Generator, list[TextTask]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._admitted = 0  # texts

    def reserve(self, count: int) -> None:
        """Reserve places for `count` texts, until `release` is called.

        Raises:
            Refusal: there are too many texts, in this request or in all.
        """
        if count > MAX_ADMITTED:
            message = f"expected at most {MAX_ADMITTED} texts (prompts times n), got {count}"
            raise Refusal(400, f"{message}; send several requests")
        if self._admitted + count > MAX_ADMITTED:
            raise Refusal(
                429,
                f"the server is busy with {self._admitted} texts; try again later",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        self._admitted += count

    def release(self, count: int) -> None:
        """Free the places of `count` texts."""
        self._admitted -= count

    def submit(self, tasks: Sequence[TextTask]) -> None:
        """Begin `tasks` as soon as there is room. Call this in the thread of the event loop.

        Raises:
            Refusal: `stop` was called.
        """
        with self._changed:
            if self._is_stopping:
                raise STOPPING
            self._loop = asyncio.get_running_loop()
            waiting = [task for task in self._waiting if not task.is_cancelled]
            self._waiting = deque([*waiting, *tasks])
            self._changed.notify()

    def stop(self) -> None:
        """End the thread, and all tasks with an error."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Generate until `stop` is called."""
        while not self._is_stopping:
            for model, tasks in self._joining().items():
                self._join(model, tasks)
            for model in list(self._running):
                self._step(model)
        with self._changed:
            self._report([(task, STOPPING) for task in [*self._tasks(), *self._waiting]])

    def _tasks(self) -> list[TextTask]:
        return [task for _, tasks in self._running.values() for task in tasks]

    def _joining(self) -> dict[ServedModel, list[TextTask]]:
        """Return the waiting tasks for which there is room; wait if there is nothing to do."""
        joining: dict[ServedModel, list[TextTask]] = {}
        with self._changed:
            while not (self._waiting or self._running or self._is_stopping):
                self._changed.wait()
            for _ in range(min(MAX_TEXTS - len(self._tasks()), len(self._waiting))):
                task = self._waiting.popleft()
                if not task.is_cancelled:
                    joining.setdefault(task.model, []).append(task)
        return joining

    def _join(self, model: ServedModel, tasks: list[TextTask]) -> None:
        """Add `tasks` to the texts that are generated with `model`."""
        texts, running = [task.text for task in tasks], self._running.pop(model, None)
        try:
            if running is None:
                model.engine.select([0] * len(texts))  # rows, to be prefilled
                generator = Generator(model.engine, texts, model.vocabulary.unknown_id)
                self._running[model] = generator, tasks
            else:
                running[0].add(texts)
                self._running[model] = running[0], running[1] + tasks
        except Exception as error:
            self._fail([*(running[1] if running else ()), *tasks], error)

    def _step(self, model: ServedModel) -> None:
        """Append an id to each text of `model`; drop the texts that have ended."""
        generator, tasks = self._running[model]
        try:
            ids, log_probabilities = generator.step()
            if model.vocabulary.unknown_id is not None:  # the loss of each of these characters
                shared_by = model.vocabulary.unknown
                log_probabilities[:, model.vocabulary.unknown_id] -= math.log(shared_by)
            rows = zip(tasks, ids, log_probabilities, strict=True)
            self._report([(task, _token(id_, row, task.likely)) for task, id_, row in rows])
            for task in tasks:
                task.count -= 1
            kept = [i for i, task in enumerate(tasks) if task.count and not task.is_cancelled]
            if kept and len(kept) < len(tasks):
                generator.select(kept)
            self._running[model] = generator, [tasks[i] for i in kept]
            if not kept:
                del self._running[model]
        except Exception as error:
            del self._running[model]
            self._fail(tasks, error)

    def _fail(self, tasks: Sequence[TextTask], error: Exception) -> None:
        """End `tasks` with an error; other tasks and later ones are not affected."""
        if not isinstance(error, GPTError):
            log.error("internal error: %r", error, exc_info=log.isEnabledFor(logging.DEBUG))
        message = str(error) if isinstance(error, GPTError) else f"internal error: {error!r:.200}"
        self._report([(task, Refusal(500, message)) for task in tasks])

    def _report(self, news: list[tuple[TextTask, Token | Refusal]]) -> None:
        """Give tokens and errors to their tasks, in the thread of the event loop."""

        def arrive() -> None:
            for task, token in news:
                if isinstance(token, Refusal):
                    task.error = token
                elif not task.is_cancelled:
                    task.tokens.append(token)
                task.changed.set()

        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop was closed
                self._loop.call_soon_threadsafe(arrive)


def _token(id_: int, log_probabilities: NDArray[np.float64], likely: int | None) -> Token:
    """Return an id as a token, with the `likely` most likely ids; None for no such list."""
    if likely is None:
        return Token(id_, float(log_probabilities[id_]), None)
    top = np.argsort(-log_probabilities, kind="stable")[:likely].tolist()
    chosen = {each: float(log_probabilities[each]) for each in [*top, id_]}
    return Token(id_, chosen[id_], chosen)
