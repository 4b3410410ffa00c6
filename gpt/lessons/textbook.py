"""The GPT of the lessons in one program.

Train it: python textbook.py TEXT.txt [STEPS]
Shapes: B windows (batch), T characters (time), C channels, H heads, V distinct characters.
"""

import math
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, T = 12, 64  # a batch is B windows of T characters
C, H, N_LAYER = 128, 4, 4  # channels, heads (of C / H channels each), blocks
N_STEPS, WARMUP = 2000, 100  # steps of training; the rate rises during the first WARMUP steps
RATE, MIN_RATE = 3e-3, 3e-4  # largest and last learning rate
SAMPLE = 500  # characters to write at the end


class MultiHeadAttention(nn.Module):
    """H causal heads of attention, computed at once."""

    mask: Tensor

    def __init__(self, C: int, H: int, T: int) -> None:
        super().__init__()
        self.H = H
        self.qkv = nn.Linear(C, 3 * C, bias=False)
        self.projection = nn.Linear(C, C)
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        mask = mask.view(1, 1, T, T)
        self.register_buffer("mask", mask, persistent=False)

    def heads(self, x: Tensor) -> list[Tensor]:
        """Return q, k and v of x (B, t, C), each (B, H, t, hs)."""
        B, t, C = x.shape
        qkv = self.qkv(x).chunk(3, dim=-1)  # three tensors (B, t, C)
        qkv = [part.view(B, t, self.H, C // self.H) for part in qkv]
        return [part.transpose(1, 2) for part in qkv]  # (B, H, t, hs)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, t, C), for any t up to T, to (B, t, C)."""
        q, k, v = self.heads(x)
        t, hs = q.shape[-2:]
        scores = q @ k.transpose(-2, -1) / hs**0.5  # (B, H, t, t)
        mask = self.mask[:, :, :t, :t]  # broadcast over B and H
        scores = scores.masked_fill(~mask, float("-inf"))
        y = scores.softmax(dim=-1) @ v  # (B, H, t, hs)
        y = y.transpose(1, 2).flatten(2)  # (B, t, H * hs)
        return self.projection(y)


class FeedForward(nn.Module):
    """Two linear layers with GELU between, at each position separately."""

    def __init__(self, C: int) -> None:
        super().__init__()
        self.expand = nn.Linear(C, 4 * C)
        self.projection = nn.Linear(4 * C, C)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, t, C) to (B, t, C)."""
        hidden = F.gelu(self.expand(x), approximate="tanh")  # (B, t, 4 C)
        return self.projection(hidden)


class TextbookBlock(nn.Module):
    """Attention, then MLP; each reads LayerNorm(x) and adds to x."""

    def __init__(self, C: int, H: int, T: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(C)
        self.attention = MultiHeadAttention(C, H, T)
        self.mlp_norm = nn.LayerNorm(C)
        self.mlp = FeedForward(C)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, t, C) to (B, t, C)."""
        x = x + self.attention(self.attention_norm(x))
        x = x + self.mlp(self.mlp_norm(x))
        return x


class TextbookGPT(nn.Module):
    """Embeddings, blocks, a last LayerNorm, and logits."""

    def __init__(self, V: int, T: int, C: int, H: int, n_layer: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(V, C)
        self.position_embedding = nn.Embedding(T, C)
        blocks = [TextbookBlock(C, H, T) for _ in range(n_layer)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(C)
        self.head = nn.Linear(C, V, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, t), for any t up to T, to logits (B, t, V)."""
        positions = self.position_embedding.weight[: ids.shape[1]]
        x = self.token_embedding(ids) + positions  # (B, t, C)
        x = self.norm(self.blocks(x))  # (B, t, C)
        return self.head(x)  # (B, t, V)


def draw_windows(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Draw B windows; return inputs (B, T) and targets (B, T), one character later."""
    starts = torch.randint(len(ids) - T, (B, 1))
    windows = ids[starts + torch.arange(T + 1)]  # (B, T + 1)
    return windows[:, :-1], windows[:, 1:]


def nats(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each character (B * T,) in nats."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")


def learning_rate(step: int, steps: int) -> float:
    """Return a rate that rises for WARMUP steps, then falls to MIN_RATE along half a cosine."""
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    done = (step - WARMUP) / max(1, steps - WARMUP)
    return MIN_RATE + (RATE - MIN_RATE) * (1 + math.cos(math.pi * done)) / 2


@torch.no_grad()
def val_nats(model: nn.Module, ids: Tensor) -> float:
    """Predict each of ids (N,) but the first, in windows of T; return the mean loss."""
    starts = range(0, len(ids) - 1, T)
    windows = [ids[start : start + T + 1][None] for start in starts]
    losses = [nats(model, window[:, :-1], window[:, 1:]) for window in windows]
    return float(torch.cat(losses).mean())


@torch.no_grad()
def write(model: nn.Module, ids: Tensor, count: int) -> Tensor:
    """Append `count` ids to ids (1, t), each drawn from the prediction after the last T ids."""
    for _ in range(count):
        p = model(ids[:, -T:])[:, -1].softmax(dim=-1)  # (1, V)
        ids = torch.cat([ids, p.multinomial(1)], dim=1)
    return ids


def fit(model: nn.Module, ids: Tensor, steps: int) -> None:
    """Train `model` on ids (N,): draw, predict, measure, go backward, clip, step."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.1)
    for step in range(steps):
        loss = nats(model, *draw_windows(ids)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps)
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step:5,}  train loss {loss.item():.4f}")


def main() -> None:
    """Train on the file that the command line names; print losses and a sample."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        text = Path(sys.argv[1]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"expected the name of a UTF-8 text, got an error: {error}; use another file")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else N_STEPS
    characters = sorted(set(text))
    V, id_of = len(characters), {c: i for i, c in enumerate(characters)}
    ids = torch.tensor([id_of[c] for c in text])
    end = int(0.9 * len(ids))  # end of the train split, start of the val split
    if end <= T:
        sys.exit(f"expected a train split longer than {T} characters, got {end}; use a longer text")
    torch.manual_seed(1337)
    model = TextbookGPT(V, T, C, H, N_LAYER)
    count = sum(p.numel() for p in model.parameters())
    print(f"V = {V}, ln V = {math.log(V):.4f}, {count:,} parameters")
    began = time.perf_counter()
    fit(model, ids[:end], steps)
    print(f"val loss {val_nats(model, ids[end:]):.4f}, {time.perf_counter() - began:.0f} s")
    print("".join(characters[i] for i in write(model, ids[end : end + 1][None], SAMPLE)[0]))


if __name__ == "__main__":
    main()
