"""Turn generated ids into characters, detect stop strings, and emit samples in order."""

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpt.text.vocabulary import Vocabulary

UTF8_BYTES = 4  # bytes of the longest UTF-8 sequence of a character


class Detokenizer:
    """Incremental decoder: turns one sample's ids into characters with log-probabilities.

    For a byte model, a character's log-probability is the sum of its bytes' log-probabilities.
    Invalid UTF-8 becomes U+FFFD, as in `Vocabulary.decode`. If `prompt` ends with only the first
    bytes of a character, the sample's first bytes complete that character.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int] = ()) -> None:
        self.names = vocabulary.names
        self.utf8 = None
        self.waiting: list[float] = []  # log-probabilities of the bytes of an incomplete character
        if vocabulary.is_bytes:
            self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")
            for byte in prompt[1 - UTF8_BYTES :]:
                self.push(byte, 0.0)

    def push(self, id_: int, log_probability: float) -> list[tuple[str, float]]:
        """Add an id; return the characters that it completes, with log-probabilities.

        An id can complete two characters: U+FFFD for earlier bytes that turn out to be invalid, and
        the character of the new byte.
        """
        if self.utf8 is None:
            return [(self.names[id_], log_probability)]
        self.waiting.append(log_probability)
        text = self.utf8.decode(bytes([id_]))
        complete = len(self.waiting) - len(self.utf8.getstate()[0])
        start, characters = 0, []
        for end, character in enumerate(text, complete - len(text) + 1):
            characters.append((character, sum(self.waiting[start:end])))
            start = end
        del self.waiting[:complete]
        return characters


@dataclass
class Chunk:
    """New characters of one sample, and the log-probability of each."""

    sample: int  # index of the sample
    text: str
    log_probabilities: list[float]
    ended: bool = False  # True in the sample's last chunk
    stop: str | None = None  # the stop string that ended the sample, if one did


@dataclass
class StopBuffer:
    """Buffer of a sample's last characters, held back because they may begin a stop string.

    The sample ends at one of the `stops`, or after `length` characters. A stop string is part of
    the sample only if `keeps_stop` is True.
    """

    sample: int  # index of the sample
    stops: Sequence[str]
    length: int
    keeps_stop: bool = False
    generated: int = 0  # characters generated so far
    text: str = ""  # characters held back
    log_probabilities: list[float] = field(default_factory=list)

    def push(self, character: str, log_probability: float) -> Chunk | None:
        """Add a character; return the `Chunk` that can be shown now, if any."""
        self.generated += 1
        self.text += character
        self.log_probabilities.append(log_probability)
        stop = max((s for s in self.stops if self.text.endswith(s)), key=len, default=None)
        if stop is not None:
            dropped = 0 if self.keeps_stop else len(stop)
            return self.release(len(self.text) - dropped, ended=True, stop=stop)
        if self.generated == self.length:
            return self.release(len(self.text), ended=True)
        n = len(self.text) - max(map(len, self.stops), default=1) + 1
        return self.release(n) if n > 0 else None

    def release(self, n: int, *, ended: bool = False, stop: str | None = None) -> Chunk:
        """Move the first `n` characters of the buffer to a new `Chunk`, and return it."""
        chunk = Chunk(self.sample, self.text[:n], self.log_probabilities[:n], ended, stop)
        self.text, self.log_probabilities = self.text[n:], self.log_probabilities[n:]
        return chunk


@dataclass
class Sample:
    """The text generated after a prompt, with the model's log-probability of each character."""

    prompt: str
    text: str = ""
    stop: str | None = None  # the stop string that ended the sample, if any
    log_probabilities: list[float] = field(default_factory=list)


def collect(chunks: Iterable[Chunk], prompts: list[str]) -> list[Sample]:
    """Join each sample's chunks; return a `Sample` for each of the `prompts`."""
    samples = [Sample(prompt) for prompt in prompts]
    for chunk in chunks:
        sample = samples[chunk.sample]
        sample.text += chunk.text
        sample.log_probabilities += chunk.log_probabilities
        sample.stop = chunk.stop
    return samples


def in_order(chunks: Iterable[Chunk], prompts: list[str]) -> Iterator[str]:
    """Yield the text to print: each prompt and its sample, in order.

    The first unfinished sample is yielded chunk by chunk; the chunks of later samples wait.
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
                yield f"---\n{prompts[showing]}{waiting[showing]}"
