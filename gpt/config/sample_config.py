"""Settings of sampling; `gpt sample` has an option for each."""

from typing import Annotated

from pydantic import Field

from gpt.config.section import (
    ConfigSection,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    resumable,
)

Probability = Annotated[float, Field(ge=0, le=1)]


class SampleConfig(ConfigSection):
    """Settings of how characters are drawn from the probabilities that the model predicts."""

    length: NonNegativeInt = resumable(500, "characters to sample", group="sampling")
    temperature: NonNegativeFloat = resumable(
        0.8, "above 1: more random; below 1: more predictable; 0 = always the most likely character"
    )
    top_k: PositiveInt | None = resumable(
        None, "sample only from the k most likely characters; null = from all"
    )
    top_p: Probability = resumable(
        1.0, "sample only from the most likely characters that together have this probability"
    )
    min_p: Probability = resumable(
        0.005, "drop characters less likely than this times the most likely one"
    )
