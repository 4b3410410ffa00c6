"""Answer completion requests: `Batch` generates the ids of their texts, which become JSON here."""

import asyncio
import json
import os
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from gpt.sampling.generate import PLAIN, GrowingText, sample_sources
from gpt.sampling.prompt import encode_prompt
from gpt.sampling.stopping import Detokenizer, StopBuffer
from gpt.serve.batch import MAX_ADMITTED, Batch, TextTask, Token
from gpt.serve.choice_text import ChoiceText
from gpt.serve.completion_request import MAX_REQUEST_TOKENS, CompletionRequest
from gpt.serve.refusal import Refusal
from gpt.serve.served_run import ServedModel


class Completion:
    """A request that is being answered. It must be closed, which frees its places in the batch.

    Args:
        request: the request.
        model: the model, which is used to the end of the request.
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
        self.choices = [
            ChoiceText(
                Detokenizer(model.vocabulary, prompt),
                StopBuffer(index, [stop for stop in request.stop if stop], request.max_tokens),
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
        """Cancel what is not yet generated, and free the places of the request."""
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
        choices = [self._taken(choice) for choice in self.choices]
        return self.head | {"choices": choices, "usage": self._usage()}

    async def events(self) -> AsyncIterator[str]:
        """Yield the response as server-sent events, while it is generated."""
        with_usage = self.request.stream_options.get("include_usage")
        end = {"usage": None} if with_usage else {}
        try:
            async for choices in self._news():
                events = [self.head | {"choices": [self._taken(each)]} | end for each in choices]
                yield "".join(map(_event, events))
            if with_usage:
                yield _event(self.head | {"choices": [], "usage": self._usage()})
        except Refusal as error:
            yield _event(error.content)
        yield "data: [DONE]\n\n"

    async def _news(self) -> AsyncIterator[list[ChoiceText]]:
        """Yield the choices that have new text, whenever there is some."""
        request, n = self.request, self.request.n
        if request.echo:
            scores = await self._scores()
            for choice in self.choices:
                await asyncio.to_thread(self._echo, choice, scores[choice.buffer.sample // n])
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
            for source in sample_sources(seed, range(n))
        ]
        tasks = self._begin(texts)
        pending = dict(zip(self.choices, tasks, strict=True))
        while pending:
            await self._arrival()
            changed = []
            for choice, task in list(pending.items()):
                tokens, task.tokens = task.tokens, []
                choice.add(tokens)
                if choice.finish_reason is not None:
                    task.count = 0
                    del pending[choice]
                if choice.tokens or choice.finish_reason is not None:
                    changed.append(choice)
            if changed:
                yield changed

    def _echo(self, choice: ChoiceText, prompt: list[Token]) -> None:
        """Begin a choice with its prompt."""
        buffer = StopBuffer(choice.buffer.sample, (), len(prompt))
        echo = ChoiceText(Detokenizer(self.model.vocabulary), buffer)
        echo.add(prompt)
        choice.text, choice.tokens, choice.offsets = echo.text, echo.tokens, echo.offsets
        choice.offset = echo.offset

    async def _scores(self) -> list[list[Token]]:
        """Return the tokens of each prompt, with log-probabilities if they are requested.

        The first token of a prompt has none.
        """
        tokens = [[Token(id_, None, None) for id_ in ids] for ids in self.prompts]
        if self.request.logprobs is None:
            return tokens
        scored = [(row, ids) for row, ids in enumerate(self.prompts) if len(ids) > 1]
        source = sample_sources(0, [0])[0]  # no number is drawn
        texts = [GrowingText(ids[:1], source, PLAIN, deque(ids[1:])) for _, ids in scored]
        tasks = self._begin(texts)
        for (row, ids), task in zip(scored, tasks, strict=True):
            while len(task.tokens) < len(ids) - 1:
                await self._arrival()
            tokens[row][1:] = task.tokens
        return tokens

    def _begin(self, texts: Sequence[GrowingText]) -> list[TextTask]:
        """Begin to score the ids that are given with `texts`, or to generate if there are none."""
        count, likely = self.request.max_tokens, self.request.logprobs
        self._tasks = [
            TextTask(self.model, text, len(text.given) or count, likely, self._changed)
            for text in texts
        ]
        self.batch.submit(self._tasks)
        return self._tasks

    async def _arrival(self) -> None:
        """Wait for news of this request's tasks; raise the error of one of them, if any."""
        await self._changed.wait()
        self._changed.clear()
        for task in self._tasks:
            if task.error is not None:
                raise task.error

    def _taken(self, choice: ChoiceText) -> dict[str, Any]:
        """Return the part of a choice that was not yet sent, as JSON."""
        text, tokens, offsets = choice.text, choice.tokens, choice.offsets
        choice.text, choice.tokens, choice.offsets = "", [], []
        names, logprobs = self.model.vocabulary.names, None
        if self.request.logprobs is not None:
            logprobs = {
                "tokens": [names[token.id] for token in tokens],
                "token_logprobs": [token.log_probability for token in tokens],
                "top_logprobs": [
                    None
                    if token.likely is None
                    else {names[id_]: log_p for id_, log_p in token.likely.items()}
                    for token in tokens
                ],
                "text_offset": offsets,
            }
        return {
            "index": choice.buffer.sample,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }

    def _usage(self) -> dict[str, int]:
        prompts = sum(map(len, self.prompts))
        generated = sum(choice.received for choice in self.choices)
        return {
            "prompt_tokens": prompts,
            "completion_tokens": generated,
            "total_tokens": prompts + generated,
        }


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
