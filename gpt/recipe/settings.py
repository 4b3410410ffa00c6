"""All settings of a run, from the few that a law chooses: shape, characters seen, token dropout.

The shipped configs for tinyshakespeare are such settings, or nearly: what they do not share
changes with the length of a run as it does from `shakespeare_fast` (0.14 M characters) to
`shakespeare_cpu` (3.7 M).
"""

import math
from dataclasses import dataclass

from gpt.config.schema import MAX_COUNT, Config

HEAD_SIZE = 64  # heads of 32 channels learn less in a step (scripts/experiments.md)
SHORTEST_CONTEXT, LONGEST_CONTEXT = 4, 512
FIRST_WINDOW = 4  # times shorter than T; of a text that repeats itself,
FIRST_WINDOW_REPEATS = 2  # times: there is more to see
STEP_CHARACTERS = 4096  # of a run of
RUN_CHARACTERS = 3.7e6  # characters, and the peak learning rates of one with C of
RUN_C = 128
MUON_LEARNING_RATE, LEARNING_RATE = 0.03, 8e-3


@dataclass(frozen=True)
class Choice:
    """What a law chooses: the model's shape, and for how long and how it is regularised.

    `characters` is how many a member sees in the run; `members` is how many models there are.
    """

    n_layer: int
    C: int
    characters: int
    token_dropout: float = 0.0
    members: int = 1

    @property
    def n_head(self) -> int:
        """Attention heads in each block, of about HEAD_SIZE channels, an even number of them."""
        most = max(1, round(self.C / HEAD_SIZE))
        return next((n for n in range(most, 0, -1) if self.C % (2 * n) == 0), 1)


def context_length(shortest_split: int) -> int:
    """T: of a text whose shorter split has so many characters; a power of two."""
    longest = max(SHORTEST_CONTEXT, min(8, shortest_split - 1), shortest_split // 4)
    longest = min(LONGEST_CONTEXT, longest)
    return 1 << longest.bit_length() - 1


def step_characters(characters: float, T: int, batch_size: int | None = None) -> int:
    """Characters in a step of a run that sees so many: about as their root, one window at least.

    A power of two unless T is larger. More steps help a short run more than larger ones
    (arXiv:1812.06162; scripts/experiments.md). Of a batch size that is set, its windows.
    """
    if batch_size is not None:
        return batch_size * T
    ideal = STEP_CHARACTERS * math.sqrt(characters / RUN_CHARACTERS)
    return max(T, 1 << min(18, max(10, round(math.log2(ideal)))))


def steps_in(characters: int, T: int, batch_size: int | None = None) -> int:
    """The steps of a run that sees so many characters in windows of T."""
    return max(1, min(characters // step_characters(characters, T, batch_size), MAX_COUNT))


def settings_for(
    choice: Choice, T: int, batch_size: int | None = None, *, repeats: bool = False
) -> Config:
    """The config of a run that trains by this choice, on windows of T.

    Where the text `repeats` itself, a head can look up what followed the last time: there are two
    or more, of which half of each key is offset, and windows are longer from the start.
    """
    in_step = step_characters(choice.characters, T, batch_size)
    steps = steps_in(choice.characters, T, batch_size)
    length = choice.characters / RUN_CHARACTERS  # shorter runs take larger steps
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
            n_head = max(2, round(choice.C / HEAD_SIZE))
            model |= {"n_head": n_head, "head_size": HEAD_SIZE}
    train = {
        "steps": steps,
        "batch_size": in_step // T,
        "first_window": T // shorter if T % shorter == 0 else T,
        "muon_learning_rate": _rounded(MUON_LEARNING_RATE * length**-0.125),
        "learning_rate": _rounded(learning_rate),
        "min_learning_rate": 1e-6,
        "warmup_steps": min(steps, max(5, steps // 60)),
        "beta2": 0.95,
        "grad_clip": 0.0,
    }
    return Config.model_validate({"model": model, "train": train})


def _rounded(number: float) -> float:
    """To two digits, as a person would write it."""
    return float(f"{number:.2g}")
