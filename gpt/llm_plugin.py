"""Plugin for llm (https://llm.datasette.io): `llm -m gpt/RUN "Once"` continues a text.

Each run under `runs/` of the working folder is a model. `llm models` lists them.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import llm
from pydantic import Field

from gpt.errors import GPTError
from gpt.runs.find import RUNS, run_folders
from gpt.runs.format import has_checkpoint


class RunOptions(llm.Model.Options):
    """Options of `llm -m gpt/RUN -o NAME VALUE`. The defaults are those of the run."""

    temperature: float | None = Field(None, ge=0, description="0: always the likeliest character")
    top_p: float | None = Field(None, ge=0, le=1, description="keep the likeliest that sum to this")
    length: int | None = Field(None, ge=0, description="characters to sample")
    seed: int | None = Field(None, ge=0, description="the same seed repeats a text")


class RunModel(llm.Model):
    """Model of llm that continues a prompt with a run."""

    can_stream = True
    Options = RunOptions

    def __init__(self, name: str) -> None:
        self.name, self.model_id = name, f"gpt/{name}"

    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: Any
    ) -> Iterator[str]:
        """Yield the continuation of the prompt in parts, without the prompt."""
        from gpt.api import load

        options = cast(RunOptions, prompt.options)
        seed = int.from_bytes(os.urandom(3)) if options.seed is None else options.seed
        rules = {"temperature": options.temperature, "top_p": options.top_p}
        try:
            yield from load(RUNS / self.name).generate(
                prompt.prompt or "", length=options.length, seed=seed, rules=rules
            )
        except GPTError as error:
            raise llm.ModelError(str(error)) from error


@llm.hookimpl
def register_models(register: Any) -> None:
    """Register a RunModel for each run that has a checkpoint."""
    with suppress(GPTError):  # `runs` is a file or unreadable; llm must still start
        for folder in filter(has_checkpoint, run_folders()):
            register(RunModel(folder.relative_to(RUNS).as_posix()))
