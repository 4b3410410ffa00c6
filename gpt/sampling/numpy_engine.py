"""The model once more, in numpy: on a CPU, one character at a time, several times as fast.

There torch's time goes into starting its many small operations, and into being loaded at all.
The same computation as gpt/model, to rounding; a test holds the two to the same logits.

The stream has mean zero here: a LayerNorm would take the mean away, so it is taken from all that
adds to the stream, once, as the weights are read.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt.config.schema import ModelConfig
from gpt.model.shapes import rotary_angles

Floats = NDArray[np.float32]
Ints = NDArray[np.int_]


class NumpyReader:
    """Reads B texts as they grow, each at its own place, and keeps the keys and values of all.

    `weights` are those of a GPT, by name. Each LayerNorm's own are multiplied into the matrix that
    comes next, and of the queries and keys those channels that rotary positions turn together
    become neighbours: one complex number.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Floats], B: int) -> None:
        T, H = config.T, config.n_head
        self.config, self.T = config, T
        tables = [
            "token_embedding.weight",
            *(f"ngram_embeddings.{i}.weight" for i in range(config.ngram - 1)),
        ]
        nothing = len(weights["token_embedding.weight"])  # the id before the first: a row of zeros
        self.positions = None
        with np.errstate(over="ignore", invalid="ignore"):
            self.tables = np.stack(
                [np.pad(_centred(weights[table], 1), ((0, 1), (0, 0))) for table in tables]
            )
            if config.positions == "learned":
                self.positions = _centred(weights["position_embedding.weight"], 1)
            self.blocks = [_block(config, weights, f"blocks.{i}.") for i in range(config.n_layer)]
            self.head = _Linear.of(weights, "head", norm="norm")
        angles = rotary_angles(T, config.head_size)
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
            self._forward(np.array(rows), np.array(filled), expect=False)
            self.lengths[rows] = lengths

    def next(self, ids: list[int]) -> Floats:
        """Read one character more of each text: the logits (B, V) of those that follow."""
        logits = self._forward(np.arange(len(ids)), np.array(ids)[:, None])
        self.lengths += 1
        return logits

    def copy(self, row: int, rows: list[int]) -> None:
        """Put the text in one row in place of those in others."""
        end = int(self.lengths[row])
        self.lengths[rows], self.ids[rows] = end, self.ids[row]
        for kept in (self.keys, self.values):
            kept[:, rows, :, :end] = kept[:, [row], :, :end]

    def keep(self, rows: list[int]) -> None:
        """Go on with these texts only."""
        self.lengths, self.ids = self.lengths[rows], self.ids[rows]
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]

    @np.errstate(over="ignore", invalid="ignore")
    def _forward(self, rows: Ints, ids: Ints, expect: bool = True) -> Floats:
        """Read the (n, t) characters that come next in each of these n rows.

        Logits (n t, V) of those that follow each, or none if they are not wanted.
        """
        n, t = ids.shape
        config, lengths = self.config, self.lengths[rows]
        places = lengths[:, None] + np.arange(t)  # (n, t)
        end, even = int(lengths.max()) + t, bool((lengths == lengths[0]).all())
        back = np.arange(config.ngram)
        self.ids[rows[:, None], config.ngram - 1 + places] = ids
        window = self.ids[rows[:, None, None], config.ngram - 1 + places[..., None] - back]
        embedded = self.tables[back, window].sum(-2)  # (n, t, ngram, C) -> (n, t, C)
        if self.positions is not None:
            embedded += self.positions[places]
        x: Floats = embedded.reshape(n * t, -1)  # (n t, C)
        turns = self.turns[places][:, :, None] if config.positions == "rotary" else None
        future = None
        if t > 1 or not even:
            future = np.arange(end) > places[:, None, :, None]  # (n, 1, t, end)
        chosen = rows if (np.diff(rows) != 1).any() else slice(rows[0], rows[-1] + 1)  # a view

        def remember(cache: Floats, new: Floats) -> Floats:
            """Put new (n, t, H, size) into the cache; all (n, H, end, size) so far."""
            if even:
                cache[chosen, :, end - t : end] = new.swapaxes(1, 2)
            else:
                cache[rows[:, None], :, places] = new
            seen: Floats = cache[chosen, :, :end]
            return seen

        scale = np.float32(config.attention_scale * config.head_size**-0.5)
        for block, keys, values in zip(self.blocks, self.keys, self.values, strict=True):
            q, k, v = self._heads(block.qkv(_normalize(x)), n, turns)
            k, v = remember(keys, k), remember(values, v)
            if block is self.blocks[-1] and not expect:
                return np.empty((0, 0), np.float32)
            y = _attend(q.swapaxes(1, 2), k, v, future, scale)  # (n, H, t, vs)
            x += block.projection(y.swapaxes(1, 2).reshape(n * t, -1))
            x += block.contract(self._bend(block.expand(_normalize(x))))
        return self.head(_normalize(x))

    def _heads(
        self, qkv: Floats, n: int, turns: NDArray[np.complex64] | None
    ) -> tuple[Floats, Floats, Floats]:
        """Queries, keys and values, each (n, t, H, size)."""
        H, hs, vs = self.config.n_head, self.config.head_size, self.config.value_size
        qk, v = qkv[:, : 2 * H * hs].reshape(n, -1, 2 * H, hs), qkv[:, 2 * H * hs :]
        if self.config.qk_norm:
            qk = _normalize(qk)
        if turns is not None:
            qk = (qk.view(np.complex64) * turns).view(np.float32)
        return qk[:, :, :H], qk[:, :, H:], v.reshape(n, -1, H, vs)

    def _bend(self, h: Floats) -> Floats:
        if self.config.activation == "relu2":
            return np.square(np.maximum(h, 0, out=h), out=h)
        inner = np.float32((2 / np.pi) ** 0.5) * (h + np.float32(0.044715) * h * h * h)
        bent: Floats = np.float32(0.5) * h * (1 + np.tanh(inner))
        return bent


def _attend(
    q: Floats, k: Floats, v: Floats, future: NDArray[np.bool_] | None, scale: np.float32
) -> Floats:
    """(n, H, t, hs), and (n, H, end, hs) and (n, H, end, vs) to see -> (n, H, t, vs)."""
    scores = (q * scale) @ k.swapaxes(-1, -2)
    if future is not None:
        scores = np.where(future, np.float32(-np.inf), scores)
    scores -= np.maximum.reduce(scores, -1, keepdims=True)
    weights = np.exp(scores, out=scores)
    weights /= np.add.reduce(weights, -1, keepdims=True)
    y: Floats = weights @ v
    return y


def _normalize(x: Floats) -> Floats:
    """LayerNorm over the last dimension (arXiv:1607.06450), of numbers with mean zero."""
    variance = np.vecdot(x, x)[..., None] / np.float32(x.shape[-1])
    out: Floats = x / np.sqrt(variance + np.float32(1e-5))
    return out


def _centred(weight: Floats, axis: int) -> Floats:
    """The same, with mean zero along an axis."""
    centred: Floats = weight - weight.mean(axis, keepdims=True)
    return centred


class _Linear(NamedTuple):
    """x (m, in) -> x W + b."""

    weight: Floats  # (in, out)
    bias: Floats

    @classmethod
    def of(cls, weights: Mapping[str, Floats], name: str, norm: str | None = None) -> "_Linear":
        """The layer of that name; with what the norm before it scales and shifts, in one."""
        weight = weights[f"{name}.weight"]
        bias = weights.get(f"{name}.bias", np.zeros(len(weight), np.float32))
        if norm is not None:
            bias = bias + weight @ weights[f"{norm}.bias"]
            weight = weight * weights[f"{norm}.weight"]
        return cls(np.ascontiguousarray(weight.T), bias)

    def centred(self) -> "_Linear":
        """The same, but what comes out has mean zero."""
        return _Linear(_centred(self.weight, -1), _centred(self.bias, -1))

    def __call__(self, x: Floats) -> Floats:
        out: Floats = x @ self.weight
        out += self.bias
        return out


class _Block(NamedTuple):
    qkv: _Linear
    projection: _Linear
    expand: _Linear
    contract: _Linear


def _block(config: ModelConfig, weights: Mapping[str, Floats], prefix: str) -> _Block:
    part = {key.removeprefix(prefix): w for key, w in weights.items() if key.startswith(prefix)}
    return _Block(
        _qkv(config, _Linear.of(part, "attention.qkv", norm="attention_norm")),
        _Linear.of(part, "attention.projection").centred(),
        _Linear.of(part, "mlp.expand", norm="mlp_norm"),
        _Linear.of(part, "mlp.projection").centred(),
    )


def _qkv(config: ModelConfig, qkv: _Linear) -> _Linear:
    """The queries and keys as `_heads` expects them: centred for QK norm, pairs side by side."""
    H, hs = config.n_head, config.head_size

    def prepared(columns: Floats) -> Floats:
        qk, v = np.split(columns, [2 * H * hs], -1)
        if config.qk_norm:
            qk = _centred(qk.reshape(-1, 2 * H, hs), -1)
        if config.positions == "rotary":  # channels i and i + hs / 2
            qk = qk.reshape(-1, 2 * H, 2, hs // 2).swapaxes(-1, -2)
        return np.concatenate([qk.reshape(*v.shape[:-1], 2 * H * hs), v], -1)

    return _Linear(prepared(qkv.weight), prepared(qkv.bias))
