"""Chunks of many samples, collected or put in an order to show."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpt.sampling.stopping import Chunk


@dataclass
class Sample:
    """The text generated after a prompt, with the model's log-probability of each character.

    `stop` is the stop string that ended it; None: it ended at its length.
    """

    prompt: str
    text: str = ""
    stop: str | None = None
    log_probabilities: list[float] = field(default_factory=list)


def collect(chunks: Iterable[Chunk], prompts: list[str]) -> list[Sample]:
    """The samples of these prompts, once all have ended."""
    samples = [Sample(prompt) for prompt in prompts]
    for chunk in chunks:
        sample = samples[chunk.sample]
        sample.text += chunk.text
        sample.log_probabilities += chunk.log_probabilities
        sample.stop = chunk.stop
    return samples


def in_order(chunks: Iterable[Chunk], prompts: list[str], separator: str = "---") -> Iterator[str]:
    """Yield each prompt and its sample: the first as it is generated, the others after it.

    Args:
        chunks: the chunks of all samples.
        prompts: the prompt of each sample.
        separator: a line between two samples.
    """
    n, showing = len(prompts), 0
    waiting, ended = [""] * n, [False] * n
    yield prompts[0]
    for chunk in chunks:
        ended[chunk.sample] = chunk.ended
        if chunk.sample != showing:
            waiting[chunk.sample] += chunk.text
            continue
        yield chunk.text
        while showing < n and ended[showing]:
            yield "\n"
            showing += 1
            if showing < n:
                yield f"{separator}\n{prompts[showing]}{waiting[showing]}"
