"""Answer completion requests: convert the ids that `Batch` generates to JSON."""

import asyncio
import json
import os
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpt.sampling.generate import PLAIN, GrowingText, sample_sources
from gpt.sampling.prompt import encode_prompt
from gpt.sampling.stopping import Detokenizer, StopBuffer
from gpt.serve.batch import MAX_ADMITTED, Batch, TextTask, Token
from gpt.serve.completion_request import MAX_REQUEST_TOKENS, CompletionRequest
from gpt.serve.refusal import Refusal
from gpt.serve.served_run import ServedModel


@dataclass(eq=False)
class CompletionChoice:
    """One generated text of a response. It collects tokens, and returns them in parts, as JSON."""

    detokenizer: Detokenizer
    buffer: StopBuffer  # its `length` is the number of generated tokens after which the text ends
    has_logprobs: bool  # whether the JSON lists tokens
    text: str = ""  # characters to send next
    sent: int = 0  # number of characters sent
    decoded: int = 0  # number of characters so far, with those that may belong to a stop string
    generated: int = 0  # number of tokens so far, with those of a stop string
    # tokens to send, each as (index of its character, token)
    tokens: deque[tuple[int, Token]] = field(default_factory=deque)
    finish_reason: str | None = None  # `stop` or `length` at the end of the choice

    def echo(self, prompt: Sequence[Token]) -> None:
        """Begin the text with the tokens of `prompt`."""
        self.text = "".join(character for token in prompt for character, _ in self._decode(token))

    def add(self, tokens: Sequence[Token]) -> None:
        """Add generated tokens. Tokens after the end of the text are ignored."""
        for token in tokens:
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
                return

    def _decode(self, token: Token) -> list[tuple[str, float]]:
        """Return the characters that `token` completes, as `Detokenizer.push` does."""
        characters = self.detokenizer.push(token.id, 0.0)
        self.decoded += len(characters)
        if self.has_logprobs:
            # while bytes wait, the token belongs to the next character
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
                "top_logprobs": [
                    None
                    if token.likely is None
                    else {names[id_]: log_p for id_, log_p in token.likely.items()}
                    for _, token in taken
                ],
                "text_offset": [index for index, _ in taken],
            }
        return {
            "index": self.buffer.sample,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": self.finish_reason,
        }


class Completion:
    """A request that is being answered. Call `close` at the end to free its places in the batch.

    Args:
        request: the request.
        model: the model; it generates all texts, even if a newer checkpoint is loaded.
        name: the name of the model.
        batch: the batch that generates the texts.

    Raises:
        Refusal: a prompt cannot be encoded, or there are too many tokens or texts.
    """

    def __init__(
        self, request: CompletionRequest, model: ServedModel, name: str, batch: Batch
    ) -> None:
        self.request, self.model, self.batch = request, model, batch
        count = len(request.prompt) * request.n
        if count > MAX_ADMITTED:
            message = f"expected at most {MAX_ADMITTED} texts (prompts times n), got {count}"
            raise Refusal(400, f"{message}; send several requests")
        self.prompts = [model.encode(prompt) for prompt in request.prompt]
        tokens = request.max_tokens * count
        if request.echo:
            tokens += sum(map(len, self.prompts)) * request.n
        if tokens > MAX_REQUEST_TOKENS:
            message = f"expected at most {MAX_REQUEST_TOKENS:,} tokens to generate and echo"
            raise Refusal(400, f"{message}, got {tokens:,}; send several requests")
        self.prompt_tokens = sum(map(len, self.prompts))
        request.prompt.clear()  # it can have megabytes, and the request may have to wait
        if not request.echo:
            self.prompts = [ids[-model.context :] for ids in self.prompts]
        self.choices = [
            CompletionChoice(
                Detokenizer(model.vocabulary, () if request.echo else prompt),
                StopBuffer(index, [stop for stop in request.stop if stop], request.max_tokens),
                has_logprobs=request.logprobs is not None,
            )
            for index, prompt in enumerate(each for each in self.prompts for _ in range(request.n))
        ]
        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": name,
            "system_fingerprint": f"step-{model.checkpoint.step}",
        }
        self._changed = asyncio.Event()
        self._tasks: list[TextTask] = []
        batch.reserve(count)

    def close(self) -> None:
        """Stop generating, and free the places of the request in the batch."""
        for task in self._tasks:
            task.count = 0
        self.batch.release(len(self.choices))

    async def response(self) -> dict[str, Any]:
        """Return the whole response.

        Raises:
            Refusal: the model is broken, or the server stops.
        """
        async for _ in self._news():
            pass
        choices = [choice.take() for choice in self.choices]
        return self.head | {"choices": choices, "usage": self._usage()}

    async def events(self) -> AsyncIterator[str]:
        """Yield the response as server-sent events, while it is generated."""
        with_usage = self.request.stream_options.get("include_usage")
        end = {"usage": None} if with_usage else {}
        try:
            async for choices in self._news():
                events = [self.head | {"choices": [choice.take()]} | end for choice in choices]
                yield "".join(map(_event, events))
            if with_usage:
                yield _event(self.head | {"choices": [], "usage": self._usage()})
        except Refusal as error:
            yield _event(error.content)
        yield "data: [DONE]\n\n"

    async def _news(self) -> AsyncIterator[list[CompletionChoice]]:
        """Yield lists of the choices that have new text."""
        request = self.request
        if request.echo:
            await self._echo()
            yield self.choices
        if request.max_tokens == 0:
            for choice in self.choices:
                choice.finish_reason = "length"
            yield self.choices
            return
        seed = int.from_bytes(os.urandom(6)) if request.seed is None else request.seed
        rules = request.rules
        texts = [
            GrowingText(prompt or encode_prompt("", self.model.vocabulary), source, rules)
            for prompt in self.prompts
            for source in sample_sources(seed, range(request.n))
        ]
        self._begin(texts, [request.max_tokens] * len(texts))
        pending = dict(zip(self.choices, self._tasks, strict=True))
        while pending:
            await self._arrival()
            changed = []
            for choice, task in list(pending.items()):
                tokens, task.tokens = task.tokens, []
                choice.add(tokens)
                if choice.finish_reason is not None:
                    task.count = 0
                    del pending[choice]
                if choice.text or choice.finish_reason is not None:
                    changed.append(choice)
            if changed:
                yield changed

    async def _echo(self) -> None:
        """Begin each choice with its prompt. Score the prompts if log-probabilities are requested.

        The first token of a prompt has no log-probability.
        """
        prompts = [[Token(id_, None, None) for id_ in ids] for ids in self.prompts]
        if self.request.logprobs is not None:
            source = sample_sources(0, [0])[0]  # no number is drawn
            texts = [GrowingText(ids[:1], source, PLAIN, deque(ids[1:])) for ids in self.prompts]
            self._begin(texts, [len(text.given) for text in texts])
            while any(task.count for task in self._tasks):
                await self._arrival()
            for prompt, task in zip(prompts, self._tasks, strict=True):
                prompt[1:] = task.tokens
        for choice in self.choices:
            prompt = prompts[choice.buffer.sample // self.request.n]
            await asyncio.to_thread(choice.echo, prompt)

    def _begin(self, texts: Sequence[GrowingText], counts: Sequence[int]) -> None:
        """Submit a task for each text; `counts` has the number of ids to append to each."""
        self._tasks = [
            TextTask(self.model, text, count, self.request.logprobs, self._changed)
            for text, count in zip(texts, counts, strict=True)
        ]
        self.batch.submit(self._tasks)

    async def _arrival(self) -> None:
        """Wait until a task of this request changes. Raise its error if it failed."""
        await self._changed.wait()
        self._changed.clear()
        for task in self._tasks:
            if task.error is not None:
                raise task.error

    def _usage(self) -> dict[str, int]:
        generated = sum(choice.generated for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
        }


def _event(content: dict[str, Any]) -> str:
    # in ASCII: some clients would end the line at a character such as U+2028
    return f"data: {json.dumps(content)}\n\n"
