"""Generate and score the texts of many requests in one batch."""

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from gpt.sampling.generate import GrowingText
from gpt.serve.refusal import Refusal, refusal_of
from gpt.serve.served_run import MAX_TEXTS, ServedModel

MAX_ADMITTED = 256  # texts that are generated, wait for it, or wait for their client to read them


class Token(NamedTuple):
    """An id of a text, with its log-probability and those of the most likely ids."""

    id: int
    log_probability: float | None  # None for the first id of a text that is scored
    likely: dict[int, float] | None


@dataclass(eq=False)
class TextTask:
    """A text to generate or to score."""

    model: ServedModel
    text: GrowingText  # with the prompt and the sampling rules; `text.given` is scored
    count: int  # ids that are still to be appended; 0 if no more are wanted
    likely: int | None  # likely ids to report with each id; None for no log-probabilities
    changed: asyncio.Event  # is set when `tokens` or `error` changes
    tokens: list[Token] = field(default_factory=list)  # those that have arrived
    error: Refusal | None = None

    def fail(self, error: Refusal) -> None:
        """End the task with an error."""
        self.count, self.error = 0, error
        self.changed.set()


class Batch:
    """Texts that are generated together. They join and leave between two characters.

    The ids of a text depend neither on other texts nor on the time at which it joins. A text that
    was begun with a checkpoint is continued with it, even if a newer one is loaded. A second thread
    computes the ids; all else happens in the thread of the event loop.
    """

    def __init__(self) -> None:
        self._waiting: list[TextTask] = []
        self._running: dict[ServedModel, list[TextTask]] = {}
        self._admitted = 0  # texts
        self._thread = ThreadPoolExecutor(1, "gpt batch")
        self._worker: asyncio.Task[None] | None = None
        self._stopping: Refusal | None = None

    def reserve(self, count: int) -> None:
        """Reserve places for `count` texts, until `release` is called.

        Raises:
            Refusal: there are too many texts.
        """
        if self._admitted + count > MAX_ADMITTED:
            raise Refusal(
                429,
                f"the server is busy with {self._admitted} texts; try again later",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        self._admitted += count

    def release(self, count: int) -> None:
        """Free the places of `count` texts."""
        self._admitted -= count

    def submit(self, tasks: Sequence[TextTask]) -> None:
        """Begin `tasks` as soon as there is room.

        Raises:
            Refusal: `stop` was called.
        """
        if self._stopping:
            raise self._stopping
        self._waiting += tasks
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._generate())

    def stop(self) -> None:
        """End all tasks with an error."""
        self._stopping = Refusal(503, "the server is stopping")
        for task in chain(*self._running.values(), self._waiting):
            task.fail(self._stopping)

    async def _generate(self) -> None:
        """Generate until no text is wanted."""
        while self._waiting or self._running:
            for model in dict.fromkeys([*self._running, *(task.model for task in self._waiting)]):
                await self._step(model)

    async def _step(self, model: ServedModel) -> None:
        """Append an id to each text of `model` that is wanted, and for which there is room."""
        running = self._running.pop(model, [])
        kept = [row for row, task in enumerate(running) if task.count]
        others = sum(task.count > 0 for task in chain(*self._running.values()))
        wanted = [task for task in self._waiting if task.count]
        joining = [task for task in wanted if task.model is model][: MAX_TEXTS - len(kept) - others]
        self._waiting = [task for task in wanted if task not in joining]
        tasks = [running[row] for row in kept] + joining
        if not tasks:
            return
        self._running[model] = tasks
        advance = asyncio.get_running_loop().run_in_executor
        try:
            tokens = await advance(self._thread, _advanced, model, kept, joining, tasks)
        except Exception as error:
            del self._running[model]
            refusal = refusal_of(error)
            for task in tasks:
                task.fail(refusal)
            return
        for task, token in zip(tasks, tokens, strict=True):
            if task.count:
                task.count -= 1
                task.tokens.append(token)
                task.changed.set()


def _advanced(
    model: ServedModel, kept: list[int], joining: Sequence[TextTask], tasks: Sequence[TextTask]
) -> list[Token]:
    """Append an id to each text of a model.

    Args:
        model: the model, whose generator has the texts.
        kept: the rows of the generator to keep.
        joining: tasks whose texts are added after these rows.
        tasks: all tasks, one for each row afterwards.

    Returns:
        The new token of each of `tasks`.
    """
    generator, vocabulary = model.generator, model.vocabulary
    if joining or len(kept) < len(generator.texts):
        generator.select(kept, [task.text for task in joining])
    ids, log_probabilities = generator.step()
    if vocabulary.unknown_id is not None:  # the loss of each of the characters that share this id
        log_probabilities[:, vocabulary.unknown_id] -= math.log(vocabulary.unknown)
    tokens = []
    for id_, row, task in zip(ids, log_probabilities, tasks, strict=True):
        likely = None
        if task.likely is not None:
            top = np.argsort(-row, kind="stable")[: task.likely].tolist()
            likely = {each: float(row[each]) for each in [*top, id_]}
        tokens.append(Token(id_, float(row[id_]), likely))
    return tokens
