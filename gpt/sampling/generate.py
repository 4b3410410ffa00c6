"""Generate texts from prompts, character by character, up to a length or a stop string."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpt.config.schema import SampleConfig
from gpt.errors import CheckpointError
from gpt.sampling.counted_texts import CountedTexts
from gpt.sampling.engine import PREFILL_CHARACTERS, Engine, engine_of
from gpt.sampling.prompt import encode_prompt
from gpt.sampling.sampler import NEVER, PENALTY_CHARACTERS, choose, log_softmax
from gpt.sampling.stopping import Chunk, Detokenizer, StopBuffer
from gpt.seeds import uniforms
from gpt.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from gpt.counts.mixture import Mixture
    from gpt.model.ensemble import LanguageModel

PLAIN = SampleConfig(temperature=1.0)  # sample from the model's own distribution


def sample_sources(seed: int, indices: Iterable[int], step: int = 0) -> list[np.random.Generator]:
    """Return a random generator for each of `indices`, seeded by `seed`, the index and `step`."""
    return [uniforms(seed, f"sample/{index}", step) for index in indices]


class Generator:
    """Generator of B texts in parallel, each with its own prompt and random numbers.

    The context of a text begins with the last T ids of its prompt and grows by each id drawn. When
    the context exceeds T ids, only its last T // 2 ids are kept, and their keys and values are
    computed again. Later ids are therefore drawn with a context of T // 2 to T ids. An id is a
    character or, in a byte model, a byte. If `never` is given, this id is not drawn.

    If `engine.mixture` is set, its n-gram counts are mixed with the network's predictions.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: list[list[int]],
        sources: Sequence[np.random.Generator],
        rules: SampleConfig,
        never: int | None = None,
    ) -> None:
        self.counted = None if engine.mixture is None else CountedTexts(engine.mixture, prompts)
        self.engine, self.T, self.rules, self.never = engine, engine.T, rules, never
        self.contexts = [prompt[-self.T :] for prompt in prompts]
        self.recent = [prompt[-PENALTY_CHARACTERS:] for prompt in prompts]
        self.sources = list(sources)
        first_rows: dict[tuple[int, ...], int] = {}  # equal prompts are prefilled once
        rows = [first_rows.setdefault(tuple(ids), i) for i, ids in enumerate(self.contexts)]
        self._prefill(list(first_rows.values()))
        if len(first_rows) < len(rows):
            engine.select(rows)

    def step(self) -> tuple[list[int], list[float]]:
        """Draw each text's next id; return the ids and their log-probabilities under the model."""
        if full := [row for row, ids in enumerate(self.contexts) if len(ids) > self.T]:
            for row in full:
                self.contexts[row] = self.contexts[row][-max(self.T // 2, 1) :]
            self._prefill(full)
        logits = self.engine.decode([ids[-1] for ids in self.contexts]).astype(np.float64)
        if not np.isfinite(logits).all():
            raise CheckpointError(
                "the model is broken: its logits are NaN or infinite; load another checkpoint"
            )
        log_probabilities = log_softmax(logits)
        if self.counted is not None:
            log_probabilities = self.counted.mix(log_probabilities)
            logits = log_probabilities.copy()
        if self.never is not None:
            logits[:, self.never] = NEVER
        draws = np.array([source.random() for source in self.sources])
        chosen = choose(logits, draws, self.rules, self.recent)
        for context, recent, id_ in zip(self.contexts, self.recent, chosen.tolist(), strict=True):
            context.append(id_)
            recent.append(id_)
            del recent[:-PENALTY_CHARACTERS]
        if self.counted is not None:
            self.counted.append(chosen)
        costs = np.take_along_axis(log_probabilities, chosen[:, None], -1)[:, 0]
        return chosen.tolist(), costs.tolist()

    def select(self, rows: list[int]) -> None:
        """Keep only the texts in `rows`; stop generating the others."""
        self.engine.select(rows)
        if self.counted is not None:
            self.counted.select(rows)
        self.contexts = [self.contexts[row] for row in rows]
        self.recent = [self.recent[row] for row in rows]
        self.sources = [self.sources[row] for row in rows]

    def _prefill(self, rows: list[int]) -> None:
        """Prefill the texts with indices `rows`: store keys and values of all ids but the last.

        The method `step` decodes the last id of each text.
        """
        contexts = [self.contexts[row][:-1] for row in rows]
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
    characters that may be its beginning are held back. Each of the `prompts` is a list of ids;
    `engine` must have one text per prompt. `sources` has a random generator for each sample. The
    unknown id is never sampled.

    Raises:
        CheckpointError: the model's logits are NaN or infinite.
    """
    buffers = [StopBuffer(sample, stops, length) for sample in range(len(prompts))]
    if length == 0:
        yield from (buffer.release(0, ended=True) for buffer in buffers)
        return
    generator = Generator(engine, prompts, sources, rules, vocabulary.unknown_id)
    detokenizers = [Detokenizer(vocabulary, prompt) for prompt in prompts]
    samples = list(zip(detokenizers, buffers, strict=True))
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
    mixture: "Mixture | None" = None,
) -> str:
    """Return `length` characters that `model` adds to `prompt`.

    The random numbers depend on `seed` and `step`. `rules` are settings such as the temperature.
    The n-gram counts in `mixture`, if it is given, predict together with `model`.
    """
    ids, sources = encode_prompt(prompt, vocabulary), sample_sources(seed, [0], step)
    engine = engine_of(model, 1, mixture)
    chunks = generate(engine, vocabulary, [ids], sources, length=length, rules=rules)
    return "".join(chunk.text for chunk in chunks)
