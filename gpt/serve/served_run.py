"""The run that is served: the model of its newest checkpoint, and the encoding of prompts."""

import asyncio
import logging
import time
import unicodedata
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from gpt.errors import GPTError, UsageError
from gpt.export.html import html_page
from gpt.runs.format import INDEX, CheckpointData
from gpt.runs.read import read_checkpoint, read_summary
from gpt.sampling.engine import open_engine
from gpt.sampling.generate import PLAIN, Generator, GrowingText, sample_sources
from gpt.sampling.prompt import check_known
from gpt.sampling.sampler import PENALTY_CHARACTERS
from gpt.serve.refusal import Refusal
from gpt.text.normalizer import normalized

MAX_TEXTS = 32  # texts that are generated at once; others wait
MAX_MARKS = 100  # combining characters in a row; normalising n of them takes time of order n^2

log = logging.getLogger(__name__)


class ServedModel:
    """The model of one checkpoint."""

    def __init__(self, checkpoint: CheckpointData, device: str) -> None:
        self.checkpoint, self.vocabulary, self.page = checkpoint, checkpoint.vocabulary, b""
        engine = open_engine(checkpoint, device, MAX_TEXTS)
        engine.select([0])
        # an engine has at least one text: the first requests replace this one
        placeholder = GrowingText([0], sample_sources(0, [0])[0], PLAIN)
        # only the thread of the batch uses the generator
        self.generator = Generator(engine, [placeholder])
        # number of ids at the end of a prompt that affect the generated text
        self.context = max(checkpoint.config.model.T, PENALTY_CHARACTERS)

    def encode(self, prompt: str | list[int]) -> list[int]:
        """Return the ids of a prompt. A string is normalised like the text of the run.

        Raises:
            Refusal: the prompt has characters or ids outside the vocabulary; or it must be
                normalised, and has more than MAX_MARKS combining characters in a row.
        """
        if isinstance(prompt, str):
            data = self.checkpoint.config.data
            if data.normalize != "none" and (marks := _most_marks(prompt)) > MAX_MARKS:
                message = f"prompt: expected at most {MAX_MARKS} combining characters in a row"
                raise Refusal(400, f"{message}, got {marks}; leave some out", param="prompt")
            text = normalized(prompt, data)
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


def _most_marks(text: str) -> int:
    """Return the largest number of combining characters in a row."""
    rows = groupby(text, lambda character: unicodedata.combining(character) > 0)
    return max((len([*row]) for is_combining, row in rows if is_combining), default=0)


class ServedRun:
    """Run whose newest checkpoint is served, even while training continues.

    Args:
        run: the folder of the run.
        which: `best`, `last` or a step.
        device: the device to sample on, such as `auto`.
        checkpoint: the checkpoint to begin with.

    Raises:
        DeviceError: this machine does not have the device.
        OutOfMemory: there is not enough memory to generate several texts.
    """

    def __init__(self, run: Path, which: str, device: str, checkpoint: CheckpointData) -> None:
        self.run, self.which, self.device = run, which, device
        self.name, self.created = run.resolve().name, int(time.time())
        self._loading, self._rendering = asyncio.Lock(), asyncio.Lock()
        self._stamp: tuple[int, int] | None = None
        self._model = ServedModel(checkpoint, device)

    async def model(self) -> ServedModel:
        """Return the model of the newest checkpoint; load it if it is new."""
        async with self._loading:
            with suppress(OSError):  # the run was deleted
                status = (self.run / "checkpoints" / INDEX).stat()
                stamp = status.st_mtime_ns, status.st_ino
                if stamp != self._stamp:
                    self._stamp = stamp
                    self._model = await asyncio.to_thread(self._load)
            return self._model

    async def page(self) -> bytes:
        """Return the page of `gpt export --to html`."""
        model = await self.model()
        async with self._rendering:
            if not model.page:
                page = asyncio.to_thread(html_page, self.name, model.checkpoint)
                model.page = await page
        return model.page

    def _load(self) -> ServedModel:
        """Load the checkpoint; if it is damaged or has the same weights, keep the current model."""
        current = self._model.checkpoint
        try:
            if read_summary(self.run, self.which).weights_sha256 == current.weights_sha256:
                return self._model
            model = ServedModel(read_checkpoint(self.run, self.which), self.device)
        except GPTError as error:
            log.warning("step %d is still served: %s", current.step, error)
            return self._model
        log.info("%s: now serving step %d", self.run, model.checkpoint.step)
        return model
