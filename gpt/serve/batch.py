"""Generate and score the texts of many requests in one batch."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from gpt.sampling.generate import GrowingText
from gpt.serve.refusal import Refusal, refusal_of
from gpt.serve.served_run import MAX_TEXTS, ServedModel

MAX_ADMITTED = 256  # texts that wait, are being generated, or are not yet read by their client


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
    likely: int | None  # number of likely ids to report with each id; None for no probabilities
    changed: asyncio.Event  # is set when `tokens` or `error` changes
    tokens: list[Token] = field(default_factory=list)  # new ones, until the completion takes them
    error: Refusal | None = None

    def fail(self, error: Refusal) -> None:
        """End the task with an error."""
        self.count, self.error = 0, error
        self.changed.set()


class Batch:
    """Texts that are generated together. A text can join or leave after any id.

    The ids of a text do not depend on other texts, or on when the text joins. One checkpoint
    generates the whole text, even if a newer checkpoint is loaded meanwhile. A second thread
    computes the ids; everything else happens in the thread of the event loop.
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
        """Append ids until no task is waiting or running."""
        while self._waiting or self._running:
            for model in dict.fromkeys([*self._running, *(task.model for task in self._waiting)]):
                await self._step(model)

    async def _step(self, model: ServedModel) -> None:
        """Append an id to each unfinished text of `model` for which there is room."""
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
            tokens = await advance(self._thread, _append_ids, model, kept, tasks)
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


def _append_ids(model: ServedModel, kept: list[int], tasks: Sequence[TextTask]) -> list[Token]:
    """Append an id to the text of each task; return the new tokens.

    Args:
        model: the model; the texts are in its generator.
        kept: the rows of the generator to keep; the texts of all other rows are dropped.
        tasks: the tasks of the rows `kept`, then the tasks whose texts join the generator.
    """
    generator = model.generator
    joining = tasks[len(kept) :]
    if joining or len(kept) < len(generator.texts):
        generator.select(kept, [task.text for task in joining])
    ids, log_probabilities = generator.step()
    tokens = []
    for id_, row, task in zip(ids, log_probabilities, tasks, strict=True):
        likely = None
        if task.likely is not None:
            top = np.argsort(-row, kind="stable")[: task.likely].tolist()
            likely = {each: float(row[each]) for each in [*top, id_]}
        tokens.append(Token(id_, float(row[id_]), likely))
    return tokens
