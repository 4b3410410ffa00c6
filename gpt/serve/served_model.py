"""The model that is served: its engines, its page, and the encoding of prompts."""

import time
import unicodedata
from collections.abc import Iterable
from copy import copy
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from gpt.export.html import html_page
from gpt.runs.format import CheckpointData
from gpt.sampling.choose_engine import Engine, open_engine
from gpt.text.vocabulary import listed_characters, normalized

MAX_TEXTS = 32  # largest number of texts in all requests that are being answered
MAX_MARKS = 100  # largest number of combining characters in a row; normalising n of them is O(n^2)


class ServedModel:
    """The model of a checkpoint of the run `name`.

    Raises:
        DeviceError: this machine does not have the device.
        OutOfMemory: there is not enough memory to generate several texts.
    """

    def __init__(self, name: str, checkpoint: CheckpointData, device: str) -> None:
        self.name, self.created = name, int(time.time())
        self.checkpoint, self.vocabulary = checkpoint, checkpoint.vocabulary
        self._engine = open_engine(checkpoint, device, MAX_TEXTS)  # checks that memory suffices

    @cached_property
    def page(self) -> bytes:
        """The page of `gpt export --to html`."""
        return html_page(self.name, self.checkpoint)

    def engine(self, B: int) -> Engine:
        """Return an engine for B texts; all engines share the same weights."""
        engine = copy(self._engine)
        engine.select([0] * B)
        return engine

    def encode(self, prompt: str | list[int]) -> list[int]:
        """Return the ids of a prompt, after normalising it if it is a string.

        Raise HTTPException if it cannot be normalised or has ids or characters outside the
        vocabulary.
        """
        if isinstance(prompt, str):
            text = self.normalized("prompt", prompt)
            if outside := self.vocabulary.outside(text):
                message = "prompt: it has characters outside the model's vocabulary"
                raise HTTPException(400, f"{message}: {listed_characters(outside)}; leave them out")
            return self.vocabulary.encode(text).tolist()
        self._check_ids("prompt", prompt)
        return prompt

    def normalized(self, field: str, text: str) -> str:
        """Normalise `text`, the value of a request's `field`, as the text of the run was."""
        rows = groupby(text, lambda character: unicodedata.combining(character) > 0)
        marks = max((len([*row]) for is_combining, row in rows if is_combining), default=0)
        if marks > MAX_MARKS:
            message = f"{field}: expected at most {MAX_MARKS} combining characters in a row"
            raise HTTPException(400, f"{message}, got {marks}; leave some out")
        return normalized(text, self.vocabulary)

    def bias(self, logit_bias: dict[str, float]) -> NDArray[np.float64]:
        """Return the numbers (V,) to add to the logits; raise HTTPException for unknown ids."""
        ids = [*map(int, logit_bias)]
        self._check_ids("logit_bias", ids)
        bias = np.zeros(len(self.vocabulary))
        bias[ids] = [*logit_bias.values()]
        return bias

    def _check_ids(self, field: str, ids: Iterable[int]) -> None:
        V = len(self.vocabulary)
        if outside := [id_ for id_ in ids if not 0 <= id_ < V]:
            message = f"{field}: expected ids from 0 to {V - 1}, got {outside[0]}"
            raise HTTPException(400, message)
