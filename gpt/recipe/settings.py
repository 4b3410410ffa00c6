"""Derive all settings of a run from its shape, number of characters and token dropout.

chooser.py chooses these three for the lowest val loss that law.py predicts. Token dropout sets the
embeddings of random input characters to zero. T is the attention window in ids. V is the size of
the vocabulary. `batch_size` is the number of windows in a step; None if the user has not set it.
`shortest_split` is the number of ids in the shorter of the splits train and val.

The configs `shakespeare_fast` and `shakespeare_cpu` nearly follow these rules, for runs of 0.14 M
and 3.7 M characters.
"""

import math
from dataclasses import dataclass

from gpt.config.schema import MAX_COUNT, Config

HEAD_SIZE = 64  # channels; heads of 32 channels learn less in a step (scripts/experiments.md)
SHORTEST_CONTEXT, LONGEST_CONTEXT = 4, 512  # limits of the attention window, in characters
LARGE_CONTEXT = 1024  # the upper limit for models of at least LARGE_PARAMETERS
LARGE_PARAMETERS = 6_000_000  # size of the largest models that the law was fitted on
FIRST_WINDOW = 4  # ratio of the attention window to the length of the windows at the start of a run
FIRST_WINDOW_REPEATS = 2  # the same if the text repeats itself: heads need longer windows to copy
# a reference run: its characters and channels; its characters per step and learning rates
RUN_CHARACTERS, RUN_C = 3.7e6, 128
STEP_CHARACTERS, MUON_LEARNING_RATE, LEARNING_RATE = 4096, 0.03, 8e-3


@dataclass(frozen=True)
class Choice:
    """Settings of a run that are chosen for the lowest predicted val loss (see law.py)."""

    n_layer: int
    C: int
    characters: int  # number of characters that each member is trained on
    token_dropout: float = 0.0
    members: int = 1  # size of the ensemble

    @property
    def n_head(self) -> int:
        """Number of attention heads. Each gets an even number of channels, about HEAD_SIZE."""
        most = max(1, round(self.C / HEAD_SIZE))
        return next((n for n in range(most, 0, -1) if self.C % (2 * n) == 0), 1)

    def parameters(self, V: int) -> int:
        """Return the approximate number of parameters of one member, for vocabulary size `V`."""
        return 12 * self.n_layer * self.C**2 + 5 * V * self.C


def context_length(shortest_split: int, limit: int = LONGEST_CONTEXT) -> int:
    """Return an attention window that suits `shortest_split`: a power of two, at most `limit`."""
    longest = max(SHORTEST_CONTEXT, min(8, shortest_split - 1), shortest_split // 4)
    return 1 << min(limit, longest).bit_length() - 1


def step_characters(characters: float, T: int, batch_size: int | None = None) -> int:
    """Return the number of characters per step for a run of `characters` characters.

    Without `batch_size`, this is a power of two, or T if that is larger. It grows with the square
    root of `characters`: in a short run, more steps help more than larger ones (arXiv:1812.06162;
    scripts/experiments.md).
    """
    if batch_size is not None:
        return batch_size * T
    ideal = STEP_CHARACTERS * math.sqrt(characters / RUN_CHARACTERS)
    return max(T, 1 << min(18, max(10, round(math.log2(ideal)))))


def steps_in(characters: int, T: int, batch_size: int | None = None) -> int:
    """Return the number of steps, at least 1, of a run of `characters` characters."""
    return max(1, min(characters // step_characters(characters, T, batch_size), MAX_COUNT))


def settings_for(
    choice: Choice, T: int, batch_size: int | None = None, *, repeats: bool = False
) -> Config:
    """Return the config of the run `choice`.

    Set `repeats` for a text that repeats itself. Heads then learn to copy: there are at least two,
    half of each key comes from the previous character, and the first windows of a run are longer.
    """
    in_step = step_characters(choice.characters, T, batch_size)
    steps = steps_in(choice.characters, T, batch_size)
    length = choice.characters / RUN_CHARACTERS  # shorter runs have larger learning rates
    learning_rate = LEARNING_RATE * length**-0.21 * min(1.0, RUN_C / choice.C) ** 0.5
    shorter = FIRST_WINDOW_REPEATS if repeats else FIRST_WINDOW
    model = {
        "T": T,
        "C": choice.C,
        "n_layer": choice.n_layer,
        "n_head": choice.n_head,
        "ensemble": choice.members,
        "attention_scale": 1.5,
        "character_dropout": choice.token_dropout,
    }
    if repeats:
        model["key_offset"] = True
        if choice.n_head == 1:
            model |= {"n_head": max(2, round(choice.C / HEAD_SIZE)), "head_size": HEAD_SIZE}
    train = {
        "steps": steps,
        "batch_size": in_step // T,
        "first_window": T // shorter if T % shorter == 0 else T,
        "muon_learning_rate": _two_digits(MUON_LEARNING_RATE * length**-0.125),
        "learning_rate": _two_digits(learning_rate),
        "min_learning_rate": 1e-6,
        "warmup_steps": min(steps, max(5, steps // 60)),
        "beta2": 0.95,
        "grad_clip": 0.0,
    }
    return Config.model_validate({"model": model, "train": train})


def _two_digits(number: float) -> float:
    return float(f"{number:.2g}")
