"""Generate texts from prompts, character by character, up to a length or a stop string."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpt.config.schema import SampleConfig
from gpt.errors import CheckpointError
from gpt.sampling.engine import PREFILL_CHARACTERS, Engine, engine_of
from gpt.sampling.prompt import encode_prompt
from gpt.sampling.sampler import PENALTY_CHARACTERS, choose, log_softmax
from gpt.sampling.stopping import Chunk, Detokenizer, StopBuffer
from gpt.seeds import uniforms
from gpt.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from gpt.model.ensemble import LanguageModel

PLAIN = SampleConfig(temperature=1.0, min_p=0.0)  # sample from the model's own distribution


def sample_sources(seed: int, indices: Iterable[int], step: int = 0) -> list[np.random.Generator]:
    """Return a random generator for each of `indices`, seeded by `seed`, the index and `step`."""
    return [uniforms(seed, f"sample/{index}", step) for index in indices]


@dataclass(eq=False)
class GrowingText:
    """A text that a `Generator` continues, with its own random numbers and sampling rules.

    Attributes:
        prompt: the ids to continue.
        source: the random generator, which gives one number for each id that is drawn.
        rules: the sampling rules, such as the temperature.
        given: ids to append before any id is drawn, such as those of a text to score.
        context: the last ids, from which the network predicts; set by `Generator`.
        recent: the last ids, which the penalties make less likely; set by `Generator`.
    """

    prompt: list[int]
    source: np.random.Generator
    rules: SampleConfig
    given: deque[int] = field(default_factory=deque)
    context: list[int] = field(init=False, default_factory=list)
    recent: list[int] = field(init=False, default_factory=list)


class Generator:
    """Generator that appends one id at a time to each of several texts.

    The context of a text begins with the last T ids of its prompt and grows by each new id. When
    the context exceeds T ids, only its last T // 2 ids are kept, and their keys and values are
    computed again. Later contexts therefore have T // 2 to T ids.

    Args:
        engine: the engine, with one row for each text.
        texts: the texts to continue.
    """

    def __init__(self, engine: Engine, texts: Sequence[GrowingText]) -> None:
        self.engine, self.T = engine, engine.T
        self.texts = list(texts)
        self._start(range(len(texts)))

    def step(self) -> tuple[list[int], NDArray[np.float64]]:
        """Append an id to each text.

        Returns:
            The new id of each of B texts; and the model's log-probabilities (B, V), before the
            sampling rules.
        """
        if full := [row for row, text in enumerate(self.texts) if len(text.context) > self.T]:
            for row in full:
                del self.texts[row].context[: -max(self.T // 2, 1)]
            self._prefill(full)
        logits = self.engine.decode([text.context[-1] for text in self.texts]).astype(np.float64)
        if not np.isfinite(logits).all():
            raise CheckpointError(
                "the model is broken: its logits are NaN or infinite; load another checkpoint"
            )
        log_probabilities = log_softmax(logits)
        chosen = self._choose(log_probabilities)
        for text, id_ in zip(self.texts, chosen.tolist(), strict=True):
            text.context.append(id_)
            text.recent.append(id_)
            del text.recent[:-PENALTY_CHARACTERS]
        return chosen.tolist(), log_probabilities

    def select(self, rows: list[int], added: Sequence[GrowingText] = ()) -> None:
        """Keep only the texts with the indices `rows`, in this order; then append `added`."""
        self.engine.select([*rows, *[0] * len(added)])  # new rows, to be prefilled
        self.texts = [self.texts[row] for row in rows] + [*added]
        if added:
            self._start(range(len(rows), len(self.texts)))

    def _choose(self, logits: NDArray[np.float64]) -> NDArray[np.int_]:
        """Return the next id of each text: a given id, or one drawn from `logits` (B, V)."""
        chosen = np.empty(len(self.texts), np.int_)
        rows_by_rules: dict[SampleConfig, list[int]] = {}
        for row, text in enumerate(self.texts):
            if text.given:
                chosen[row] = text.given.popleft()
            else:
                rows_by_rules.setdefault(text.rules, []).append(row)
        for rules, rows in rows_by_rules.items():
            draws = np.array([self.texts[row].source.random() for row in rows])
            recent = [self.texts[row].recent for row in rows]
            chosen[rows] = choose(logits[rows], draws, rules, recent)
        return chosen

    def _start(self, rows: range) -> None:
        """Prefill the new texts, which are the last `rows`; prefill equal prompts only once."""
        for text in self.texts[rows.start :]:
            text.context = text.prompt[-self.T :]
            text.recent = text.prompt[-PENALTY_CHARACTERS:]
        first_rows: dict[tuple[int, ...], int] = {}
        copied = [first_rows.setdefault(tuple(self.texts[row].context), row) for row in rows]
        self._prefill(list(first_rows.values()))
        if len(first_rows) < len(rows):
            self.engine.select([*range(rows.start), *copied])

    def _prefill(self, rows: list[int]) -> None:
        """Prefill the texts in `rows` with all ids but the last, which `step` decodes."""
        contexts = [self.texts[row].context[:-1] for row in rows]
        longest = max(map(len, contexts), default=0)
        n = max(PREFILL_CHARACTERS // longest, 1) if longest else max(len(rows), 1)
        for i in range(0, len(rows), n):
            self.engine.prefill(rows[i : i + n], contexts[i : i + n])


def generate(
    engine: Engine,
    vocabulary: Vocabulary,
    prompts: list[list[int]],
    sources: Sequence[np.random.Generator],
    *,
    length: int,
    rules: SampleConfig = PLAIN,
    stops: Sequence[str] = (),
) -> Iterator[Chunk]:
    """Continue each prompt for `length` characters or until a stop string; yield `Chunk`s.

    Chunks of different samples are interleaved. A stop string is not part of the sample, so
    characters that may be its beginning are held back.

    Args:
        engine: the engine, with one row for each prompt.
        vocabulary: the characters of the ids.
        prompts: the ids of each prompt.
        sources: a random generator for each prompt.
        length: the largest number of characters of a sample.
        rules: the sampling rules, such as the temperature.
        stops: strings that end a sample.

    Raises:
        CheckpointError: the model's logits are NaN or infinite.
    """
    buffers = [StopBuffer(sample, stops, length) for sample in range(len(prompts))]
    if length == 0:
        yield from (buffer.release(0, ended=True) for buffer in buffers)
        return
    texts = [GrowingText(*text, rules) for text in zip(prompts, sources, strict=True)]
    generator = Generator(engine, texts)
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
        if 0 < len(active) <= len(samples) // 2:  # not sooner: `select` copies the caches
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
    """Return `length` characters that `model` adds to `prompt`.

    The random numbers depend on `seed` and `step`. `rules` are settings such as the temperature.
    """
    ids, sources = encode_prompt(prompt, vocabulary), sample_sources(seed, [0], step)
    chunks = generate(engine_of(model, 1), vocabulary, [ids], sources, length=length, rules=rules)
    return "".join(chunk.text for chunk in chunks)
