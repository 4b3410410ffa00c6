"""Choose a config from three numbers: speed, length of the text, and time.

1. **Size.** Go through SIZES, smallest first. A size is large enough to be worth its time if the
   run then sees CHARACTERS_PER_PARAMETER characters or more for each of its parameters. A size
   also has at most PARAMETERS_PER_CHARACTER parameters for each character of the train split.
   Take the largest such size, else the smallest size.
2. **Members.** A model that sees a text too often overfits: PASSES says how many passes are useful.
   If there is time for more, average the predictions of several models (an ensemble).
3. **Token dropout.** It depends on the length of the text, as PASSES does. A run of less than
   two passes needs none.
4. **The rest** follows from the characters that each member sees: see `settings`.

For example, a model of 3 layers with 128 channels has about 0.6 million parameters. On two CPU
cores it sees 13 million characters in five minutes, which is 21 for each parameter. The next size,
4 x 160, would see 7 million, 6 for each parameter, which is too few. The train split of a text of
1.1 MB has 1 million characters, of which 5 passes are useful: 13 / 5 is about 3 members.

The numbers were chosen by the losses of 221 recorded runs of 14 texts (scripts/experiments.md).
nanochat chooses its settings by one number in the same way, its depth.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

CHARACTERS_PER_PARAMETER = 12  # fewest; 20 train best if the speed does not depend on the size
PARAMETERS_PER_CHARACTER = 10  # most, of the train split
MAX_MEMBERS = {"cpu": 8, "cuda": 16}  # models of an ensemble, by the type of the device
# characters of the train split: useful passes over it, and the token dropout if they are made
PASSES = (
    (30_000, 9.0, 0.1),
    (100_000, 7.5, 0.05),
    (400_000, 6.0, 0.02),
    (3_000_000, 5.0, 0.01),
    (math.inf, 4.0, 0.01),
)
FEW_PASSES = 2  # fewer than these need no token dropout
HEAD_SIZE = 64  # channels; heads of 32 channels learn less in a step (scripts/experiments.md)
LONGEST_CONTEXT, LARGE_CONTEXT = 512, 1024  # T in ids; the second for at least LARGE_PARAMETERS
LARGE_PARAMETERS = 6_000_000
# a reference run: its characters and channels, its characters per step and its learning rates
RUN_CHARACTERS, RUN_C = 3.7e6, 128
STEP_CHARACTERS, MUON_LEARNING_RATE, LEARNING_RATE = 4096, 0.03, 8e-3


class Size(NamedTuple):
    """Numbers of layers and channels of a model."""

    n_layer: int
    C: int

    @property
    def parameters(self) -> int:
        """Approximate number of parameters of the blocks."""
        return 12 * self.n_layer * self.C**2


SIZES = tuple(
    Size(*size)
    for size in (
        *((2, 64), (2, 96), (2, 128), (3, 128), (4, 160), (4, 192), (6, 192), (6, 256)),
        *((8, 320), (8, 384), (8, 512), (12, 640), (12, 768)),
    )
)


@dataclass(frozen=True)
class Choice:
    """Size and length of a run."""

    size: Size
    characters: int  # number of characters that each member is trained on
    members: int = 1
    token_dropout: float = 0.0

    def sentence(self, train_ids: int, unit: str = "character") -> str:
        """Explain the choice for a train split of `train_ids` ids; `unit` is what an id is."""
        passes = self.characters / train_ids
        length = "short" if train_ids < PASSES[2][0] else "long" if passes < 1 else "whole"
        if self.members > 1:
            why = f"{self.members} models are averaged, because one would overfit"
        elif (seen := self.characters / self.size.parameters) >= CHARACTERS_PER_PARAMETER:
            why = f"one model, which sees {seen:.0f} {unit}s for each parameter"
        else:
            why = "one small model"
        dropout = f", token dropout {self.token_dropout:g}" if self.token_dropout else ""
        noun = "pass" if f"{passes:.2g}" == "1" else "passes"
        return f"{passes:.2g} {noun} over the {length} text: {why}{dropout}"


def largest_size(
    sizes: Iterable[Size], seen: Callable[[Size], float], train_ids: int
) -> tuple[Size, float]:
    """Return the largest size that is worth its time, and the characters that it would see.

    `sizes` are in ascending order. `seen` returns the characters that a model of a size would see
    in the time. It is called for no size after the first that is not worth its time.
    """
    best: tuple[Size, float] | None = None
    for size in sizes:
        characters = seen(size)
        is_worth = (
            characters >= CHARACTERS_PER_PARAMETER * size.parameters
            and size.parameters <= PARAMETERS_PER_CHARACTER * train_ids
        )
        if best is None or is_worth:
            best = size, characters
        if not is_worth:
            break
    if best is None:
        raise ValueError("expected at least one size")
    return best


def useful_passes(train_ids: int) -> tuple[float, float]:
    """Return the passes over a train split after which a model overfits, and its token dropout."""
    _, passes, dropout = PASSES[bisect_left(PASSES, (train_ids,))]
    return passes, dropout


def choose(size: Size, characters: float, train_ids: int, max_members: int) -> Choice:
    """Return the choice for `size`, of which one model would see `characters` in the time."""
    passes, dropout = useful_passes(train_ids)
    most = passes * train_ids
    members = min(max(1, round(characters / most)), max_members)
    each = round(min(characters / members, most))
    return Choice(size, each, members, dropout if each >= FEW_PASSES * train_ids else 0.0)


def context_length(shortest_split: int, size: Size) -> int:
    """Return T: a power of two of at most a quarter of the shorter one of train and val."""
    limit = LARGE_CONTEXT if size.parameters >= LARGE_PARAMETERS else LONGEST_CONTEXT
    longest = max(4, min(8, shortest_split - 1), shortest_split // 4)
    return 1 << min(limit, longest).bit_length() - 1


def step_characters(characters: float, T: int, batch_size: int | None = None) -> int:
    """Return the characters of a step: a power of two, at least `T`, unless B is set.

    It grows with the square root of the run's `characters`: in a short run, more steps help more
    than larger ones (arXiv:1812.06162; scripts/experiments.md).
    """
    if batch_size is not None:
        return batch_size * T
    ideal = STEP_CHARACTERS * math.sqrt(characters / RUN_CHARACTERS)
    return max(T, 1 << min(18, max(10, round(math.log2(ideal)))))


def settings(
    choice: Choice, T: int, batch_size: int | None = None, *, repeats: bool = False
) -> dict[str, Any]:
    """Return the settings of the run `choice`, by dotted key.

    Shorter runs and narrower models have larger learning rates. Set `repeats` for a text that
    repeats itself, such as code. Heads then learn to copy: half of each key comes from the previous
    character, there are at least two heads, and the first windows are longer.
    """
    (n_layer, C), characters = choice.size, choice.characters
    in_step = step_characters(characters, T, batch_size)
    steps = max(1, characters // in_step)
    length = characters / RUN_CHARACTERS
    learning_rate = LEARNING_RATE * length**-0.21 * min(1.0, RUN_C / C) ** 0.5
    most_heads = max(1 + repeats, round(C / HEAD_SIZE))
    heads = next((n for n in range(most_heads, 0, -1) if C % (2 * n) == 0), 1)
    shorter = 2 if repeats else 4
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
        "train.first_window": T // shorter if T % shorter == 0 else T,
        "train.muon_learning_rate": _two_digits(MUON_LEARNING_RATE * length**-0.125),
        "train.learning_rate": _two_digits(learning_rate),
        "train.min_learning_rate": 1e-6,
        "train.warmup_steps": min(steps, max(5, steps // 60)),
        "train.beta2": 0.95,
        "train.grad_clip": 0.0,
    }


def _two_digits(number: float) -> float:
    return float(f"{number:.2g}")
