"""Text from a model as it is generated: up to a length, a stop string, or for ever.

Characters past the context length T cost what the first T cost.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt.errors import CheckpointError, UsageError
from gpt.sampling.detokenizer import Detokenizer
from gpt.sampling.engine import Engine, engine_of
from gpt.sampling.prompt import banned_ids, encode_prompt
from gpt.sampling.sampler import (
    NEVER,
    PENALTY_CHARACTERS,
    SamplingRules,
    choose,
    log_softmax,
)
from gpt.sampling.stopping import Chunk, StopBuffer
from gpt.seeds import uniforms
from gpt.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from gpt.model.ensemble import LanguageModel

DRAWS_AT_ONCE = 256
PREFILL_CHARACTERS = 2048  # that are prefilled together; more would only take memory


class Generator:
    """Generates B texts side by side, each from its own prompt and with its own draws.

    The context of a character, exactly: the last T characters of the prompt and all that follow,
    as long as they are at most T. When one more would be too many, all but the last
    `rules.context_after_overflow` (T // 2 by default) are forgotten, and those are prefilled as a
    text of their own; and so on. That is the same for learned and for rotary positions. A character
    has from that many to T characters of context, and costs on average what any other costs.

    The draws of a text follow from (seed, step, its index): the texts beside it change nothing.
    The `banned` ids are never drawn. (A character here is an id, also of a byte.)

    Raises:
        UsageError: `rules.context_after_overflow` is not in 1 to T.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: list[list[int]],
        rules: SamplingRules,
        *,
        seed: int,
        step: int,
        indices: Sequence[int],
        banned: Sequence[int] = (),
    ) -> None:
        self.engine, self.T, self.rules = engine, engine.T, rules
        self.banned = list(banned)
        left = rules.context_after_overflow
        self.context_after_overflow = max(self.T // 2, 1) if left is None else left
        if not 1 <= self.context_after_overflow <= self.T:
            raise UsageError(
                f"context_after_overflow: expected 1 to model.T ({self.T}) characters, got {left}"
            )
        self.contexts = [prompt[-self.T :] for prompt in prompts]
        self.recent = [prompt[-PENALTY_CHARACTERS:] for prompt in prompts]
        self.sources = [uniforms(seed, f"sample/{index}", step) for index in indices]
        self.draws = np.empty((len(prompts), 0))
        self.draws_used = 0
        equal: dict[tuple[int, ...], list[int]] = {}
        for row, ids in enumerate(self.contexts):
            equal.setdefault(tuple(ids), []).append(row)
        self._prefill([first for first, *_ in equal.values()])
        for first, *others in equal.values():
            if others:
                engine.fork(first, others)

    def step(self) -> tuple[list[int], list[float]]:
        """The next id of each text, and its log-probability.

        That is the model's own, at temperature 1 and before any rule.

        Raises:
            CheckpointError: the model's logits are NaN or infinite.
        """
        if full := [row for row, ids in enumerate(self.contexts) if len(ids) > self.T]:
            for row in full:
                self.contexts[row] = self.contexts[row][-self.context_after_overflow :]
            self._prefill(full)
        if self.draws_used == self.draws.shape[1]:
            self.draws = np.stack([source.random(DRAWS_AT_ONCE) for source in self.sources])
            self.draws_used = 0
        logits = self.engine.decode([ids[-1] for ids in self.contexts]).astype(np.float64)
        if not np.isfinite(logits).all():
            raise CheckpointError(
                "the model predicts nothing: its logits are NaN or infinite; load another "
                "checkpoint of the run (best, last or a step)"
            )
        log_probabilities = log_softmax(logits)
        logits[:, self.banned] = NEVER
        chosen = choose(logits, self.draws[:, self.draws_used], self.rules, self.recent)
        self.draws_used += 1
        for context, recent, id_ in zip(self.contexts, self.recent, chosen.tolist(), strict=True):
            context.append(id_)
            recent.append(id_)
            del recent[:-PENALTY_CHARACTERS]
        of_chosen = np.take_along_axis(log_probabilities, chosen[:, None], -1)[:, 0]
        return chosen.tolist(), of_chosen.tolist()

    def select(self, rows: list[int]) -> None:
        """Continue only the texts in these rows."""
        self.engine.select(rows)
        self.draws = self.draws[rows]
        self.contexts = [self.contexts[row] for row in rows]
        self.recent = [self.recent[row] for row in rows]
        self.sources = [self.sources[row] for row in rows]

    def _prefill(self, rows: list[int]) -> None:
        """Prefill all but the last character of the context in these rows: that is decoded next."""
        contexts = [self.contexts[row][:-1] for row in rows]
        longest = max(map(len, contexts), default=0)
        few = max(PREFILL_CHARACTERS // longest, 1) if longest else max(len(rows), 1)
        for i in range(0, len(rows), few):
            self.engine.prefill(rows[i : i + few], contexts[i : i + few])


def generate(
    engine: Engine,
    vocabulary: Vocabulary,
    prompts: list[list[int]],
    *,
    length: int | None,
    seed: int,
    rules: SamplingRules | None = None,
    stops: Sequence[str] = (),
    ban: str = "",
    indices: Sequence[int] | None = None,
    step: int = 0,
) -> Iterator[Chunk]:
    """Continue each prompt until a stop string, or for `length` characters if that is not None.

    A stop string is not part of the sample; characters that may be the beginning of one are held
    back. The chunks of all samples come as they are generated. The draws of a sample follow from
    (seed, step, its index), by default 0, 1, 2 and so on: neither the length, nor the stop
    strings, nor other samples change them.

    Args:
        engine: an engine for as many texts as there are prompts.
        vocabulary: the model's vocabulary.
        prompts: the ids of each prompt.
        length: the characters of a sample; None: only a stop string ends it.
        seed: the seed of the draws.
        rules: how to sample; by default from all characters, at temperature 1.
        stops: strings that end a sample.
        ban: characters that are never sampled.
        indices: the index of each sample.
        step: the step of the model in training.

    Raises:
        CheckpointError: the model's logits are NaN or infinite.
        UsageError: see `Generator`.
    """
    buffers = [StopBuffer(sample, stops, length) for sample in range(len(prompts))]
    if length == 0:
        yield from (buffer.release(0, ended=True) for buffer in buffers)
        return
    indices = range(len(prompts)) if indices is None else indices
    rules = rules or SamplingRules()
    generator = Generator(
        engine,
        prompts,
        rules,
        seed=seed,
        step=step,
        indices=indices,
        banned=banned_ids(ban, vocabulary),
    )
    samples = [
        (Detokenizer(vocabulary, prompt), buffer)
        for prompt, buffer in zip(prompts, buffers, strict=True)
    ]
    active = set(range(len(samples)))
    while active:
        for row, (id_, log_probability) in enumerate(zip(*generator.step(), strict=True)):
            if row not in active:
                continue
            detokenizer, buffer = samples[row]
            for character in detokenizer.push(id_, log_probability):
                chunk = buffer.push(*character)
                if chunk is not None:
                    yield chunk
                    if chunk.ended:
                        active.remove(row)
                        break
        if 0 < len(active) <= len(samples) // 2:  # selecting copies the caches of the others
            generator.select(sorted(active))
            samples = [samples[row] for row in sorted(active)]
            active = set(range(len(samples)))


def generate_text(
    model: "LanguageModel", vocabulary: Vocabulary, prompt: str = "", **options: Any
) -> str:
    """The text that a model in memory generates after one prompt; see `generate`."""
    ids = encode_prompt(prompt, vocabulary)
    return "".join(
        chunk.text for chunk in generate(engine_of(model, 1), vocabulary, [ids], **options)
    )
