"""Engine for CPUs: the forward pass of gpt/model/transformer.py, implemented in numpy.

It is faster than torch for single characters: in torch, small operations take most of their time
to start, and importing torch takes a second. Tests compare both; they differ only by rounding.

Shapes: K ensemble members (1 for a single model), B texts, H heads, C channels, V vocabulary size.
A query or key has `hs` channels, and a value `vs`. A call appends t characters to each of n texts.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt.config.schema import ModelConfig
from gpt.model.shapes import kept_pairs, member_prefixes, rotary_angles

Singles = NDArray[np.float32]
Indices = NDArray[np.int_]


FIRST_ROOM = 256  # initial capacity of the caches, in characters per text
SCORES_NUMBERS = 2**25  # largest number of attention scores in a pass of a prefill; limits memory


class NumpyEngine:
    """`Engine` in numpy: B texts of different lengths, with cached keys and values.

    The weights are prepared once, to save time at every character:
    - The scale and shift of a LayerNorm are merged into the linear layer after it.
    - Weights whose outputs add to the residual stream are centred. The stream then has mean zero,
      so LayerNorm need not subtract its mean.
    - The two channels of queries and keys that rotary positions rotate as a pair become adjacent,
      so that numpy can view them as one complex number.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Singles], B: int) -> None:
        T, hs = config.T, config.head_size
        self.config, self.T = config, T
        weights = _by_member(config, weights)
        tables = [weights["token_embedding.weight"]]
        tables += [weights[f"ngram_embeddings.{i}.weight"] for i in range(config.ngram - 1)]
        padding = tables[0].shape[1]  # V, the id at positions before a text; its embedding is 0
        with np.errstate(all="ignore"):  # no warnings: `Generator` rejects NaN and infinity
            padded = [np.pad(_centred(table), ((0, 0), (0, 1), (0, 0))) for table in tables]
            self.tables = np.stack(padded, 1)  # (K, ngram, V + 1, C)
            self.positions = None
            if config.positions == "learned":
                self.positions = _centred(weights["position_embedding.weight"])
            self.blocks = [_block(config, weights, f"blocks.{i}.") for i in range(config.n_layer)]
            self.head = _linear(weights, "head", norm="norm")
        if config.positions == "rotary":
            self.rotations = np.exp(1j * rotary_angles(T, hs)).astype(np.complex64)  # (T, hs / 2)
        self.lengths = np.zeros(B, int)
        room = min(T, FIRST_ROOM)  # characters; the caches grow with the texts
        self.ids = np.full((B, config.ngram - 1 + room), padding)
        caches = config.n_layer, config.ensemble, B, config.n_head
        # with `key_offset`, channels from `own` on are stored in the next character's key
        self.own = 2 * kept_pairs(hs) if config.key_offset else hs
        self.keys = np.zeros((*caches, room + config.key_offset, hs), np.float32)
        self.values = np.zeros((*caches, room, config.value_size), np.float32)

    def prefill(self, rows: list[int], texts: list[list[int]]) -> None:
        """Replace the texts in `rows` by `texts`, which are lists of at most T ids."""
        lengths = [len(text) for text in texts]
        self.lengths[rows] = 0
        if longest := max(lengths):
            self._make_room(longest)
            padded = np.array([text + [0] * (longest - len(text)) for text in texts])
            heads = self.config.ensemble * self.config.n_head
            step = max(SCORES_NUMBERS // (len(rows) * heads * longest), 1)
            for start in range(0, longest, step):
                self._forward(np.array(rows), padded[:, start : start + step], want_logits=False)
                self.lengths[rows] = min(start + step, longest)
            self.lengths[rows] = lengths  # without the padding

    def decode(self, ids: list[int]) -> Singles:
        """Append one id to each text; return the logits (B, V) of the next ids."""
        self._make_room(int(self.lengths.max()) + 1)
        logits = self._forward(np.arange(len(ids)), np.array(ids)[:, None])
        self.lengths += 1
        return logits

    def select(self, rows: list[int]) -> None:
        """Keep only the texts with the indices `rows`, in this order; a row may be repeated."""
        self.lengths, self.ids = self.lengths[rows], self.ids[rows]
        self.keys, self.values = np.take(self.keys, rows, 2), np.take(self.values, rows, 2)

    def _make_room(self, length: int) -> None:
        """Grow the caches, if needed, to hold at least `length` characters per text."""
        room = self.values.shape[-2]
        if length > room:
            added = (0, min(self.T, max(length, 2 * room)) - room)
            self.ids = np.pad(self.ids, ((0, 0), added))
            widths = ((0, 0), (0, 0), (0, 0), (0, 0), added, (0, 0))
            self.keys, self.values = np.pad(self.keys, widths), np.pad(self.values, widths)

    @np.errstate(all="ignore")
    def _forward(self, rows: Indices, ids: Indices, want_logits: bool = True) -> Singles:
        """Append `ids` (n, t) to the texts in `rows`; return logits (n * t, V).

        If `want_logits` is false, return an empty array. The caller updates `lengths`.
        """
        n, t = ids.shape
        config, lengths = self.config, self.lengths[rows]
        positions = lengths[:, None] + np.arange(t)  # (n, t)
        end, even = int(lengths.max()) + t, bool((lengths == lengths[0]).all())
        rotations = self.rotations[positions][:, :, None] if config.positions == "rotary" else None
        future = None
        if t > 1 or not even:
            future = np.arange(end) > positions[:, None, :, None]  # (n, 1, t, end)
        consecutive = slice(rows[0], rows[0] + n)  # indexing by a slice does not copy
        chosen = consecutive if rows.tolist() == list(range(rows[0], rows[0] + n)) else rows

        def append(cache: Singles, new: Singles, shift: int = 0) -> None:
            """Write `new` keys or values into `cache` at `positions` + `shift`."""
            if even:
                cache[:, chosen, :, end - t + shift : end + shift] = new.swapaxes(2, 3)
            else:  # numpy puts the two indexed dimensions first: (n, t, K, H, size)
                cache[:, rows[:, None], :, positions + shift] = np.moveaxis(new, 0, 2)

        scale = np.float32(config.attention_scale * config.head_size**-0.5)
        x = self._embed(rows, ids, positions)  # (K, n t, C)
        for block, keys, values in zip(self.blocks, self.keys, self.values, strict=True):
            qkv, projection, expand, contract = block
            q, k, v = self._heads(qkv(_normalize(x)), n, rotations)
            append(values, v)
            append(keys[..., : self.own], k[..., : self.own])
            if config.key_offset:
                append(keys[..., self.own :], k[..., self.own :], shift=1)
            if block is self.blocks[-1] and not want_logits:
                return np.empty((0, 0), np.float32)
            k, v = keys[:, chosen, :, :end], values[:, chosen, :, :end]  # (K, n, H, end, size)
            y = _attend(q.swapaxes(2, 3), k, v, future, scale)  # (K, n, H, t, vs)
            x += projection(y.swapaxes(2, 3).reshape(*x.shape[:2], -1))
            x += contract(_activate(expand(_normalize(x)), config.activation))
        return _mean_prediction(self.head(_normalize(x)))

    def _embed(self, rows: Indices, ids: Indices, positions: Indices) -> Singles:
        """Write `ids` (n, t) into `self.ids` at `positions`; return embeddings (K, n * t, C)."""
        back = np.arange(self.config.ngram)
        columns = self.config.ngram - 1 + positions  # the first columns of `self.ids` are padding
        self.ids[rows[:, None], columns] = ids
        ngrams = self.ids[rows[:, None, None], columns[..., None] - back]  # (n, t, ngram)
        x: Singles = self.tables[:, back, ngrams].sum(-2)  # (K, n, t, ngram, C) -> (K, n, t, C)
        if self.positions is not None:
            x += self.positions[:, positions]
        return x.reshape(len(x), ids.size, -1)

    def _heads(
        self,
        qkv: Singles,  # (K, n * t, H * (2 hs + vs))
        n: int,  # number of texts
        rotations: NDArray[np.complex64] | None,  # (n, t, 1, hs / 2)
    ) -> tuple[Singles, Singles, Singles]:
        """Return rotated queries and keys, (K, n, t, H, hs) each, and values (K, n, t, H, vs)."""
        H, hs, vs = self.config.n_head, self.config.head_size, self.config.value_size
        K = len(qkv)
        qk, v = qkv[..., : 2 * H * hs].reshape(K, n, -1, 2 * H, hs), qkv[..., 2 * H * hs :]
        if self.config.qk_norm:
            qk = _normalize(qk)
        if rotations is not None:
            qk = (qk.view(np.complex64) * rotations).view(np.float32)
        return qk[..., :H, :], qk[..., H:, :], v.reshape(K, n, -1, H, vs)


def _activate(h: Singles, activation: str) -> Singles:
    if activation == "relu2":
        return np.square(np.maximum(h, 0, out=h), out=h)
    inner = np.float32((2 / np.pi) ** 0.5) * (h + np.float32(0.044715) * h * h * h)
    return np.float32(0.5) * h * (1 + np.tanh(inner))


def _attend(
    q: Singles,  # (K, n, H, t, hs)
    k: Singles,  # (K, n, H, end, hs), keys of positions 0 to end - 1
    v: Singles,  # (K, n, H, end, vs)
    future: NDArray[np.bool_] | None,  # (n, 1, t, end), True for the keys that a query must ignore
    scale: np.float32,  # factor of the scores
) -> Singles:
    """Return the outputs (K, n, H, t, vs) of attention."""
    scores = (q * scale) @ k.swapaxes(-1, -2)
    if future is not None:
        scores = np.where(future, np.float32(-np.inf), scores)
    scores -= np.maximum.reduce(scores, -1, keepdims=True)
    weights = np.exp(scores, out=scores)
    y: Singles = weights @ v
    y /= np.add.reduce(weights, -1, keepdims=True)  # cheaper than dividing the weights
    return y


def _normalize(x: Singles) -> Singles:
    """Apply LayerNorm (arXiv:1607.06450) over the last dimension of x, which must have mean 0."""
    variance = np.vecdot(x, x)[..., None] / np.float32(x.shape[-1])
    return x / np.sqrt(variance + np.float32(1e-5))


def _mean_prediction(logits: Singles) -> Singles:
    """Average the probabilities that K members predict; return their logarithms (rows, V).

    `logits` are (K, rows, V). If K is 1, return the logits of the only model unchanged.
    """
    if len(logits) > 1:
        logits = logits - logits.max(-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        logits = np.logaddexp.reduce(logits, 0)[None] - np.float32(np.log(len(logits)))
    return logits[0]


class _Linear(NamedTuple):
    """Linear layer of K ensemble members: x (K, rows, in) -> x W + b (K, rows, out)."""

    weight: Singles  # (K, in, out)
    bias: Singles  # (K, 1, out)

    def __call__(self, x: Singles) -> Singles:
        out: Singles = x @ self.weight
        out += self.bias
        return out


def _by_member(config: ModelConfig, weights: Mapping[str, Singles]) -> dict[str, Singles]:
    """Return the weights of K ensemble members, stacked as (K, ...), by parameter name."""
    if config.ensemble == 1:
        return {name: weight[None] for name, weight in weights.items()}  # no copy
    prefixes = member_prefixes(config)
    names = [name.removeprefix(prefixes[0]) for name in weights if name.startswith(prefixes[0])]
    return {name: np.stack([weights[prefix + name] for prefix in prefixes]) for name in names}


def _centred(weight: Singles) -> Singles:
    """Return `weight` minus its mean over the last dimension."""
    return weight - weight.mean(-1, keepdims=True)


def _linear(weights: Mapping[str, Singles], name: str, norm: str | None = None) -> _Linear:
    """Return the linear layer `name`, merged with the preceding LayerNorm `norm` if given."""
    weight = weights[f"{name}.weight"]
    bias = weights.get(f"{name}.bias", np.zeros(weight.shape[:2], np.float32))
    if norm is not None:
        bias = bias + (weight @ weights[f"{norm}.bias"][..., None])[..., 0]
        weight = weight * weights[f"{norm}.weight"][:, None]
    return _Linear(np.ascontiguousarray(weight.swapaxes(1, 2)), bias[:, None])


def _block(config: ModelConfig, weights: Mapping[str, Singles], prefix: str) -> list[_Linear]:
    """Return the four linear layers of a block: qkv, projection, expand, contract."""
    H, hs = config.n_head, config.head_size

    def prepared(qkv: Singles) -> Singles:
        """Reorder the channels of queries and keys, so that those rotated as a pair are adjacent.

        With `qk_norm`, also centre the channels of each head: `_normalize` expects a mean of 0.
        """
        qk, v = np.split(qkv, [2 * H * hs], -1)
        if config.qk_norm:
            qk = _centred(qk.reshape(-1, 2 * H, hs))
        if config.positions == "rotary" or config.key_offset:  # a pair is channels i and i + hs / 2
            qk = qk.reshape(-1, 2 * H, 2, hs // 2).swapaxes(-1, -2)
        return np.concatenate([qk.reshape(*v.shape[:-1], 2 * H * hs), v], -1)

    qkv = _linear(weights, f"{prefix}attention.qkv", f"{prefix}attention_norm")
    projection = _linear(weights, f"{prefix}attention.projection")
    expand = _linear(weights, f"{prefix}mlp.expand", f"{prefix}mlp_norm")
    contract = _linear(weights, f"{prefix}mlp.projection")
    return [
        _Linear(*map(prepared, qkv)),
        _Linear(*map(_centred, projection)),  # the mean of the residual stream must stay zero
        expand,
        _Linear(*map(_centred, contract)),
    ]
