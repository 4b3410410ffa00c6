"""The attention weights of a model on a text, and the residual streams that they act on.

Shapes use n_layer layers, H heads, T characters, vocabulary size V and C channels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.errors import CheckpointError, UsageError
from gpt.memory import check_memory
from gpt.model.transformer import GPT, Block
from gpt.text.batches import to_torch
from gpt.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Attention:
    """Attention weights and predictions for one text.

    Row t of the weights belongs to query position t. Its weights on key positions 0 to t sum to 1,
    and its weights on later positions are 0.
    """

    weights: Tensor  # (n_layer, H, T, T)
    probabilities: Tensor  # (T, V): row t has the predicted probabilities of character t + 1


def attend_text(model: GPT, vocabulary: Vocabulary, text: str) -> Attention:
    """Compute the attention weights and predictions of `model` for `text`, a prepared prompt.

    Raises:
        UsageError: `text` is empty or too long.
        CheckpointError: the model computes NaN or infinite numbers.
        OutOfMemory: the weights would not fit into memory.
    """
    ids = to_torch(vocabulary.encode(text))
    config, T = model.config, len(ids)
    if not 0 < T <= config.T:
        raise UsageError(
            f"the text: expected 1 to model.T = {config.T} {vocabulary.unit}s, got {T}"
        )
    layer = 4 * config.n_head * T * T  # bytes of one layer's attention weights
    logits = 16 * len(vocabulary) * T
    parts = {
        "attention weights": layer * (3 * config.n_layer + 4),
        "activations": 4 * config.C * T * (config.n_layer + config.n_head + 14) + logits,
    }
    check_memory(f"the attention of {T:,} characters", parts, "use a shorter text")
    attention = attend(model, ids)
    if not (attention.weights.isfinite().all() and attention.probabilities.isfinite().all()):
        raise CheckpointError(
            "the model's logits are NaN or infinite; load another checkpoint of the run (best, "
            "last or a step)"
        )
    return attention


@torch.no_grad()
def attend(model: GPT, ids: Tensor) -> Attention:
    """Compute the attention weights and predictions of `model` for `ids` (T,).

    `model` is set to evaluation mode. The fused attention kernel returns no weights, so they are
    computed from each block's input in a second pass.
    """
    model.eval()
    logits, streams = run_with_streams(model, ids)
    layers = [
        block.attention.explicit(block.attention_norm(x))[1]  # (1, H, T, T)
        for block, x in zip(blocks_of(model), streams[:-1], strict=True)
    ]
    probabilities = logits[0].float().softmax(-1)
    return Attention(torch.cat(layers).float().cpu(), probabilities.cpu())


def run_with_streams(model: GPT, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return for `ids` (T,): logits (1, T, V), each block's input and the last output (1, T, C)."""
    streams = [model.embed(ids.to(model.head.weight.device)[None])]
    for block in blocks_of(model):
        streams.append(block(streams[-1]))
    return model.head(model.norm(streams[-1])), streams


def blocks_of(model: GPT) -> list[Block]:
    """Return the blocks of `model` in order."""
    return [block for block in model.blocks if isinstance(block, Block)]
