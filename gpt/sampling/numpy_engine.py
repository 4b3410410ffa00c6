"""The engine for a CPU: the model in numpy, several times as fast as torch at one character.

There torch's time goes into starting its many small operations, and into being imported at all.
The same computation as gpt/model, to rounding; a test holds the two to the same logits.

The residual stream has mean zero here: a LayerNorm subtracts the mean, so it is subtracted once
from all weights that add to the stream.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt.config.schema import ModelConfig
from gpt.model.shapes import member_prefixes, rotary_angles, staying_pairs

Floats = NDArray[np.float32]
Ints = NDArray[np.int_]

FIRST_ROOM = 256  # characters that the caches have room for at first
SCORES_NUMBERS = 2**25  # attention scores in one forward pass of a prefill: bounds its memory


class NumpyEngine:
    """B texts, each with a length of its own, and the keys and values of all their characters.

    `weights` are those of a GPT or an Ensemble, by name. The weights of each LayerNorm are
    multiplied into the matrix that follows it, and the channels of queries and keys that rotary
    positions rotate together become neighbours: one complex number. With `key_offset` there is room
    for one key more than values. The K members of an ensemble are computed together: each array
    begins with a dimension of them; without one, K is 1.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Floats], B: int) -> None:
        T, H = config.T, config.n_head
        self.config, self.T = config, T
        tables = [
            "token_embedding.weight",
            *(f"ngram_embeddings.{i}.weight" for i in range(config.ngram - 1)),
        ]
        stacked = _stacked(config, weights)
        padding = stacked["head.weight"].shape[1]  # the id before the first: a row of zeros
        self.positions = None
        with np.errstate(over="ignore", invalid="ignore"):
            one_more = ((0, 0), (0, 1), (0, 0))
            self.tables = np.stack(  # (K, ngram, V + 1, C)
                [np.pad(_centred(stacked[table], -1), one_more) for table in tables], 1
            )
            if config.positions == "learned":
                self.positions = _centred(stacked["position_embedding.weight"], -1)
            self.blocks = [_block(config, stacked, f"blocks.{i}.") for i in range(config.n_layer)]
            self.head = _Linear.of(stacked, "head", norm="norm")
        if config.positions == "rotary":
            angles = rotary_angles(T, config.head_size)
            self.rotations = np.exp(1j * angles).astype(np.complex64)  # (T, hs / 2)
        self.lengths = np.zeros(B, int)
        room = min(T, FIRST_ROOM)  # characters; the caches grow with the texts
        self.ids = np.full((B, config.ngram - 1 + room), padding)
        layers = config.n_layer, config.ensemble
        hs, offset = config.head_size, config.key_offset
        # channels of a key that are its own; the others are the next key's
        self.staying = 2 * staying_pairs(hs) if offset else hs
        self.keys = np.zeros((*layers, B, H, room + offset, hs), np.float32)
        self.values = np.zeros((*layers, B, H, room, config.value_size), np.float32)

    def prefill(self, rows: list[int], texts: list[list[int]]) -> None:
        """Replace the texts in these rows by those, of any lengths up to T."""
        lengths = [len(text) for text in texts]
        self.lengths[rows] = 0
        if longest := max(lengths):  # shorter ones are padded; their lengths leave the padding out
            self._make_room(longest)
            padded = np.array([text + [0] * (longest - len(text)) for text in texts])
            heads = self.config.ensemble * self.config.n_head
            few = max(SCORES_NUMBERS // (len(rows) * heads * longest), 1)
            for start in range(0, longest, few):
                self._forward(np.array(rows), padded[:, start : start + few], want_logits=False)
                self.lengths[rows] = min(start + few, longest)
            self.lengths[rows] = lengths

    def decode(self, ids: list[int]) -> Floats:
        """Append one character to each text: the logits (B, V) of the next."""
        self._make_room(int(self.lengths.max()) + 1)
        logits = self._forward(np.arange(len(ids)), np.array(ids)[:, None])
        self.lengths += 1
        return logits

    def fork(self, row: int, rows: list[int]) -> None:
        """Replace the texts in `rows` by that in `row`."""
        end = int(self.lengths[row])
        self.lengths[rows], self.ids[rows] = end, self.ids[row]
        for cache in (self.keys, self.values):  # and what of the last key belongs to the next
            cache[:, :, rows, :, : end + 1] = cache[:, :, [row], :, : end + 1]

    def select(self, rows: list[int]) -> None:
        """Drop all texts but those in these rows, which become rows 0, 1, 2 and so on."""
        self.lengths, self.ids = self.lengths[rows], self.ids[rows]
        self.keys, self.values = self.keys[:, :, rows], self.values[:, :, rows]

    def _make_room(self, length: int) -> None:
        """Let the caches hold texts of that length, at most T, at least twice what they held."""
        room = self.values.shape[-2]
        if length <= room:
            return
        more = min(self.T, max(length, 2 * room)) - room
        self.ids = np.pad(self.ids, ((0, 0), (0, more)))
        self.keys, self.values = (
            np.pad(cache, ((0, 0), (0, 0), (0, 0), (0, 0), (0, more), (0, 0)))
            for cache in (self.keys, self.values)
        )

    @np.errstate(over="ignore", invalid="ignore")
    def _forward(self, rows: Ints, ids: Ints, want_logits: bool = True) -> Floats:
        """Append ids (n, t) to the texts in these n rows.

        Logits (n t, V) of the character after each, or none if they are not wanted.
        """
        n, t = ids.shape
        config, lengths = self.config, self.lengths[rows]
        positions = lengths[:, None] + np.arange(t)  # (n, t)
        end, even = int(lengths.max()) + t, bool((lengths == lengths[0]).all())
        back = np.arange(config.ngram)
        self.ids[rows[:, None], config.ngram - 1 + positions] = ids
        window = self.ids[rows[:, None, None], config.ngram - 1 + positions[..., None] - back]
        embedded = self.tables[:, back, window].sum(-2)  # (K, n, t, ngram, C) -> (K, n, t, C)
        if self.positions is not None:
            embedded += self.positions[:, positions]
        x: Floats = embedded.reshape(len(embedded), n * t, -1)  # (K, n t, C)
        rotations = self.rotations[positions][:, :, None] if config.positions == "rotary" else None
        future = None
        if t > 1 or not even:
            future = np.arange(end) > positions[:, None, :, None]  # (n, 1, t, end)
        chosen = rows if (np.diff(rows) != 1).any() else slice(rows[0], rows[-1] + 1)  # a view

        def append(cache: Floats, new: Floats, later: int = 0) -> None:
            """Set new (K, n, t, H, size) in the cache of these characters, or so many later."""
            if even:
                cache[:, chosen, :, end - t + later : end + later] = new.swapaxes(2, 3)
            else:  # (n, t, K, H, size): the dimensions that are indexed come first
                cache[:, rows[:, None], :, positions + later] = np.moveaxis(new, 0, 2)

        scale = np.float32(config.attention_scale * config.head_size**-0.5)
        for block, keys, values in zip(self.blocks, self.keys, self.values, strict=True):
            q, k, v = self._heads(block.qkv(_normalize(x)), n, rotations)
            append(values, v)
            append(keys[..., : self.staying], k[..., : self.staying])
            if config.key_offset:
                append(keys[..., self.staying :], k[..., self.staying :], later=1)
            if block is self.blocks[-1] and not want_logits:
                return np.empty((0, 0), np.float32)
            k, v = keys[:, chosen, :, :end], values[:, chosen, :, :end]  # (K, n, H, end, size)
            y = _attend(q.swapaxes(2, 3), k, v, future, scale)  # (K, n, H, t, vs)
            x += block.projection(y.swapaxes(2, 3).reshape(*x.shape[:2], -1))
            x += block.contract(self._activation(block.expand(_normalize(x))))
        return _mean_prediction(self.head(_normalize(x)))

    def _heads(
        self, qkv: Floats, n: int, rotations: NDArray[np.complex64] | None
    ) -> tuple[Floats, Floats, Floats]:
        """Queries, keys and values, each (K, n, t, H, size)."""
        H, hs, vs = self.config.n_head, self.config.head_size, self.config.value_size
        K = len(qkv)
        qk, v = qkv[..., : 2 * H * hs].reshape(K, n, -1, 2 * H, hs), qkv[..., 2 * H * hs :]
        if self.config.qk_norm:
            qk = _normalize(qk)
        if rotations is not None:
            qk = (qk.view(np.complex64) * rotations).view(np.float32)
        return qk[..., :H, :], qk[..., H:, :], v.reshape(K, n, -1, H, vs)

    def _activation(self, h: Floats) -> Floats:
        if self.config.activation == "relu2":
            return np.square(np.maximum(h, 0, out=h), out=h)
        inner = np.float32((2 / np.pi) ** 0.5) * (h + np.float32(0.044715) * h * h * h)
        gelu: Floats = np.float32(0.5) * h * (1 + np.tanh(inner))
        return gelu


def _attend(
    q: Floats, k: Floats, v: Floats, future: NDArray[np.bool_] | None, scale: np.float32
) -> Floats:
    """q (K, n, H, t, hs), k (K, n, H, end, hs), v (K, n, H, end, vs) -> (K, n, H, t, vs)."""
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


def _mean_prediction(logits: Floats) -> Floats:
    """(K, m, V) -> (m, V): the logarithms of the mean probabilities; of one member, its logits."""
    if len(logits) == 1:
        single: Floats = logits[0]
        return single
    logits = logits - logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    mean: Floats = np.logaddexp.reduce(logits, 0) - np.float32(np.log(len(logits)))
    return mean


def _stacked(config: ModelConfig, weights: Mapping[str, Floats]) -> dict[str, Floats]:
    """The weights by their names in a member, (K, ...): of all members together."""
    if config.ensemble == 1:
        return {name: weight[None] for name, weight in weights.items()}  # no copy
    prefixes = member_prefixes(config)
    names = [name.removeprefix(prefixes[0]) for name in weights if name.startswith(prefixes[0])]
    return {name: np.stack([weights[prefix + name] for prefix in prefixes]) for name in names}


def _centred(weight: Floats, axis: int) -> Floats:
    """The same, with mean zero along an axis."""
    centred: Floats = weight - weight.mean(axis, keepdims=True)
    return centred


class _Linear(NamedTuple):
    """x (K, m, in) -> x W + b."""

    weight: Floats  # (K, in, out)
    bias: Floats  # (K, 1, out)

    @classmethod
    def of(cls, weights: Mapping[str, Floats], name: str, norm: str | None = None) -> "_Linear":
        """The layer of that name, the scale and shift of the norm before it multiplied in."""
        weight = weights[f"{name}.weight"]
        bias = weights.get(f"{name}.bias", np.zeros(weight.shape[:2], np.float32))
        if norm is not None:
            bias = bias + (weight @ weights[f"{norm}.bias"][..., None])[..., 0]
            weight = weight * weights[f"{norm}.weight"][:, None]
        return cls(np.ascontiguousarray(weight.swapaxes(1, 2)), bias[:, None])

    def centred(self) -> "_Linear":
        """The same layer, but for an output of mean zero."""
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
    """The layer for `_heads`: centred for QK norm, the channels of a pair side by side."""
    H, hs = config.n_head, config.head_size

    def prepared(columns: Floats) -> Floats:
        qk, v = np.split(columns, [2 * H * hs], -1)
        if config.qk_norm:
            qk = _centred(qk.reshape(-1, 2 * H, hs), -1)
        if config.positions == "rotary" or config.key_offset:  # channels i and i + hs / 2
            qk = qk.reshape(-1, 2 * H, 2, hs // 2).swapaxes(-1, -2)
        return np.concatenate([qk.reshape(*v.shape[:-1], 2 * H * hs), v], -1)

    return _Linear(prepared(qkv.weight), prepared(qkv.bias))
