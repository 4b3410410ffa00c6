"""The fields of a request to /v1/completions, as in OpenAI's API."""

import reprlib
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpt.config.sample_config import Penalty, Probability, SampleConfig
from gpt.config.section import NonNegativeFloat, PositiveInt
from gpt.serve.refusal import Refusal

MAX_TOKENS = 2**16  # most tokens of a text
MAX_REQUEST_TOKENS = 2**18  # most tokens of all texts of a request, which are kept in memory
MAX_LIKELY = 5  # most likely ids that are listed with a token
MAX_STOPS = 16  # stop strings of a request
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class StreamOptions(BaseModel):
    """Options of a streamed response."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False


class CompletionRequest(BaseModel):
    """A request to continue, or score, one or more prompts.

    A token is an id: a character or, with a byte model, a byte. The defaults are OpenAI's. A field
    that is null has its default. Fields of OpenAI's API that would change the text, but cannot be
    obeyed, are refused unless they have no effect.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str | None = None
    prompt: str | list[str] | list[int] | list[list[int]] = ""
    max_tokens: int = Field(16, ge=0, le=MAX_TOKENS)
    temperature: NonNegativeFloat = 1.0
    top_p: Probability = 1.0
    top_k: PositiveInt | None = None  # not in OpenAI's API
    min_p: Probability = 0.0  # not in OpenAI's API
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    seed: Int64 | None = None
    n: int = Field(1, ge=1)
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    logprobs: int | None = Field(None, ge=0, le=MAX_LIKELY)
    echo: bool = False
    best_of: int | None = None
    suffix: str = Field("", max_length=0)
    logit_bias: dict[str, float] = Field({}, max_length=0)
    user: str | None = None  # ignored

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        if isinstance(fields, dict):
            return {name: value for name, value in fields.items() if value is not None}
        return fields

    @model_validator(mode="after")
    def _only_one_of(self) -> "CompletionRequest":
        if self.best_of not in (None, self.n):
            raise ValueError(f"best_of: expected n, which is {self.n}; leave it out")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts: texts, or lists of ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)  # type: ignore[arg-type]

    @property
    def stops(self) -> list[str]:
        """The strings that end a text."""
        return [stop for stop in ([self.stop] if isinstance(self.stop, str) else self.stop) if stop]

    @property
    def rules(self) -> SampleConfig:
        """The sampling rules."""
        return SampleConfig(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
        )


def parse_request(body: bytes) -> CompletionRequest:
    """Parse the body of a request.

    Raises:
        Refusal: it is not JSON, or a field is unknown or wrong.
    """
    try:
        return CompletionRequest.model_validate_json(body)
    except ValidationError as error:
        mistake = error.errors(include_url=False, include_context=False)[0]
    field = str(mistake["loc"][0]) if mistake["loc"] else None
    message, got = mistake["msg"].removeprefix("Value error, "), reprlib.repr(mistake["input"])
    if mistake["type"] == "json_invalid":
        raise Refusal(400, f"expected a JSON object: {message}")
    if mistake["type"] == "extra_forbidden":
        raise Refusal(400, f"{field:.100}: no such field; leave it out", param=field)
    message = message.replace("Input should be", "expected")
    raise Refusal(400, message if field is None else f"{field}: {message}, got {got}", param=field)
