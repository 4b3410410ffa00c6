"""Ids from a model, one for each of B texts at a time, at the same cost however long they get."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpt.errors import CheckpointError
from gpt.sampling.sampler import RECENT, Decoding, choose, log_softmax
from gpt.seeds import uniforms

DRAWN = 256  # numbers at a time
AT_ONCE = 2048  # characters that are read together; more would only take memory


def kept(T: int) -> int:
    """How many characters are not forgotten: an eighth of T; of a short T more, 16 or half of it.

    More would be no better to go on from (scripts/experiments.md), and have to be read anew.
    """
    return max(T // 8, min(T // 2, 16), 1)


class Reader(Protocol):
    """A model and the B texts that it has read so far."""

    T: int

    def read(self, rows: list[int], texts: list[list[int]]) -> None:
        """Put these texts, of any lengths up to T, in place of those in these rows."""

    def next(self, ids: list[int]) -> NDArray[np.float32]:
        """Read one character more of each text: the logits (B, V) of those that follow."""

    def copy(self, row: int, rows: list[int]) -> None:
        """Put the text in one row in place of those in others."""

    def keep(self, rows: list[int]) -> None:
        """Go on with these texts only."""


class Writer:
    """Goes on with B texts, each from its own prompt and with its own draws.

    What a character sees, exactly: first the last T characters of the prompt, then all that
    follow too, as long as they are T at most. When one more would be too many, all but the last
    `kept(T)` are forgotten, and those are read anew, as a text of their own; and so on. That is the
    same for learned and for rotary positions. A character sees from `kept(T)` to T others, and one
    character costs on average what any other costs.

    A text's draws follow from (seed, step, its number): its companions change nothing.
    """

    def __init__(
        self,
        reader: Reader,
        prompts: list[list[int]],
        decoding: Decoding,
        *,
        seed: int,
        step: int,
        numbers: Sequence[int],
    ) -> None:
        self.reader, self.T, self.decoding = reader, reader.T, decoding
        self.seen = [prompt[-self.T :] for prompt in prompts]  # all that the next character sees
        self.recent = [prompt[-RECENT:] for prompt in prompts]
        self.sources = [uniforms(seed, f"sample/{number}", step) for number in numbers]
        self.drawn = np.empty((len(prompts), 0))
        self.used = 0
        alike: dict[tuple[int, ...], list[int]] = {}
        for row, ids in enumerate(self.seen):
            alike.setdefault(tuple(ids), []).append(row)
        self._read([first for first, *_ in alike.values()])
        for first, *others in alike.values():
            if others:
                reader.copy(first, others)

    def write(self) -> tuple[list[int], list[float]]:
        """The next id of each text, and the log-probability that the model gave it.

        That is the model's own, at temperature 1 and before any rule.
        """
        if full := [row for row, ids in enumerate(self.seen) if len(ids) > self.T]:
            for row in full:
                self.seen[row] = self.seen[row][-kept(self.T) :]
            self._read(full)
        if self.used == self.drawn.shape[1]:
            self.drawn, self.used = np.stack([s.random(DRAWN) for s in self.sources]), 0
        logits = self.reader.next([ids[-1] for ids in self.seen]).astype(np.float64)
        if not np.isfinite(logits).all():
            raise CheckpointError(
                "the model expects no character: its logits are no finite numbers; take another "
                "checkpoint (--checkpoint best or last)"
            )
        chosen = choose(logits, self.drawn[:, self.used], self.decoding, self.recent)
        self.used += 1
        for seen, recent, id_ in zip(self.seen, self.recent, chosen.tolist(), strict=True):
            seen.append(id_)
            recent.append(id_)
            del recent[:-RECENT]
        of_chosen = np.take_along_axis(log_softmax(logits), chosen[:, None], -1)[:, 0]
        return chosen.tolist(), of_chosen.tolist()

    def _read(self, rows: list[int]) -> None:
        """Let the reader read all but the last character that is seen in these rows."""
        texts = [self.seen[row][:-1] for row in rows]
        few = max(AT_ONCE // max(map(len, texts), default=1), 1) if any(texts) else len(rows)
        for i in range(0, len(rows), few):
            self.reader.read(rows[i : i + few], texts[i : i + few])

    def keep(self, rows: list[int]) -> None:
        """Go on with these texts only."""
        self.reader.keep(rows)
        self.drawn = self.drawn[rows]
        self.seen = [self.seen[row] for row in rows]
        self.recent = [self.recent[row] for row in rows]
        self.sources = [self.sources[row] for row in rows]
