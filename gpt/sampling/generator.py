"""Text from a model, as it comes: prompts in, pieces of text out, up to a length or a stop."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpt.errors import UsageError
from gpt.sampling.sampler import Decoding
from gpt.sampling.writer import Reader, Writer
from gpt.text.vocabulary import Vocabulary


def check_known(text: str, vocabulary: Vocabulary, advice: str = "leave them out") -> None:
    """Raises UsageError, with their list, if the text has characters the model has never seen."""
    if unknown := vocabulary.unknown(text):
        listed = " ".join(ascii(c) if not c.isprintable() else c for c in unknown)
        raise UsageError(
            f"the text has characters outside the model's vocabulary: {listed}; {advice}"
        )


def check_prompt(prompt: str, vocabulary: Vocabulary, *, drop_unknown: bool = False) -> str:
    """The prompt, in characters that the model knows.

    Raises:
        UsageError: the prompt has characters that the model has never seen, unless they are
            to be dropped.
    """
    if drop_unknown:
        return "".join(c for c in prompt if c in vocabulary.characters)
    check_known(prompt, vocabulary, "leave them out, or use --unknown drop")
    return prompt


def encode_prompt(prompt: str, vocabulary: Vocabulary) -> list[int]:
    """The prompt's ids; an empty one is a new line, or else the vocabulary's first character."""
    start = "\n" if "\n" in vocabulary.characters else vocabulary.characters[0]
    return vocabulary.encode(prompt or start).tolist()


@dataclass
class Piece:
    """A piece of one of the samples, with the log-probability of each of its characters."""

    sample: int
    text: str
    log_probabilities: list[float]
    ended: bool = False  # with the sample's last piece
    stop: str | None = None  # the stop string that ended it; None for its length


@dataclass
class _Held:
    """What one sample has written and not yet let go, for it may be the beginning of a stop."""

    sample: int
    written: int = 0
    text: str = ""
    log_probabilities: list[float] = field(default_factory=list)

    def let_go(self, n: int, *, ended: bool = False, stop: str | None = None) -> Piece:
        piece = Piece(self.sample, self.text[:n], self.log_probabilities[:n], ended, stop)
        self.text, self.log_probabilities = self.text[n:], self.log_probabilities[n:]
        return piece


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the text's end may be the beginning of a stop string."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    return next(
        n
        for n in range(min(longest, len(text)), -1, -1)
        if n == 0 or any(stop.startswith(text[-n:]) for stop in stops)
    )


def generate(
    reader: Reader,
    vocabulary: Vocabulary,
    prompts: list[list[int]],
    *,
    length: int | None,
    seed: int,
    decoding: Decoding | None = None,
    stops: Sequence[str] = (),
    numbers: Sequence[int] | None = None,
    step: int = 0,
) -> Iterator[Piece]:
    """Let a reader of as many texts go on with each prompt, until it writes a stop string.

    Or for `length` characters, if that is not None.
    A stop string is not part of the sample; characters that may be the beginning of one are held
    back. The pieces of all samples come as they are written. The draws of a sample follow from
    (seed, step, its number), by default 0, 1, 2 and so on: neither the length, nor the stops, nor
    other samples change them.
    """
    rows = [_Held(sample) for sample in range(len(prompts))]
    if length == 0:
        yield from (held.let_go(0, ended=True) for held in rows)
        return
    numbers = range(len(prompts)) if numbers is None else numbers
    writer = Writer(reader, prompts, decoding or Decoding(), seed=seed, step=step, numbers=numbers)
    active = set(range(len(rows)))
    while active:
        for row, (held, id_, log_probability) in enumerate(zip(rows, *writer.write(), strict=True)):
            if row not in active:
                continue
            held.written += 1
            held.text += vocabulary.characters[id_]
            held.log_probabilities.append(log_probability)
            stop = max((s for s in stops if held.text.endswith(s)), key=len, default=None)
            if stop is not None:
                active.remove(row)
                yield held.let_go(len(held.text) - len(stop), ended=True, stop=stop)
            elif held.written == length:
                active.remove(row)
                yield held.let_go(len(held.text), ended=True)
            elif n := len(held.text) - held_back(held.text, stops):
                yield held.let_go(n)
        if 0 < len(active) <= len(rows) // 2:  # dropping texts copies what is known of the others
            writer.keep(sorted(active))
            rows = [rows[row] for row in sorted(active)]
            active = set(range(len(rows)))


@dataclass
class Sample:
    """What was written after a prompt, with the model's log-probability of each character.

    `stop` is the stop string that ended it, if it was one.
    """

    prompt: str
    text: str = ""
    stop: str | None = None
    log_probabilities: list[float] = field(default_factory=list)


def whole_samples(pieces: Iterable[Piece], prompts: list[str]) -> list[Sample]:
    """The samples of these prompts, once all are written."""
    samples = [Sample(prompt) for prompt in prompts]
    for piece in pieces:
        sample = samples[piece.sample]
        sample.text += piece.text
        sample.log_probabilities += piece.log_probabilities
        sample.stop = piece.stop
    return samples


def in_order(pieces: Iterable[Piece], prompts: list[str]) -> Iterator[str]:
    """What to show: each prompt and what follows it, the first as it is written, others after it.

    More than one are told apart by a heading.
    """
    n, showing = len(prompts), 0
    headings = [f"--- {b + 1} of {n} ---\n" if n > 1 else "" for b in range(n)]
    waiting, ended = [""] * n, [False] * n
    yield headings[0] + prompts[0]
    for piece in pieces:
        ended[piece.sample] = piece.ended
        if piece.sample != showing:
            waiting[piece.sample] += piece.text
            continue
        yield piece.text
        while showing < n and ended[showing]:
            yield "\n"
            showing += 1
            if showing < n:
                yield headings[showing] + prompts[showing] + waiting[showing]
