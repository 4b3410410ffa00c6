"""The text, the training loop, one head and the loss ladder, which several lessons share.

Shapes: B windows (batch), T characters (time), C channels, V distinct characters, hs head size.
"""

import time
from collections.abc import Callable, Mapping
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.device import computing_with
from gpt.reading.sources import open_source
from gpt.text.batches import to_torch
from gpt.text.corpus import load_corpus

SEED = 1337
WINDOWS = ["returns", "the set"]  # the example of the lessons: two windows from python-docs
LADDER = {  # val loss that lessons print, after 300 steps on the documentation of Python 3.11
    "bigram": 2.3312,
    "average": 2.3335,
    "average of values": 2.2491,
    "one head": 2.2875,
    "four heads": 2.1476,
    "four heads, positions": 2.0117,
    "one block": 1.9108,
    "four blocks without LayerNorm": 1.7965,
    "four blocks with LayerNorm": 1.8907,
}


@cache
def python_docs() -> tuple[Tensor, Tensor, list[str]]:
    """Return the train ids, the val ids and the characters of Python's documentation."""
    corpus = load_corpus(open_source("python-docs"))
    return to_torch(corpus.train), to_torch(corpus.val), list(corpus.vocabulary.names)


def example() -> tuple[Tensor, list[str]]:
    """Return x (B, T, C) = (2, 7, 15) for WINDOWS, and names of the first window's positions."""
    characters = sorted(set("".join(WINDOWS)))
    ids = torch.tensor([[characters.index(c) for c in window] for window in WINDOWS])
    torch.manual_seed(SEED)
    vectors = torch.randn(len(characters), 15)  # a row for each distinct character
    return vectors[ids], [f"{t} {c}" for t, c in enumerate(WINDOWS[0])]


def draw_batch(ids: Tensor, B: int = 32, T: int = 16) -> list[Tensor]:
    """Draw B windows; return inputs (B, T) and targets, one id later."""
    starts = torch.randint(len(ids) - T, (B, 1))
    windows = ids[starts + torch.arange(T + 1)]  # (B, T + 1)
    return [windows[:, :-1], windows[:, 1:]]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean of -ln p(y); `model` predicts p from x."""
    logits = model(x)  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())  # mean of -ln p


def train(model: nn.Module, ids: Tensor, steps: int, rate: float) -> None:
    """Train `model`: draw a batch, compute the loss, go backward, step."""
    torch.manual_seed(1337)  # each model draws the same batches
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        x, y = draw_batch(ids)
        loss = loss_of(model, x, y)
        optimizer.zero_grad()  # clear the gradients of the previous step
        loss.backward()  # compute the gradient of every parameter
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        optimizer.step()


@torch.no_grad()
def val_loss(model: nn.Module, ids: Tensor, T: int = 16) -> float:
    """Return the mean loss of `model` on consecutive windows of `ids`."""
    windows = ids.unfold(0, T + 1, T)  # (number of windows, T + 1)
    return float(loss_of(model, windows[:, :-1], windows[:, 1:]))


@torch.no_grad()
def sample(model: nn.Module, ids: Tensor, count: int, T: int = 16) -> Tensor:
    """Append `count` ids to ids (1, t); predict each from the last T ids."""
    for _ in range(count):
        logits = model(ids[:, -T:])[:, -1]  # (1, V)
        p = logits.softmax(dim=-1)
        ids = torch.cat([ids, p.multinomial(1)], dim=1)  # draw one id from p
    return ids


def fit(
    new_model: Callable[[], nn.Module], steps: int, rate: float = 0.01, ids: Tensor | None = None
) -> tuple[nn.Module, float]:
    """Train a new model on `ids`, by default of python-docs; return it and its val loss."""
    train_ids, val_ids, _ = python_docs()
    torch.manual_seed(SEED)
    model = new_model()
    with computing_with(1):  # models this small gain nothing from several threads
        train(model, train_ids if ids is None else ids, steps, rate)
        model.eval()
        return model, val_loss(model, val_ids)


def climb(
    rows: Mapping[str, Callable[[], nn.Module]], steps: int, rate: float = 0.01
) -> dict[str, float]:
    """Train a model for each of `rows`; print and return the losses of earlier rows and these."""
    names = list(LADDER)
    losses = {name: LADDER[name] for name in names[: names.index(next(iter(rows)))]}
    print("loss on val (nats per character); rows without seconds: from earlier lessons")
    for name, loss in losses.items():
        print(f"  {name:<34}{loss:.4f}")
    for name, new_model in rows.items():
        began = time.perf_counter()
        _, losses[name] = fit(new_model, steps, rate)
        seconds = time.perf_counter() - began
        print(f"  {name:<34}{losses[name]:.4f}  ({seconds:.1f} s)")
    return losses


class SmallModel(nn.Module):
    """Embed ids, apply `mix` to the vectors, compute V logits."""

    def __init__(self, V: int, mix: nn.Module, C: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(V, C)  # a vector for each character
        self.mix = mix
        self.output = nn.Linear(C, V)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        x = self.tokens(ids)  # (B, T, C)
        return self.output(self.mix(x))


class Residual(nn.Module):
    """Add f(x) to x."""

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, C) to x + f(x)."""
        return x + self.f(x)


class AddPositions(nn.Module):
    """Add to each position its own trained vector."""

    def __init__(self, T: int, C: int) -> None:
        super().__init__()
        self.table = nn.Embedding(T, C)  # a row for each position

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, t, C), for any t up to T, to (B, t, C)."""
        return x + self.table.weight[: x.shape[1]]


# fmt: off
def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return softmax(q k^T / sqrt(hs)) v, and the weights."""
    scores = q @ k.transpose(-2, -1)  # (..., T, hs) @ (..., hs, T)
    scores = scores / q.shape[-1] ** 0.5  # (..., T, T)
    if mask is not None:  # mask: True where a query may attend to a key
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(dim=-1)  # each row sums to 1
    return weights @ v, weights


# fmt: on


class AveragedValues(nn.Module):
    """The mean of the values so far, like a head whose queries are 0."""

    def __init__(self, C: int) -> None:
        super().__init__()
        self.value = nn.Linear(C, C, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, C) to (B, T, C)."""
        v, T = self.value(x), x.shape[1]
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        return attend(torch.zeros_like(v), v, v, mask)[0]


class Head(nn.Module):
    """One causal head of attention."""

    def __init__(self, C: int, head_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(C, head_size, bias=False)
        self.key = nn.Linear(C, head_size, bias=False)
        self.value = nn.Linear(C, head_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, C) to (B, T, hs)."""
        T = x.shape[1]
        q = self.query(x)  # (B, T, C) -> (B, T, hs)
        k = self.key(x)  # (B, T, hs)
        v = self.value(x)  # (B, T, hs)
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        out, self.weights = attend(q, k, v, mask)
        return out  # `self.weights` (B, T, T) is kept for inspection
