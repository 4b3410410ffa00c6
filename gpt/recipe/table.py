"""Choose a config from the speed of a few sizes, the length of the text, and the time.

Speed times time is the number of characters that a model would see. A character means an id.

1. **Size.** Leave out sizes with more than PARAMETERS_PER_CHARACTER parameters for each character
   of the train split. Begin with the largest of the others up to SHORT_RUN_SIZE, else the smallest.
   Take the next size as long as the run would see at least CHARACTERS_PER_PARAMETER characters for
   each of its parameters.
2. **Members.** A model that sees a text too often overfits: PASSES has the useful passes. Divide
   the characters in the time by those of the useful passes, and round: this is the number of models
   of an ensemble. They share the time equally. What they cannot use remains unused.
3. **Token dropout** is the third column of PASSES, if a member makes at least FEW_PASSES passes.
4. T follows from the shorter split (`context_length`), and the rest from the size, T and the
   characters of a member (`settings`).

For example, a model of 3 layers with 128 channels has about 0.6 million parameters. On two CPU
cores it sees 13 million characters in five minutes, which is 22 for each parameter. The next size,
4 x 160, would see 7 million, 6 for each parameter, which is too few. The train split of a text of
1.1 MB has 1 million characters, of which 5 passes are useful: 13 / 5 is about 3 members.

The numbers were chosen by the losses of 221 recorded runs of 14 texts (scripts/experiments.md).
nanochat, too, derives its settings from one number, its depth.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpt.text.corpus import USUAL_MIN_CONTEXT

CHARACTERS_PER_PARAMETER = 12  # fewest; below the 20 of large models (arXiv:2203.15556)
PARAMETERS_PER_CHARACTER = 10  # most, for each character of the train split
MAX_MEMBERS = {"cpu": 8, "cuda": 16}  # models of an ensemble, by the type of the device
# train split of up to this many characters; useful passes over it; token dropout of a member
PASSES = (
    (30_000, 9.0, 0.1),
    (100_000, 7.5, 0.05),
    (400_000, 6.0, 0.02),
    (3_000_000, 5.0, 0.01),
    (math.inf, 4.0, 0.01),
)
FEW_PASSES = 2  # a member that makes fewer passes has no token dropout
SHORT_TEXT = 400_000  # characters of a train split that is called short
HEAD_SIZE = 64  # channels; heads of 32 channels learn less in a step (scripts/experiments.md)
LONGEST_CONTEXT, LONGEST_LARGE_CONTEXT = 512, 1024  # largest T; the second from LARGE_PARAMETERS on
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
        """Approximate number of parameters, without embeddings."""
        return 12 * self.n_layer * self.C**2


SIZES = tuple(
    Size(*size)
    for size in (
        *((2, 64), (2, 96), (2, 128), (3, 128), (4, 160), (4, 192), (6, 192), (6, 256)),
        *((8, 320), (8, 384), (8, 512), (12, 640), (12, 768)),
    )
)


SHORT_RUN_SIZE = Size(2, 128)  # the best size of short runs: see configs/shakespeare_fast.yaml


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
        length = "short" if train_ids < SHORT_TEXT else "long" if passes < 1 else "whole"
        if self.members > 1:
            why = f"{self.members} models are averaged, because one would overfit"
        else:
            per_parameter = self.characters / self.size.parameters
            why = f"one model, which sees {per_parameter:.2g} {unit}s for each parameter"
        dropout = f", token dropout {self.token_dropout:g}" if self.token_dropout else ""
        noun = "pass" if f"{passes:.2g}" == "1" else "passes"
        return f"{passes:.2g} {noun} over the {length} text: {why}{dropout}"


def largest_size(
    sizes: Sequence[Size], seen: Callable[[Size], float], train_ids: int
) -> tuple[Size, float]:
    """Return the largest suitable size, and the characters that it would see; see the top.

    `sizes` are in ascending order. `seen` returns the characters that a model of a size would see
    in the time. Sizes that cannot be chosen are not measured by it, except the next larger one.
    """
    limit = PARAMETERS_PER_CHARACTER * train_ids
    fitting = [size for size in sizes if size.parameters <= limit] or [*sizes[:1]]
    first = max(0, sum(size.parameters <= SHORT_RUN_SIZE.parameters for size in fitting) - 1)
    best = fitting[first], seen(fitting[first])
    for size in fitting[first + 1 :]:
        if (characters := seen(size)) < CHARACTERS_PER_PARAMETER * size.parameters:
            break
        best = size, characters
    return best


def useful_passes(train_ids: int) -> tuple[float, float]:
    """Return the useful passes over a train split, and the token dropout of a member."""
    _, passes, dropout = PASSES[bisect_left(PASSES, (train_ids,))]
    return passes, dropout


def choose_members(size: Size, characters: float, train_ids: int, max_members: int) -> Choice:
    """Divide `characters`, which one model of `size` would see in the time, among members."""
    passes, dropout = useful_passes(train_ids)
    useful = passes * train_ids
    members = min(max(1, round(characters / useful)), max_members)
    per_member = round(min(characters / members, useful))
    if per_member < FEW_PASSES * train_ids:
        dropout = 0.0
    return Choice(size, per_member, members, dropout)


def context_length(shortest_split: int, size: Size) -> int:
    """Return T: the largest power of two up to a quarter of the shorter one of train and val.

    It is at most LONGEST_CONTEXT (LONGEST_LARGE_CONTEXT for a large model), and at least
    USUAL_MIN_CONTEXT.
    """
    limit = LONGEST_LARGE_CONTEXT if size.parameters >= LARGE_PARAMETERS else LONGEST_CONTEXT
    longest = max(USUAL_MIN_CONTEXT, shortest_split // 4)
    return 1 << (min(limit, longest).bit_length() - 1)


def step_characters(characters: float, T: int, batch_size: int | None = None) -> int:
    """Return the characters of a step: a power of two, at least `T`, unless `batch_size` is given.

    It grows with the square root of the run's `characters`: in a short run, many small steps are
    better than few large ones (arXiv:1812.06162; scripts/experiments.md).
    """
    if batch_size is not None:
        return batch_size * T
    ideal = STEP_CHARACTERS * math.sqrt(characters / RUN_CHARACTERS)
    return max(T, 1 << min(18, max(10, round(math.log2(ideal)))))


def settings(
    choice: Choice, T: int, batch_size: int | None = None, *, repeats: bool = False
) -> dict[str, Any]:
    """Return the settings of the run `choice`, by dotted key.

    Shorter runs have larger learning rates; models wider than RUN_C have a smaller one. Set
    `repeats` for a text that repeats itself, such as code. Heads then learn to copy: half of each
    key comes from the previous character, there are at least two heads, and the first windows are
    longer.
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
