"""Fields of a request to /v1/completions, as in OpenAI's API."""

import reprlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from starlette.exceptions import HTTPException

from gpt.config.sample_config import Probability, SampleConfig
from gpt.config.section import NonNegativeFloat, PositiveInt

MAX_REQUEST_TOKENS = 2**16  # largest number of tokens of a request, because all stay in memory
MAX_LIKELY = 5  # largest number of alternatives listed for a token
MAX_STOPS = 16  # largest number of stop strings of a request
LISTS = {  # messages about fields that accept a list or a single item
    "prompt": "expected a text, a list of ids, or a list of texts or of lists of ids",
    "logit_bias": "expected an object with ids as keys and numbers from -100 to 100",
    "stop": f"expected a text or a list of at most {MAX_STOPS} texts",
}
# `fail_fast` stops at the first wrong item, because a list can have half a million items
TextList = Annotated[list[str], Field(fail_fast=True)]
TokenKey = Annotated[str, Field(pattern=r"^\d{1,9}$")]  # an id as a key of JSON
Bias = Annotated[float, Field(ge=-100, le=100)]  # added to a logit
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Prompts = TextList | Annotated[list[TokenIds], Field(fail_fast=True)]


def _listed(value: Any) -> Any:
    """Wrap a single text, or a single list of ids, in a list."""
    is_ids = isinstance(value, list) and value and all(isinstance(each, int) for each in value)
    return [value] if isinstance(value, str) or is_ids else value


class CompletionRequest(BaseModel):
    """A request to continue, or score, one or more prompts.

    A token is an id: a character or, with a byte model, a byte. The defaults are OpenAI's. A field
    that is null has its default.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str | None = None
    prompt: Annotated[Prompts, Field(min_length=1), BeforeValidator(_listed)] = [""]
    max_tokens: int = Field(16, ge=0)
    temperature: NonNegativeFloat = 1.0
    top_p: Probability = 1.0
    top_k: PositiveInt | None = None  # not in OpenAI's API
    min_p: Probability = 0.0  # not in OpenAI's API
    logit_bias: dict[TokenKey, Bias] = {}
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    n: int = Field(1, ge=1)
    stop: Annotated[list[str], Field(max_length=MAX_STOPS), BeforeValidator(_listed)] = []
    stream: bool = False
    stream_options: dict[str, bool] = {}  # only `include_usage` has an effect
    logprobs: int | None = Field(None, ge=0, le=MAX_LIKELY)
    echo: bool = False
    user: str | None = None  # ignored
    # not supported: only the value that changes nothing is accepted
    best_of: Literal[1] = 1
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def rules(self) -> SampleConfig:
        """The sampling rules."""
        return SampleConfig(**self.model_dump(include=set(SampleConfig.model_fields)))


def parse_request(body: bytes) -> CompletionRequest:
    """Parse the body of a request.

    Raises:
        HTTPException: it is not JSON, or a field is unknown or wrong.
    """
    try:
        return CompletionRequest.model_validate_json(body)
    except ValidationError as error:
        mistake = error.errors(include_url=False, include_context=False)[0]
    field = str(mistake["loc"][0]) if mistake["loc"] else ""
    message = LISTS.get(field, mistake["msg"].replace("Input should be", "expected"))
    if mistake["type"] == "json_invalid":
        message = f"expected a JSON object: {message}"
    elif mistake["type"] == "extra_forbidden":
        message = f"{field:.100}: no such field; leave it out"
    else:
        message = f"{field}: {message}, got {reprlib.repr(mistake['input'])}".removeprefix(": ")
    raise HTTPException(400, message)
