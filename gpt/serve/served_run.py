"""The run that is served: the model of its newest checkpoint, and the encoding of prompts."""

import asyncio
import logging
import os
import time
from functools import cached_property
from pathlib import Path

from gpt.errors import GPTError, UsageError
from gpt.export.exported_run import ExportedRun
from gpt.export.html import html_page
from gpt.runs.format import INDEX, CheckpointData
from gpt.runs.read import read_checkpoint, read_summary
from gpt.sampling.engine import open_engine
from gpt.sampling.prompt import check_known
from gpt.serve.refusal import Refusal
from gpt.text.normalizer import normalized

MAX_TEXTS = 32  # texts that are generated at once; others wait

log = logging.getLogger(__name__)


class ServedModel:
    """The model of one checkpoint.

    Attributes:
        run: the folder of the run.
        checkpoint: the content of the checkpoint.
        vocabulary: its characters and their ids.
        engine: the engine, which only the thread of the batch uses.
    """

    def __init__(self, run: Path, checkpoint: CheckpointData, device: str) -> None:
        self.run, self.checkpoint, self.vocabulary = run, checkpoint, checkpoint.vocabulary
        self.engine = open_engine(checkpoint, device, MAX_TEXTS)

    @cached_property
    def page(self) -> bytes:
        """The page of `gpt export --to html`, with weights of 16 bits, as UTF-8."""
        return html_page(ExportedRun(self.run, self.checkpoint, lambda: None))

    def encode(self, prompt: str | list[int]) -> list[int]:
        """Return the ids of a prompt, which is normalised like the text of the run.

        Raises:
            Refusal: the prompt has characters or ids outside the vocabulary.
        """
        if isinstance(prompt, str):
            text = normalized(prompt, self.checkpoint.config.data)
            try:
                check_known(text, self.vocabulary)
            except UsageError as error:
                raise Refusal(400, f"prompt: {error}", param="prompt") from None
            return self.vocabulary.encode(text).tolist()
        V = len(self.vocabulary)
        if outside := [id_ for id_ in prompt if not 0 <= id_ < V]:
            message = f"prompt: expected ids from 0 to {V - 1}, got {outside[0]}"
            raise Refusal(400, message, param="prompt")
        return prompt


class ServedRun:
    """A run whose newest checkpoint is served, also while it is being trained.

    Args:
        run: the folder of the run.
        which: `best`, `last` or a step.
        device: the device to sample on, such as `auto`.
        checkpoint: the checkpoint to begin with.
    """

    def __init__(self, run: Path, which: str, device: str, checkpoint: CheckpointData) -> None:
        self.run, self.which, self.device = run, which, device
        self.name, self.created = run.resolve().name, int(time.time())
        self._loading = asyncio.Lock()
        self._stamp = self._index_stamp()
        self._model = ServedModel(run, checkpoint, device)

    async def model(self) -> ServedModel:
        """Return the model of the newest checkpoint, after loading it if it is new."""
        async with self._loading:
            stamp = self._index_stamp()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._model = await asyncio.to_thread(self._loaded)
                except GPTError as error:
                    log.warning("step %d is still served: %s", self._model.checkpoint.step, error)
            return self._model

    def _loaded(self) -> ServedModel:
        """Load the checkpoint; return the current model if it has the same weights."""
        current = self._model.checkpoint.weights_sha256
        if read_summary(self.run, self.which).weights_sha256 == current:
            return self._model
        model = ServedModel(self.run, read_checkpoint(self.run, self.which), self.device)
        log.info("%s: now serving step %d", self.run, model.checkpoint.step)
        return model

    def _index_stamp(self) -> tuple[int, int] | None:
        """Return what changes when the run has a new checkpoint; None if there is no index."""
        try:
            status = os.stat(self.run / "checkpoints" / INDEX)  # noqa: PTH116 (no errors)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino
