"""Write a Python file that trains the model of a lesson. It needs no package but torch.

The code of the file is the source of the lessons' own functions and classes.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.lessons import LESSONS
from gpt.lessons.averaging import by_softmax, causal_softmax
from gpt.lessons.block import FeedForward, PreNormBlock, gelu
from gpt.lessons.head import Head, attend
from gpt.lessons.heads import FusedHeads
from gpt.lessons.lesson_page import shown_source
from gpt.lessons.positions import add_positions
from gpt.lessons.small_models import (
    Adam,
    Averages,
    ManyHeads,
    OneBlock,
    OneHead,
    draw_batch,
    fit,
    sample,
)
from gpt.lessons.textbook import Textbook


@dataclass(frozen=True)
class Stage:
    """The code of a lesson's model, and the arguments for training it with `fit`."""

    parts: tuple[Callable[..., Any], ...]  # functions and classes, in the order of the file
    model: str  # expression that builds the model for V distinct characters
    shape: tuple[int, int] = (32, 16)
    steps: int = 300
    rate: float = 0.01


BLOCK = (FusedHeads, gelu, FeedForward, PreNormBlock, add_positions)
STAGES = {  # key: the lesson that completes the model; lessons between two keys use the earlier one
    "averaging": Stage((causal_softmax, by_softmax, Averages), "Averages(V, C=64)"),
    "head": Stage((causal_softmax, attend, Head, add_positions, OneHead), "OneHead(V, T=16, C=64)"),
    "heads": Stage((FusedHeads, add_positions, ManyHeads), "ManyHeads(V, T=16, C=64)"),
    "block": Stage((*BLOCK, OneBlock), "OneBlock(V, T=16, C=64)"),
    "model": Stage(
        (*BLOCK, Textbook), "Textbook(V, T=64, C=128, n_layer=4, n_head=4)", (12, 64), 2000, 3e-3
    ),
}
IMPORTS = """\
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn"""


def write_program(lesson: str, name: str) -> str:
    """Return the text of the Python file `name`, which trains the model of `lesson`."""
    order = list(LESSONS)
    built = [stage for stage in STAGES if order.index(stage) <= order.index(lesson)]
    stage = STAGES[built[-1]]
    usage = f'"""The model of `gpt explain {lesson}`. Train it: python {name} TEXT.txt [STEPS]"""'
    training: tuple[Callable[..., Any], ...] = (Adam, draw_batch, fit, val_loss, sample)
    parts = (*stage.parts, *training, train_on_file)
    main = f"""if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.manual_seed(1337)
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else {stage.steps}
    train_on_file(lambda V: {stage.model}, {stage.shape}, steps, {stage.rate})"""
    return f"{usage}\n\n{IMPORTS}\n\n\n" + "\n\n\n".join([*map(shown_source, parts), main]) + "\n"


@torch.no_grad()
def val_loss(model: nn.Module, ids: Tensor, T: int) -> float:
    """Predict all `ids` (N,) but the first, in windows of `T`; return the mean loss in nats."""
    losses = []
    for start in range(0, len(ids) - 1, T):
        window = ids[start : start + T + 1]
        logits = model(window[None, :-1])[0]
        losses.append(F.cross_entropy(logits, window[1:], reduction="none"))
    return float(torch.cat(losses).mean())


def train_on_file(
    new_model: Callable[[int], nn.Module], shape: tuple[int, int], steps: int, rate: float
) -> None:
    """Train a model on the file sys.argv[1]; print the val loss and a sampled text.

    Args:
        new_model: builds the model, given the number of distinct characters.
        shape: as for `fit`.
        steps: as for `fit`.
        rate: as for `fit`.
    """
    try:
        text = Path(sys.argv[1]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"expected the name of a UTF-8 text, got an error: {error}; use another file")
    characters = sorted(set(text))
    id_of = {c: i for i, c in enumerate(characters)}
    ids = torch.tensor([id_of[c] for c in text])
    end = int(0.9 * len(ids))  # the train split ends here
    if end <= shape[1]:
        sys.exit(f"expected a train split longer than T = {shape[1]}, got {end}; use a longer text")
    model = new_model(len(characters))
    print(f"training for {steps:,} steps", file=sys.stderr)
    fit(model, ids[:end], shape, steps, rate)
    print(f"val loss {val_loss(model, ids[end:], shape[1]):.4f}")
    written = sample(model, ids[end : end + 1][None], 200, shape[1])
    print("".join(characters[i] for i in written[0]))
