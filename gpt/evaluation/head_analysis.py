"""The attention weights of a model on a text, and the effect of each attention head.

Shapes use n_layer layers, H heads, T characters, V distinct characters and C channels. Layers and
heads are counted from 0. All results are float32 tensors on the CPU. Losses are in nats per
character.
"""

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from gpt.model.attention_maps import Attention, attend, attend_text, blocks_of, run_with_streams
from gpt.model.transformer import GPT, cross_entropy
from gpt.seeds import random_stream
from gpt.text.batches import to_torch
from gpt.text.vocabulary import Vocabulary

MAX_REPEATED_CHARACTERS = 32  # largest length of a sequence that `induction_score` repeats
SEQUENCES = 4  # number of random sequences over which `induction_score` averages


@dataclass(frozen=True)
class AttentionAnalysis(Attention):
    """Attention to one text, and scores and losses that show the effect of each head."""

    previous: Tensor  # (n_layer, H), from `previous_character_score`
    induction: Tensor  # (n_layer, H), from `induction_score`
    losses: Tensor  # (T - 1,) loss of each character but the first
    losses_without: Tensor  # (n_layer, H, T - 1) `losses` with one head ablated

    @property
    def removal_costs(self) -> Tensor:
        """Increase of the mean loss if one head is ablated, (n_layer, H); NaN if T is 1."""
        return (self.losses_without - self.losses).mean(-1)

    def costliest_head(self, layer: int | None = None, head: int | None = None) -> tuple[int, int]:
        """Return the (layer, head) whose ablation increases the mean loss most.

        If `layer` or `head` is given, consider only heads in this layer or with this number.
        """
        costs = self.removal_costs.nan_to_num()
        layers = range(costs.shape[0]) if layer is None else [layer]
        heads = range(costs.shape[1]) if head is None else [head]
        return max(product(layers, heads), key=lambda place: costs[place].item())


@torch.no_grad()
def analyze_text(model: GPT, vocabulary: Vocabulary, text: str) -> AttentionAnalysis:
    """Compute the attention, scores and ablation losses of all heads of `model` on `text`."""
    attention = attend_text(model, vocabulary, text)
    ids = to_torch(vocabulary.encode(text))
    logits, _ = run_with_streams(model, ids)
    targets = ids[None, 1:].to(logits.device)
    return AttentionAnalysis(
        attention.weights,
        attention.probabilities,
        previous=previous_character_score(attention.weights),
        induction=induction_score(model),
        losses=cross_entropy(logits[:, :-1], targets, reduction="none").cpu(),
        losses_without=losses_without_heads(model, ids),
    )


def previous_character_score(weights: Tensor) -> Tensor:
    """Return the mean attention to the previous character, shape (...); NaN if T is 1.

    `weights` are (..., T, T). An induction head uses a head of an earlier layer that has a high
    score: after [A][B] ... [A], the two heads together predict [B] (arXiv:2209.11895).
    """
    return weights.diagonal(-1, -2, -1).mean(-1)


def prefix_matching_score(weights: Tensor) -> Tensor:
    """Return the mean attention from a repeated character to the successor of its first occurrence.

    `weights` (..., 2 n, 2 n) are for a text of n distinct characters, written twice. The result,
    of shape (...), is the mean weight of query n + i on key i + 1, for i from 0 to n - 1.
    """
    n = weights.shape[-1] // 2
    return weights[..., n:, :].diagonal(1, -2, -1)[..., :n].mean(-1)


def induction_score(model: GPT) -> Tensor:
    """Return the prefix matching score of each head, (n_layer, H); near 1 for an induction head.

    The score is a mean over SEQUENCES sequences of distinct random characters, each written twice.
    The sequences depend only on the model's T and V. The score is NaN if `model.config.T` is 1.
    """
    config, V = model.config, model.head.out_features
    n = min(MAX_REPEATED_CHARACTERS, config.T // 2, V)
    if not n:
        return torch.full((config.n_layer, config.n_head), torch.nan)
    scores = []
    for i in range(SEQUENCES):
        once = torch.from_numpy(random_stream(0, "induction", i).permutation(V)[:n])
        scores.append(prefix_matching_score(attend(model, once.repeat(2)).weights))
    return torch.stack(scores).mean(0)


@torch.no_grad()
def losses_without_heads(model: GPT, ids: Tensor) -> Tensor:
    """Return the losses (n_layer, H, T - 1) on `ids` (T,) with one head ablated (arXiv:1905.10650).

    Element (l, h, t) is the loss of character t + 1 with head h of layer l ablated.
    """
    _, streams = run_with_streams(model, ids)
    blocks, losses = blocks_of(model), []
    targets = ids[None, 1:].to(streams[0].device)
    for layer, block in enumerate(blocks):
        y, _ = block.attention.weigh(*block.attention.heads(block.attention_norm(streams[layer])))
        for head in range(model.config.n_head):
            without = y.index_fill(1, torch.tensor(head, device=y.device), 0)  # (1, H, T, vs)
            x = streams[layer] + block.attention.join(without)  # (1, T, C)
            x = x + block.mlp(block.mlp_norm(x))
            for later in blocks[layer + 1 :]:
                x = later(x)
            logits = model.head(model.norm(x[:, :-1]))
            losses.append(cross_entropy(logits, targets, reduction="none").cpu())
    return torch.stack(losses).view(len(blocks), model.config.n_head, len(ids) - 1)
