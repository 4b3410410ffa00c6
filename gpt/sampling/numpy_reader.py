"""The model once more, in numpy: on a CPU, one character at a time, several times as fast.

There torch's time goes into starting its many small operations, and into being loaded at all.
The same computation as gpt/model, to rounding; a test holds the two to the same logits.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt.config import ModelConfig

Floats = NDArray[np.float32]
Ints = NDArray[np.int_]


class NumpyReader:
    """Reads B texts as they grow, each at its own place, and keeps the keys and values of all.

    `weights` are those of a GPT, by name. Each LayerNorm's own are multiplied into the matrix that
    comes next, and of the queries and keys those channels that rotary positions turn together
    become neighbours: one complex number.
    """

    @np.errstate(over="ignore", invalid="ignore")
    def __init__(self, config: ModelConfig, weights: Mapping[str, Floats], B: int) -> None:
        T, H = config.T, config.n_head
        self.config, self.T = config, T
        tables = ["characters.weight", *(f"earlier.{i}.weight" for i in range(config.ngram - 1))]
        self.tables = np.stack([np.pad(weights[table], ((0, 1), (0, 0))) for table in tables])
        nothing = len(weights["characters.weight"])  # the id before the first: a row of zeros
        self.positions = weights.get("positions.weight")
        self.blocks = [_block(config, weights, f"blocks.{i}.") for i in range(config.n_layer)]
        self.head = _Linear.of(weights, "head", norm="norm")
        half = config.head_size // 2
        angles = np.outer(np.arange(T), 10000.0 ** -(np.arange(half) / half))
        self.turns = np.exp(1j * angles).astype(np.complex64)  # (T, hs / 2)
        self.lengths = np.zeros(B, int)
        self.ids = np.full((B, config.ngram - 1 + T), nothing)
        self.keys = np.zeros((config.n_layer, B, H, T, config.head_size), np.float32)
        self.values = np.zeros((config.n_layer, B, H, T, config.value_size), np.float32)

    def read(self, rows: list[int], texts: list[list[int]]) -> None:
        """Put these texts, of any lengths up to T, in place of those in these rows."""
        lengths = [len(text) for text in texts]
        self.lengths[rows] = 0
        if longest := max(lengths):  # the shorter ones are filled up, and that is forgotten
            filled = [text + [0] * (longest - len(text)) for text in texts]
            self._forward(np.array(rows), np.array(filled))
            self.lengths[rows] = lengths

    @np.errstate(over="ignore", invalid="ignore")
    def next(self, ids: list[int]) -> Floats:
        """Read one character more of each text: the logits (B, V) of those that follow."""
        x = self._forward(np.arange(len(ids)), np.array(ids)[:, None])
        self.lengths += 1
        logits: Floats = self.head(_normalize(x[:, 0]))
        return logits

    def copy(self, row: int, rows: list[int]) -> None:
        """Put the text in one row in place of those in others."""
        end = int(self.lengths[row])
        self.lengths[rows], self.ids[rows] = end, self.ids[row]
        for cache in (self.keys, self.values):
            cache[:, rows, :, :end] = cache[:, [row], :, :end]

    def keep(self, rows: list[int]) -> None:
        """Go on with these texts only."""
        self.lengths, self.ids = self.lengths[rows], self.ids[rows]
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]

    @np.errstate(over="ignore", invalid="ignore")
    def _forward(self, rows: Ints, ids: Ints) -> Floats:
        """The stream (n, t, C) of the t characters that come next in each of these n rows."""
        n, t = ids.shape
        config, lengths = self.config, self.lengths[rows]
        places = lengths[:, None] + np.arange(t)  # (n, t)
        end, even = int(lengths.max()) + t, bool((lengths == lengths[0]).all())
        back = np.arange(config.ngram)
        self.ids[rows[:, None], config.ngram - 1 + places] = ids
        window = self.ids[rows[:, None, None], config.ngram - 1 + places[..., None] - back]
        x: Floats = self.tables[back, window].sum(-2)  # (n, t, ngram, C) -> (n, t, C)
        if self.positions is not None:
            x += self.positions[places]
        turns = self.turns[places][:, :, None] if config.positions == "rotary" else None
        future = None
        if t > 1 or not even:
            future = np.arange(end) > places[:, None, :, None]  # (n, 1, t, end)

        def remember(cache: Floats, new: Floats) -> Floats:
            """Put new (n, H, t, size) into the cache; all (n, H, end, size) so far."""
            if not even:
                cache[rows, :, places[:, 0]] = new[:, :, 0]
                return cache[:, :, :end]
            chosen = slice(None) if n == len(cache) else rows  # of all rows a view will do
            cache[chosen, :, end - t : end] = new
            seen: Floats = cache[chosen, :, :end]
            return seen

        for block, keys, values in zip(self.blocks, self.keys, self.values, strict=True):
            q, k, v = self._heads(block.qkv(_normalize(x)), turns)
            x = x + block.projection(
                _attend(q, remember(keys, k), remember(values, v), future).reshape(n, t, -1)
            )
            x += block.contract(self._bend(block.expand(_normalize(x))))
        return x

    def _heads(
        self, qkv: Floats, turns: NDArray[np.complex64] | None
    ) -> tuple[Floats, Floats, Floats]:
        """Queries, keys and values, each (n, H, t, size)."""
        n, t, _ = qkv.shape
        H, hs = self.config.n_head, self.config.head_size
        qk, v = qkv[..., : 2 * H * hs].reshape(n, t, 2 * H, hs), qkv[..., 2 * H * hs :]
        if self.config.qk_norm:
            qk = _normalize(qk)
        if turns is not None:
            qk = (qk.view(np.complex64) * turns).view(np.float32)
        qk = qk.transpose(0, 2, 1, 3)
        return qk[:, :H], qk[:, H:], v.reshape(n, t, H, -1).transpose(0, 2, 1, 3)

    def _bend(self, h: Floats) -> Floats:
        if self.config.activation == "relu2":
            return np.square(np.maximum(h, 0))
        inner = np.float32((2 / np.pi) ** 0.5) * (h + np.float32(0.044715) * h * h * h)
        bent: Floats = np.float32(0.5) * h * (1 + np.tanh(inner))
        return bent


def _attend(q: Floats, k: Floats, v: Floats, future: NDArray[np.bool_] | None) -> Floats:
    """(n, H, t, hs), and (n, H, end, hs) and (n, H, end, vs) to see -> (n, t, H, vs)."""
    scores = (q * np.float32(q.shape[-1] ** -0.5)) @ k.swapaxes(-1, -2)
    if future is not None:
        scores = np.where(future, np.float32(-np.inf), scores)
    scores -= np.maximum.reduce(scores, -1, keepdims=True)
    weights = np.exp(scores, out=scores)
    weights /= np.add.reduce(weights, -1, keepdims=True)
    y: Floats = (weights @ v).transpose(0, 2, 1, 3)
    return y


def _normalize(x: Floats) -> Floats:
    """LayerNorm over the last dimension (arXiv:1607.06450), without weights."""
    n = x.shape[-1]
    x = x - np.add.reduce(x, -1, keepdims=True) / n
    x /= np.sqrt(np.add.reduce(x * x, -1, keepdims=True) / n + 1e-5)
    return x


class _Linear(NamedTuple):
    """x -> x W^T + b."""

    weight: Floats
    bias: Floats

    @classmethod
    def of(cls, weights: Mapping[str, Floats], name: str, norm: str | None = None) -> "_Linear":
        """The layer of that name; with what the norm before it scales and shifts, in one."""
        weight = weights[f"{name}.weight"]
        bias = weights.get(f"{name}.bias", np.zeros(len(weight), np.float32))
        if norm is None:
            return cls(weight, bias)
        return cls(weight * weights[f"{norm}.weight"], bias + weight @ weights[f"{norm}.bias"])

    def __call__(self, x: Floats) -> Floats:
        out: Floats = x.reshape(-1, x.shape[-1]) @ self.weight.T
        out += self.bias
        return out.reshape(*x.shape[:-1], -1)


class _Block(NamedTuple):
    qkv: _Linear
    projection: _Linear
    expand: _Linear
    contract: _Linear


def _block(config: ModelConfig, weights: Mapping[str, Floats], prefix: str) -> _Block:
    part = {key.removeprefix(prefix): w for key, w in weights.items() if key.startswith(prefix)}
    qkv = _Linear.of(part, "attention.qkv", norm="attention_norm")
    if config.positions == "rotary":  # channels i and i + hs / 2 of each head side by side
        order = np.arange(len(qkv.bias))
        turned = order[: 2 * config.n_head * config.head_size]
        turned[:] = turned.reshape(-1, 2, config.head_size // 2).swapaxes(1, 2).ravel()
        qkv = _Linear(qkv.weight[order], qkv.bias[order])
    return _Block(
        qkv,
        _Linear.of(part, "attention.projection"),
        _Linear.of(part, "mlp.expand", norm="mlp_norm"),
        _Linear.of(part, "mlp.projection"),
    )
