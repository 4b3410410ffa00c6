"""Character-level GPT for transformers. `gpt export --to huggingface` writes this file.

README.md shows how to load the model. The model is a GPT-2 with more options: see
CharacterGPTConfig. An ensemble has several members, whose probabilities are averaged.

Shapes: B texts, T ids of a text so far, the last t of them not cached yet, C channels, H heads,
V vocabulary size. A query or key has `hs` channels (`head_size`), a value `vs` (`value_size`).
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

ABSENT = -1  # id of padding, and of positions before a text; its embedding is zero


class CharacterGPTConfig(PretrainedConfig):
    """Settings of the model; each comment gives the name in `gpt`, or the meaning."""

    model_type = "character_gpt"

    vocab_size: int = 2
    max_position_embeddings: int = 64  # T
    hidden_size: int = 128  # C
    num_hidden_layers: int = 5  # layers of the cache: 1 for the ids, n_layer for each member
    num_attention_heads: int = 4  # n_head
    n_layer: int = 4  # number of blocks of each member
    ensemble: int = 1  # number of members
    head_size: int = 32
    value_size: int = 32
    positions: str = "rotary"  # or "learned"
    qk_norm: bool = True  # normalise queries and keys
    attention_scale: float = 1.0
    key_offset: bool = False  # take half of a key's channels from the previous key
    qkv_bias: bool = False
    ngram: int = 1  # number of ids whose embeddings are summed, each from its own table
    activation: str = "relu2"  # or "gelu"


class Texts(NamedTuple):
    """The texts of a forward pass. All but their last t ids are cached."""

    ids: Tensor  # (B, T)
    positions: Tensor  # (B, t): positions of the last t ids, not counting padding
    mask: Tensor  # (B, 1, t, T): True for the keys that a query attends to


class CharacterGPTBlock(nn.Module):
    """Attention, then an MLP. Each reads the normalised residual stream and adds to the stream."""

    def __init__(self, config: CharacterGPTConfig, cache_layer: int) -> None:
        super().__init__()
        self.config, self.cache_layer = config, cache_layer
        C, H = config.hidden_size, config.num_attention_heads
        self.sizes = [H * config.head_size, H * config.head_size, H * config.value_size]
        self.attention_norm = nn.LayerNorm(C)
        self.attention = nn.ModuleDict(
            {
                "qkv": nn.Linear(C, sum(self.sizes), bias=config.qkv_bias),
                "projection": nn.Linear(self.sizes[2], C),
            }
        )
        self.mlp_norm = nn.LayerNorm(C)
        self.mlp = nn.ModuleDict({"expand": nn.Linear(C, 4 * C), "projection": nn.Linear(4 * C, C)})

    def forward(self, x: Tensor, texts: Texts, cache: DynamicCache | None) -> Tensor:
        """Map the residual stream (B, t, C) of the last t ids to (B, t, C)."""
        x = x + self.attend(self.attention_norm(x), texts, cache)
        h = self.mlp["expand"](self.mlp_norm(x))  # (B, t, 4 C)
        h = F.gelu(h, approximate="tanh") if self.config.activation == "gelu" else h.relu().square()
        return x + self.mlp["projection"](h)

    def attend(self, x: Tensor, texts: Texts, cache: DynamicCache | None) -> Tensor:
        """Return the output (B, t, C) of attention to all ids of the texts so far."""
        config, (B, t, _) = self.config, x.shape
        parts = self.attention["qkv"](x).split(self.sizes, dim=-1)
        q, k, v = (y.view(B, t, config.num_attention_heads, -1).transpose(1, 2) for y in parts)
        if config.qk_norm:
            q, k = (F.layer_norm(y, y.shape[-1:]) for y in (q, k))  # (B, H, t, hs)
        if config.positions == "rotary":
            q, k = (rotated(y, texts.positions) for y in (q, k))
        if cache is not None:
            k, v = cache.update(k, v, self.cache_layer)  # (B, H, T, hs or vs)
        if config.key_offset:
            k = with_offset(k, texts.ids)
        scale = config.attention_scale * config.head_size**-0.5
        y = F.scaled_dot_product_attention(q, k, v, texts.mask, scale=scale)  # (B, H, t, vs)
        return self.attention["projection"](y.transpose(1, 2).flatten(2))


class CharacterGPTMember(nn.Module):
    """Transformer that maps ids to logits."""

    def __init__(self, config: CharacterGPTConfig, member: int) -> None:
        super().__init__()
        V, C = config.vocab_size, config.hidden_size
        self.token_embedding = nn.Embedding(V, C)
        self.ngram_embeddings = nn.ModuleList(nn.Embedding(V, C) for _ in range(config.ngram - 1))
        self.position_embedding = None
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.max_position_embeddings, C)
        first = 1 + member * config.n_layer  # layer 0 of the cache stores the ids
        self.blocks = nn.ModuleList(
            CharacterGPTBlock(config, first + i) for i in range(config.n_layer)
        )
        self.norm = nn.LayerNorm(C)
        self.head = nn.Linear(C, V, bias=False)

    def forward(self, texts: Texts, cache: DynamicCache | None, count: int) -> Tensor:
        """Return the logits (B, count, V) of the last `count` ids; (B, t, V) if `count` is 0."""
        t = texts.positions.shape[1]
        x: Tensor = 0
        for distance, table in enumerate([self.token_embedding, *self.ngram_embeddings]):
            earlier = F.pad(texts.ids, (distance, 0), value=ABSENT)[:, : texts.ids.shape[1]][:, -t:]
            x = x + table(earlier.clamp(min=0)).masked_fill((earlier == ABSENT)[..., None], 0)
        if self.position_embedding is not None:
            x = x + self.position_embedding(texts.positions)
        for block in self.blocks:
            x = block(x, texts, cache)
        return self.head(self.norm(x[:, -count:]))


class CharacterGPTForCausalLM(PreTrainedModel, GenerationMixin):
    """The model with the interface of transformers.

    Texts of one batch may be padded on the left, if `attention_mask` is 0 there.
    """

    config_class = CharacterGPTConfig

    def __init__(self, config: CharacterGPTConfig) -> None:
        super().__init__(config)
        self.members = nn.ModuleList(CharacterGPTMember(config, m) for m in range(config.ensemble))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Predict the next id after each of `input_ids`.

        Args:
            input_ids: (B, t), the last ids of each text, which are not cached yet.
            attention_mask: 1 for ids, 0 for padding; only the last t columns are used.
            past_key_values: cache of the earlier ids; `input_ids` are appended to it.
            labels: (B, logits_to_keep or t) ids to compute the loss of, usually `input_ids`. The
                logits at index i predict the label at index i + 1. Labels of -100 are ignored.
            use_cache: whether to create a cache if `past_key_values` is None.
            logits_to_keep: number of last ids whose logits to return; 0 for all t ids.
            kwargs: options of the loss, such as `num_items_in_batch`; all others are ignored.

        Returns:
            Loss, cache and logits (B, logits_to_keep or t, V). The logits of an ensemble are the
            logarithms of its mean probabilities.
        """
        if past_key_values is None and use_cache:
            past_key_values = DynamicCache()
        t = input_ids.shape[1]
        ids = input_ids.masked_fill(input_ids >= self.config.vocab_size, ABSENT)  # padding
        if attention_mask is not None:
            ids = ids.masked_fill(attention_mask[:, -t:] == 0, ABSENT)
        if past_key_values is not None:
            ids = past_key_values.update(ids[:, None, :, None], ids[:, None, :, None], 0)[0]
            ids = ids[:, 0, :, 0]  # (B, T)
        if ids.shape[1] > (longest := self.config.max_position_embeddings):
            raise ValueError(
                f"expected at most {longest} ids, the context length, got {ids.shape[1]}"
            )
        texts = as_texts(ids, t)
        logits = [member(texts, past_key_values, logits_to_keep) for member in self.members]
        mean = logits[0]
        if len(logits) > 1:
            mean = torch.stack([each.float().log_softmax(-1) for each in logits]).logsumexp(0)
            mean = mean - math.log(len(logits))
        loss = None
        if labels is not None:
            loss = self.loss_function(mean, labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=mean, past_key_values=past_key_values)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, past_key_values: DynamicCache | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Select the ids to pass to `forward`, from the whole texts `input_ids` (B, n).

        As in `gpt sample`, texts that exceed the context of T ids are cut to their last T / 2 ids,
        and then grow to T ids again.
        """
        T, n = self.config.max_position_embeddings, input_ids.shape[1]
        half = max(T // 2, 1)
        kept = n if n <= T else half + (n - T - 1) % (T + 1 - half)
        if past_key_values is not None:
            cached = past_key_values.get_seq_length()
            if cached == kept - 1:
                kept = 1
            else:
                past_key_values.crop(-cached)  # empty the cache
        return {"input_ids": input_ids[:, -kept:], "past_key_values": past_key_values, **kwargs}


def as_texts(ids: Tensor, t: int) -> Texts:
    """Return the texts `ids` (B, T) with the positions and the mask of their last `t` ids."""
    present = ids != ABSENT
    positions = (present.cumsum(1) - 1).clamp(min=0)[:, -t:]
    key = torch.arange(ids.shape[1], device=ids.device)
    query = key[-t:, None]
    # padding attends to itself, because the softmax over no key is NaN
    mask = (key < query) & present[:, None, None] | (key == query)
    return Texts(ids, positions, mask)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate queries or keys x (B, H, t, hs) by angles that are proportional to their positions.

    Channels i and i + hs / 2 are a pair (RoFormer, arXiv:2104.09864).
    """
    a, b = x.chunk(2, dim=-1)  # (B, H, t, hs / 2)
    half = a.shape[-1]
    frequencies = 10000.0 ** -(torch.arange(half, device=x.device) / half)
    angles = positions[:, None, :, None] * frequencies  # (B, 1, t, hs / 2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def with_offset(k: Tensor, ids: Tensor) -> Tensor:
    """Replace half of the channels of keys (B, H, T, hs) by those of the previous key.

    The replaced channels are those that rotary positions rotate least; in the first key of a text,
    they become zeros. A query that looks for `e` then finds the character after an `e`.
    """
    pairs = k.unflatten(-1, (2, -1))  # (B, H, T, 2, hs / 2)
    kept = k.shape[-1] // 4  # half of the hs / 2 pairs, rounded down
    offset = pairs[..., kept:].masked_fill((ids == ABSENT)[:, None, :, None, None], 0)
    offset = F.pad(offset, (0, 0, 0, 0, 1, 0))[:, :, :-1]
    return torch.cat([pairs[..., :kept], offset], dim=-1).flatten(-2)
