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
Penalty = Annotated[float, Field(ge=-100, le=100)]  # in logits


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
    presence_penalty: Penalty = resumable(
        0.0, "subtracted from the logit of each character that occurs among the last 64"
    )
    frequency_penalty: Penalty = resumable(
        0.0, "subtracted from a character's logit once for each occurrence among the last 64"
    )
