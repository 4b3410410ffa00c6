"""Generate texts from prompts, character by character, up to a length or a stop string."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpt.config.schema import SampleConfig
from gpt.errors import CheckpointError
from gpt.sampling.choose_engine import PREFILL_CHARACTERS, Engine, engine_of
from gpt.sampling.sampler import choose, log_softmax
from gpt.sampling.stopping import Chunk, Detokenizer, StopBuffer
from gpt.seeds import random_stream
from gpt.text.vocabulary import Vocabulary, encode_prompt

if TYPE_CHECKING:
    from gpt.model.ensemble import LanguageModel

PLAIN = SampleConfig(temperature=1.0, min_p=0.0)  # sample from the model's own distribution


def sample_streams(seed: int, indices: Iterable[int], step: int = 0) -> list[np.random.Generator]:
    """Return a random generator for each of `indices`, seeded by `seed`, the index and `step`."""
    return [random_stream(seed, f"sample/{index}", step) for index in indices]


class Generator:
    """Generator that appends one id at a time to each of several texts.

    The context of a text begins with the last T ids of its prompt and grows by each new id, until
    it is full; see `shorten_full_contexts`.

    The engine has a row for each text. Each id of text i is drawn with a random number from
    `streams[i]`. `bias` (V,) is added to the logits before the sampling `rules` are applied.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[list[int]],
        streams: Sequence[np.random.Generator],
        rules: SampleConfig = PLAIN,
        bias: NDArray[np.float64] | None = None,
    ) -> None:
        self.engine, self.T, self.rules = engine, engine.T, rules
        self.bias = 0.0 if bias is None else bias
        self.streams = list(streams)
        self.contexts = [prompt[-self.T :] for prompt in prompts]
        first_rows: dict[tuple[int, ...], int] = {}  # equal prompts are prefilled only once
        copied = [first_rows.setdefault(tuple(ids), row) for row, ids in enumerate(self.contexts)]
        self._prefill(list(first_rows.values()))
        if len(first_rows) < len(copied):
            self.engine.select(copied)

    def step(self, given: list[int] | None = None) -> tuple[list[int], NDArray[np.float64]]:
        """Append an id to each of the B texts: the `given` ids or, if None, ids that are drawn.

        Return the appended ids, and the model's log-probabilities (B, V), without `bias` and rules.
        """
        self.shorten_full_contexts()
        logits = self.engine.decode([ids[-1] for ids in self.contexts]).astype(np.float64)
        if not np.isfinite(logits).all():
            raise CheckpointError(
                "the model is broken: its logits are NaN or infinite; load another checkpoint"
            )
        log_probabilities = log_softmax(logits)
        if given is None:
            draws = np.array([stream.random() for stream in self.streams])
            given = choose(log_probabilities + self.bias, draws, self.rules).tolist()
        for context, id_ in zip(self.contexts, given, strict=True):
            context.append(id_)
        return given, log_probabilities

    def shorten_full_contexts(self) -> None:
        """Keep only the last T // 2 ids of each context that exceeds T ids.

        Their keys and values are computed again. Later contexts therefore have T // 2 to T ids.
        """
        if full := [row for row, ids in enumerate(self.contexts) if len(ids) > self.T]:
            for row in full:
                del self.contexts[row][: -max(self.T // 2, 1)]
            self._prefill(full)

    def select(self, rows: list[int]) -> None:
        """Keep only the texts with the indices `rows`, in this order."""
        self.engine.select(rows)
        self.streams = [self.streams[row] for row in rows]
        self.contexts = [self.contexts[row] for row in rows]

    def _prefill(self, rows: list[int]) -> None:
        """Prefill the texts in `rows` with all of their ids but the last, which `step` decodes."""
        contexts = [self.contexts[row][:-1] for row in rows]
        longest = max(map(len, contexts), default=0)
        n = max(PREFILL_CHARACTERS // longest, 1) if longest else max(len(rows), 1)
        for i in range(0, len(rows), n):
            self.engine.prefill(rows[i : i + n], contexts[i : i + n])


def generate(
    engine: Engine,
    vocabulary: Vocabulary,
    prompts: list[list[int]],
    streams: Sequence[np.random.Generator],
    *,
    length: int,
    rules: SampleConfig = PLAIN,
    stops: Sequence[str] = (),
    keep_stop: bool = False,
) -> Iterator[Chunk]:
    """Continue each prompt for `length` characters, or up to one of `stops`; yield `Chunk`s.

    Chunks of different samples are interleaved. Characters that may be the beginning of a stop
    string are held back. Each prompt is a list of ids, and has a row in `engine`. A stop string is
    part of the sample only with `keep_stop`. Raise CheckpointError if logits are NaN or infinite.
    """
    buffers = [StopBuffer(sample, stops, length, keep_stop) for sample in range(len(prompts))]
    if length == 0:
        yield from (buffer.release(0, ended=True) for buffer in buffers)
        return
    generator = Generator(engine, prompts, streams, rules)
    detokenizers = [Detokenizer(vocabulary, prompt) for prompt in prompts]
    samples = list(zip(detokenizers, buffers, strict=True))
    active = set(range(len(samples)))
    while active:
        ids, log_probabilities = generator.step()
        for row in sorted(active):
            detokenizer, buffer = samples[row]
            for character in detokenizer.push(ids[row], float(log_probabilities[row, ids[row]])):
                chunk = buffer.push(*character)
                if chunk is not None:
                    yield chunk
                    if chunk.ended:
                        active.remove(row)
                        break
        if 0 < len(active) <= len(samples) // 2:  # rarely, because `select` copies caches
            generator.select(sorted(active))
            samples = [samples[row] for row in sorted(active)]
            active = set(range(len(samples)))


def generate_text(
    model: "LanguageModel",
    vocabulary: Vocabulary,
    prompt: str = "",
    *,
    length: int,
    seed: int,
    rules: SampleConfig = PLAIN,
    step: int = 0,
) -> str:
    """Return `length` characters that `model` adds to `prompt`, seeded by `seed` and `step`."""
    if length == 0:  # do not create an engine, which would copy the weights
        return ""
    ids, streams = encode_prompt(prompt, vocabulary), sample_streams(seed, [0], step)
    chunks = generate(engine_of(model, 1), vocabulary, [ids], streams, length=length, rules=rules)
    return "".join(chunk.text for chunk in chunks)
