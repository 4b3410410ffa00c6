"""The run that is served: the model of its newest checkpoint, and the encoding of prompts."""

import logging
import time
import unicodedata
from copy import copy
from itertools import groupby
from pathlib import Path

from starlette.exceptions import HTTPException

from gpt.errors import GPTError, UsageError
from gpt.export.html import html_page
from gpt.runs.format import CheckpointData
from gpt.runs.read import read_checkpoint, read_summary
from gpt.sampling.engine import Engine, open_engine
from gpt.text.normalizer import normalized
from gpt.text.prompt import check_known

MAX_TEXTS = 32  # largest number of texts in all requests that are being answered
MAX_MARKS = 100  # largest number of combining characters in a row; normalising n takes O(n^2) time

log = logging.getLogger(__name__)


class ServedModel:
    """The model of one checkpoint."""

    def __init__(self, checkpoint: CheckpointData, device: str) -> None:
        self.checkpoint, self.vocabulary, self.page = checkpoint, checkpoint.vocabulary, b""
        self._engine = open_engine(checkpoint, device, MAX_TEXTS)  # checks that memory suffices

    def engine(self, B: int) -> Engine:
        """Return an engine for B texts, which shares the weights with other engines."""
        engine = copy(self._engine)
        engine.select([0] * B)
        return engine

    def encode(self, prompt: str | list[int]) -> list[int]:
        """Return the ids of a prompt, after normalising it if it is a string.

        Raises:
            HTTPException: the prompt has characters or ids outside the vocabulary; or it cannot be
                normalised.
        """
        if isinstance(prompt, str):
            text = self.normalized("prompt", prompt)
            try:
                check_known(text, self.vocabulary)
            except UsageError as error:
                raise HTTPException(400, f"prompt: {error}") from None
            return self.vocabulary.encode(text).tolist()
        V = len(self.vocabulary)
        if outside := [id_ for id_ in prompt if not 0 <= id_ < V]:
            raise HTTPException(400, f"prompt: expected ids from 0 to {V - 1}, got {outside[0]}")
        return prompt

    def normalized(self, field: str, text: str) -> str:
        """Normalise `text`, the value of a `field`, like the text of the run.

        Raises:
            HTTPException: it has more than MAX_MARKS combining characters in a row.
        """
        if (marks := _most_marks(text)) > MAX_MARKS:
            message = f"{field}: expected at most {MAX_MARKS} combining characters in a row"
            raise HTTPException(400, f"{message}, got {marks}; leave some out")
        return normalized(text, self.checkpoint.config.data, self.vocabulary)


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
        self._model = ServedModel(checkpoint, device)

    def model(self) -> ServedModel:
        """Return the model of the newest checkpoint.

        If that checkpoint is damaged or deleted, or has the same weights, return the same model as
        before.
        """
        current = self._model.checkpoint
        try:
            if read_summary(self.run, self.which).weights_sha256 != current.weights_sha256:
                new = read_checkpoint(self.run, self.which)
                self._model = ServedModel(new, self.device)
                log.info("%s: now serving step %d", self.run, new.step)
        except GPTError as error:
            log.warning("still serving step %d: %s", current.step, error)
        return self._model

    def page(self) -> bytes:
        """Return the page of `gpt export --to html`."""
        model = self.model()
        if not model.page:
            model.page = html_page(self.name, model.checkpoint)
        return model.page
