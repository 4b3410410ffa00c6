"""Choose a config from the speed of a few sizes, the length of the text, and the time.

The speed of a size times the time is the number of characters that a model of this size would see.
In this module, a character means an id, which can also be a byte.

1. **Size.** Exclude sizes with more than MAX_PARAMETERS_PER_TRAIN_CHARACTER parameters for each
   character of the train split. Start with the smallest size. Go to the next larger size as long as
   the run would see at least MIN_SEEN_PER_PARAMETER characters for each parameter of that size, or
   FEWER_SEEN_PER_PARAMETER if the text repeats itself, as code does, or has a large vocabulary:
   these need larger models. Repetition is not measured if the user sets the heads. The smallest
   size may see fewer.
2. **Members.** A model that sees a text too often overfits; PASSES lists how many passes are
   useful. Divide the characters seen in the time by the characters of the useful passes, and round.
   The result, from 1 to MAX_MEMBERS, is the number of models of an ensemble. They share the time
   equally. No model makes more than MAX_USEFUL times the useful passes; any remaining time is
   unused.
3. **Token dropout** is listed in PASSES. It is used if a member makes at least MIN_DROPOUT_PASSES.
4. T follows from the shorter split (`context_length`). All other settings follow from the size, T
   and the characters that each member sees (`settings`).

For example, a model of 3 layers with 128 channels has about 0.6 million parameters. On two CPU
cores it sees 9 million characters in five minutes, which is 15 for each parameter. The next size,
4 x 160, would see 5 million, 4 for each parameter, which is too few. The train split of a text of
1.1 MB has 1 million characters, of which 3.5 passes are useful: 9 / 3.5 is about 3 members.

scripts/experiments.md has the losses of the runs by which the numbers were chosen.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpt.text.corpus import USUAL_MIN_CONTEXT

MIN_SEEN_PER_PARAMETER = 5  # characters; about 20 are best for large models (arXiv:2203.15556)
FEWER_SEEN_PER_PARAMETER = 1.5  # as above, if the text repeats itself or has a large vocabulary
MAX_PARAMETERS_PER_TRAIN_CHARACTER = 10  # sizes with more parameters are excluded (rule 1)
MAX_MEMBERS = {"cpu": 8, "cuda": 16}  # largest number of models in an ensemble, by device type
# columns: largest length of the train split in characters; useful passes over it; token dropout
PASSES = (
    (30_000, 6.5, 0.1),
    (100_000, 5.5, 0.05),
    (400_000, 4.5, 0.02),
    (3_000_000, 3.5, 0.01),
    (math.inf, 3.0, 0.01),
)
MAX_USEFUL = 1.5  # largest ratio of a member's passes to the useful passes
MIN_DROPOUT_PASSES = 1.5  # token dropout is not used if a member makes fewer passes
HEAD_SIZE = 64  # channels; heads of 32 channels learn less in a step (scripts/experiments.md)
LONGEST_CONTEXT = 512  # largest T of a model with fewer than LARGE_PARAMETERS parameters
LONGEST_LARGE_CONTEXT = 1024  # largest T of a model with LARGE_PARAMETERS parameters or more
LARGE_PARAMETERS = 6_000_000
# a reference run: number of characters seen, channels, characters per step, learning rates
RUN_CHARACTERS, RUN_C = 3.7e6, 128
STEP_CHARACTERS, MUON_LEARNING_RATE, LEARNING_RATE = 4096, 0.03, 8e-3


class Size(NamedTuple):
    """Number of layers and number of channels of a model."""

    n_layer: int
    C: int

    @property
    def parameters(self) -> int:
        """Approximate number of parameters, without embeddings."""
        return 12 * self.n_layer * self.C**2


LAYERS = (2, 2, 2, 3, 4, 4, 6, 6, 8, 8, 8, 12, 12)  # n_layer of each size
CHANNELS = (64, 96, 128, 128, 160, 192, 192, 256, 320, 384, 512, 640, 768)  # C of each size
SIZES = tuple(map(Size, LAYERS, CHANNELS))


@dataclass(frozen=True)
class Choice:
    """A chosen run: its model size and the number of characters it sees."""

    size: Size
    characters: int  # characters that each member sees
    members: int = 1
    token_dropout: float = 0.0

    def sentence(self, train_characters: int, unit: str, given: int | None = None) -> str:
        """Return a sentence that explains the choice; `unit` is `byte` if ids are bytes.

        `given` is the user's number of members, if the user has set it.
        """
        passes = self.characters * self.members / (given or self.members) / train_characters
        if given is not None:
            why = f"{given} models are averaged, as set" if given > 1 else "one model, as set"
        elif self.members > 1:
            why = f"{self.members} models are averaged, because one would overfit"
        else:
            per_parameter = self.characters / self.size.parameters
            why = f"one model, which sees {per_parameter:.2g} {unit}s for each parameter"
        dropout = f", token dropout {self.token_dropout:g}" if self.token_dropout else ""
        return f"passes over the text: {passes:.2g}; {why}{dropout}"


def largest_size(
    sizes: Sequence[Size],
    seen: Callable[[Size], float],
    train_characters: int,
    min_seen: float = MIN_SEEN_PER_PARAMETER,
) -> tuple[Size, float]:
    """Choose a size by rule 1; return it, and how many characters its model would see.

    `sizes` are in ascending order. `seen(size)` is how many characters a model of that size would
    see in the run's time. Because a call measures a speed, sizes are skipped: if a size sees so
    much that a larger one would see enough, even at a speed that falls like 1 / parameters, that
    larger size is measured next.
    """
    limit = MAX_PARAMETERS_PER_TRAIN_CHARACTER * train_characters
    allowed = [size for size in sizes if size.parameters <= limit] or [*sizes[:1]]
    i, characters = 0, seen(allowed[0])
    while i + 1 < len(allowed):
        work = characters * allowed[i].parameters
        fast = sum(min_seen * size.parameters**2 <= work for size in allowed)
        larger = max(i + 1, fast - 1)
        fewer = seen(allowed[larger])
        if fewer >= min_seen * allowed[larger].parameters:
            i, characters = larger, fewer
        else:  # also try the sizes that were skipped, if any
            allowed = allowed[:larger]
    return allowed[i], characters


def useful_passes(train_characters: int) -> tuple[float, float]:
    """Return the number of useful passes over a train split, and the token dropout; see PASSES."""
    _, passes, dropout = PASSES[bisect_left(PASSES, (train_characters,))]
    return passes, dropout


def choose_members(
    size: Size, characters: float, train_characters: int, max_members: int
) -> Choice:
    """Choose members and token dropout by rules 2 and 3; one model alone would see `characters`."""
    passes, dropout = useful_passes(train_characters)
    useful = passes * train_characters
    members = min(max(1, round(characters / useful)), max_members)
    per_member = round(min(characters / members, MAX_USEFUL * useful))
    if per_member < MIN_DROPOUT_PASSES * train_characters:
        dropout = 0.0
    return Choice(size, per_member, members, dropout)


def context_length(shortest_split: int, size: Size) -> int:
    """Return T: the largest power of two up to a quarter of the shorter split, train or val.

    T is at least USUAL_MIN_CONTEXT, and at most LONGEST_CONTEXT, or LONGEST_LARGE_CONTEXT for a
    model with LARGE_PARAMETERS parameters or more.
    """
    limit = LONGEST_LARGE_CONTEXT if size.parameters >= LARGE_PARAMETERS else LONGEST_CONTEXT
    longest = max(USUAL_MIN_CONTEXT, shortest_split // 4)
    return 1 << (min(limit, longest).bit_length() - 1)


def step_characters(characters: float, T: int, batch_size: int | None = None) -> int:
    """Return the number of characters of a step: `batch_size` x `T`, if `batch_size` is set.

    Otherwise, it is a power of two from 2^10 to 2^18, or `T` if that is larger. It grows with the
    square root of `characters`, the number that each member sees: in a short run, many small steps
    are better than few large ones (arXiv:1812.06162; scripts/experiments.md).
    """
    if batch_size is not None:
        return batch_size * T
    ideal = STEP_CHARACTERS * math.sqrt(characters / RUN_CHARACTERS)
    return max(T, 1 << min(18, max(10, round(math.log2(ideal)))))


def muon_momentum(steps: int) -> float:
    """Return Muon's momentum for a run of `steps` steps: 0.8 for 100, 0.9 for 1,000 steps.

    In a longer run, the mean of the gradients should cover more steps, but a smaller part of the
    run: about 5 of 100 steps, 10 of 1,000, and 20 of 10,000 (scripts/experiments.md).
    """
    return round(1 - 0.2 * math.pow(steps / 100, -0.3), 2)


def settings(
    choice: Choice, T: int, batch_size: int | None = None, *, repeats: bool = False
) -> dict[str, Any]:
    """Return the settings of the run `choice`, by dotted key.

    Shorter runs have larger learning rates, and less momentum (`muon_momentum`). Models wider than
    RUN_C have a smaller AdamW rate.

    `repeats` says whether the text repeats itself, as code does. If so, copying is made easier to
    learn: half of each key comes from the previous character, there are at least two heads, and
    `train.first_window` is longer.
    """
    (n_layer, C), characters = choice.size, choice.characters
    in_step = step_characters(characters, T, batch_size)
    steps = max(1, characters // in_step)
    relative_length = characters / RUN_CHARACTERS
    learning_rate = LEARNING_RATE * relative_length**-0.21 * min(1.0, RUN_C / C) ** 0.5
    max_heads = max(1 + repeats, round(C / HEAD_SIZE))
    heads = next((n for n in range(max_heads, 0, -1) if C % (2 * n) == 0), 1)
    divisor = 2 if repeats else 4  # the first windows have T / divisor characters
    return {
        "model.T": T,
        "model.C": C,
        "model.n_layer": n_layer,
        "model.n_head": heads,
        "model.head_size": HEAD_SIZE if repeats and C < 2 * HEAD_SIZE else None,
        "model.key_offset": repeats or None,
        "model.ensemble": choice.members,
        "model.attention_scale": 1.5,
        "model.character_dropout": choice.token_dropout,
        "train.steps": steps,
        "train.batch_size": in_step // T,
        "train.first_window": T // divisor if T % divisor == 0 else T,
        "train.muon_learning_rate": _two_digits(MUON_LEARNING_RATE * relative_length**-0.2),
        "train.muon_momentum": muon_momentum(steps),
        "train.learning_rate": _two_digits(learning_rate),
        "train.min_learning_rate": 1e-6,
        "train.warmup_steps": min(steps, max(5, steps // 60)),
        "train.beta2": 0.95,
        "train.grad_clip": 0.0,
    }


def _two_digits(number: float) -> float:
    return float(f"{number:.2g}")
