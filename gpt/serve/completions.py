"""Answer completion requests, as in OpenAI's API: generate texts, and convert their ids to JSON."""

import os
import reprlib
import time
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from starlette.exceptions import HTTPException

from gpt.config.schema import Probability, SampleConfig
from gpt.config.section import PositiveInt
from gpt.sampling.generate import Generator, sample_streams
from gpt.sampling.stopping import Detokenizer, StopBuffer
from gpt.serve.served_model import MAX_TEXTS, ServedModel
from gpt.text.vocabulary import encode_prompt

MAX_REQUEST_TOKENS = 2**16  # most tokens to generate and echo for a request; limits memory
MAX_LIKELY = 5  # largest number of alternatives listed for a token
MAX_STOPS = 16  # largest number of stop strings of a request
LISTS = {  # messages about fields that accept a list or a single item
    "prompt": "expected a text, a list of ids, or a list of texts or of lists of ids",
    "logit_bias": "expected an object with ids as keys and numbers from -100 to 100",
    "stop": f"expected a text or a list of at most {MAX_STOPS} texts",
}
# `fail_fast` stops at the first wrong item, because a list can have half a million items
TextList = Annotated[list[str], Field(fail_fast=True)]
TokenKey = Annotated[str, Field(pattern=r"^\d{1,9}$")]  # an id, as the key of a JSON object
Bias = Annotated[float, Field(ge=-100, le=100)]  # added to a logit
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Prompts = TextList | Annotated[list[TokenIds], Field(fail_fast=True)]

PIECE_S = 0.03  # seconds of generating for one request before the next has its turn


def _listed(value: Any) -> Any:
    """Wrap a single text, or a single list of ids, in a list; return other values unchanged."""
    is_ids = isinstance(value, list) and value and all(isinstance(each, int) for each in value)
    return [value] if isinstance(value, str) or is_ids else value


class CompletionRequest(BaseModel):
    """A request to continue, or score, one or more prompts.

    A token is an id (a character or a byte). Absent and null fields have OpenAI's defaults.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str | None = None
    prompt: Annotated[Prompts, Field(min_length=1), BeforeValidator(_listed)] = [""]
    max_tokens: int = Field(16, ge=0)
    temperature: Annotated[float, Field(ge=0)] = 1.0
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
    # unsupported parameters, of which only the default values are accepted
    best_of: Literal[1] = 1
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}


def parse_request(body: bytes) -> CompletionRequest:
    """Parse the body of a request; raise HTTPException if it is not JSON or a field is wrong."""
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


class Token(NamedTuple):
    """An id of a text, with its log-probability and those of the most likely ids."""

    id: int
    log_probability: float | None = None  # None for the first id of a prompt
    likely: dict[str, float] | None = None  # log-probabilities of `id` and likely ids, by name


@dataclass(eq=False)
class CompletionChoice:
    """One generated text of a response. It collects tokens, and returns them in parts, as JSON."""

    detokenizer: Detokenizer
    buffer: StopBuffer  # its `length` is the number of generated tokens after which the text ends
    has_logprobs: bool  # whether the JSON lists tokens
    text: str = ""  # characters to send next
    sent: int = 0  # number of characters sent
    decoded: int = 0  # number of decoded characters, whether sent or not
    generated: int = 0  # number of tokens so far, including those of a stop string
    # tokens to send, each as (index of its character, token)
    tokens: deque[tuple[int, Token]] = field(default_factory=deque)
    finish_reason: str | None = None  # `stop` or `length`, once the text has ended

    def echo(self, prompt: list[Token]) -> None:
        """Begin the text with the tokens of `prompt`."""
        self.text = "".join(character for token in prompt for character, _ in self._decode(token))

    def add(self, token: Token) -> None:
        """Add a generated token, unless the text has ended."""
        if self.finish_reason is not None:
            return
        self.generated += 1
        for character in self._decode(token):
            chunk = self.buffer.push(*character)
            if chunk is not None:
                self.text += chunk.text
                if chunk.stop is not None:
                    self.finish_reason = "stop"
                    return
        if self.generated == self.buffer.length:
            self.text += self.buffer.release(len(self.buffer.text)).text
            self.finish_reason = "length"

    def _decode(self, token: Token) -> list[tuple[str, float]]:
        """Return the characters that `token` completes, as `Detokenizer.push` does."""
        characters = self.detokenizer.push(token.id, 0.0)
        self.decoded += len(characters)
        if self.has_logprobs:
            # a byte of an incomplete character gets the index that the character will have
            is_complete = not self.detokenizer.waiting
            self.tokens.append((self.decoded - is_complete, token))
        return characters

    def take(self) -> dict[str, Any]:
        """Return JSON of the characters and tokens to send; count them as sent."""
        text, self.text = self.text, ""
        self.sent += len(text)
        logprobs = None
        if self.has_logprobs:
            taken = []
            while self.tokens and (self.tokens[0][0] < self.sent or self.finish_reason == "length"):
                taken.append(self.tokens.popleft())
            names = self.detokenizer.names
            logprobs = {
                "tokens": [names[token.id] for _, token in taken],
                "token_logprobs": [token.log_probability for _, token in taken],
                "top_logprobs": [token.likely for _, token in taken],
                "text_offset": [index for index, _ in taken],
            }
        return {
            "index": self.buffer.sample,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": self.finish_reason,
        }


class Completion:
    """A request that is being answered.

    HTTPException is raised for a prompt that cannot be encoded, and for too many tokens or texts.
    """

    def __init__(self, request: CompletionRequest, model: ServedModel) -> None:
        self.request, self.model = request, model
        count = len(request.prompt) * request.n
        if count > MAX_TEXTS:
            message = f"expected at most {MAX_TEXTS} texts (prompts times n), got {count}"
            raise HTTPException(400, f"{message}; send several requests")
        encoded = [model.encode(prompt) for prompt in request.prompt]
        self.prompts = [ids for ids in encoded for _ in range(request.n)]
        tokens = request.max_tokens * count + request.echo * sum(map(len, self.prompts))
        if tokens > MAX_REQUEST_TOKENS:
            message = f"expected at most {MAX_REQUEST_TOKENS:,} tokens to generate and echo"
            raise HTTPException(400, f"{message}, got {tokens:,}; send several requests")
        stops = [model.normalized("stop", stop) for stop in request.stop if stop]
        self.bias = model.bias(request.logit_bias)
        self.choices = [
            CompletionChoice(
                Detokenizer(model.vocabulary, () if request.echo else prompt),
                StopBuffer(index, stops, request.max_tokens),
                has_logprobs=request.logprobs is not None,
            )
            for index, prompt in enumerate(self.prompts)
        ]
        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": f"step-{model.checkpoint.step}",
        }
        self._steps = self._generate()

    def advance(self) -> bool:
        """Generate for about PIECE_S seconds; return whether to call `advance` again."""
        end = time.monotonic() + PIECE_S
        return any(time.monotonic() >= end for _ in self._steps)

    def _generate(self) -> Iterator[None]:
        """Continue the prompts, after echoing them if requested; yield after each id."""
        request, model = self.request, self.model
        if request.echo:
            yield from self._echo()
        if request.max_tokens == 0:
            for choice in self.choices:
                choice.finish_reason = "length"
            return
        seed = int.from_bytes(os.urandom(6)) if request.seed is None else request.seed
        prompts = [prompt or encode_prompt("", model.vocabulary) for prompt in self.prompts]
        streams = [
            stream for _ in request.prompt for stream in sample_streams(seed, range(request.n))
        ]
        engine = model.engine(len(prompts))
        rules = SampleConfig(**request.model_dump(include=set(SampleConfig.model_fields)))
        generator = Generator(engine, prompts, streams, rules, self.bias)
        while any(choice.finish_reason is None for choice in self.choices):
            ids, log_probabilities = generator.step()
            for choice, id_, row in zip(self.choices, ids, log_probabilities, strict=True):
                choice.add(self._token(id_, row))
            yield

    def _echo(self) -> Iterator[None]:
        """Begin each choice with its prompt, scored if log-probabilities are requested."""
        n = self.request.n
        for start, prompt in zip(range(0, len(self.prompts), n), self.prompts[::n], strict=True):
            tokens = [Token(id_) for id_ in prompt]
            if self.request.logprobs is not None and prompt:
                generator = Generator(self.model.engine(1), [prompt[:1]], sample_streams(0, [0]))
                for i, id_ in enumerate(prompt[1:], 1):
                    [row] = generator.step([id_])[1]
                    tokens[i] = self._token(id_, row)
                    yield
            for choice in self.choices[start : start + n]:
                choice.echo(tokens)

    def _token(self, id_: int, log_probabilities: NDArray[np.float64]) -> Token:
        """Return the Token of `id_`, given the log-probabilities (V,) of all ids."""
        if (count := self.request.logprobs) is None:
            return Token(id_)
        top = np.argsort(-log_probabilities, kind="stable")[:count].tolist()
        names = self.model.vocabulary.names
        likely = {names[each]: float(log_probabilities[each]) for each in [*top, id_]}
        return Token(id_, float(log_probabilities[id_]), likely)

    def usage(self) -> dict[str, int]:
        """Return the numbers of tokens of the prompts and of the generated texts."""
        prompt = sum(map(len, self.prompts[:: self.request.n]))
        generated = sum(choice.generated for choice in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
        }
