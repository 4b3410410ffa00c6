"""The attention weights of a model on a text, and its prediction at each character.

Shapes use n_layer layers, H heads, T characters, V distinct characters and C channels. Layers and
heads are counted from 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.errors import CheckpointError, UsageError
from gpt.memory import check_memory
from gpt.model.transformer import GPT, Block
from gpt.sampling.prompt import check_known
from gpt.text.batches import to_torch
from gpt.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Attention:
    """Attention weights and predictions for one text; float32 tensors on the CPU.

    Row t of the weights belongs to query position t. Its weights on key positions 0 to t sum to 1,
    and its weights on later positions are 0.
    """

    weights: Tensor  # (n_layer, H, T, T)
    probabilities: Tensor  # (T, V): row t has the predicted probabilities of character t + 1


@torch.no_grad()
def attend(model: GPT, ids: Tensor) -> Attention:
    """Compute the attention weights and predictions of `model` for `ids` (T,).

    The fused attention kernel returns no weights, so they are computed again from the input of each
    block.
    """
    training = model.training
    model.eval()
    try:
        logits, streams = run_with_streams(model, ids)
        layers = [
            block.attention.explicit(block.attention_norm(x))[1]  # (1, H, T, T)
            for block, x in zip(blocks_of(model), streams[:-1], strict=True)
        ]
    finally:
        model.train(training)
    probabilities = logits[0].float().softmax(-1)
    return Attention(torch.cat(layers).float().cpu(), probabilities.cpu())


def run_with_streams(model: GPT, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the logits (1, T, V) for `ids` (T,), and n_layer + 1 residual streams (1, T, C)."""
    streams: list[Tensor] = []
    hidden = model.hidden(ids.to(next(model.parameters()).device)[None], streams=streams)
    return model.head(hidden), streams


def blocks_of(model: GPT) -> list[Block]:
    """Return the blocks of `model` in order."""
    return [block for block in model.blocks if isinstance(block, Block)]


def attend_text(model: GPT, vocabulary: Vocabulary, text: str) -> Attention:
    """Compute the attention weights and predictions of `model` for `text`.

    Raises:
        UsageError: `text` is empty, too long, or has characters outside `vocabulary`.
        CheckpointError: the model computes NaN or infinite numbers.
        OutOfMemory: the weights would not fit into memory.
    """
    if not text:
        raise UsageError("the text: expected at least one character, got none")
    check_known(text, vocabulary)
    ids = to_torch(vocabulary.encode(text))
    if len(ids) > model.config.T:
        raise UsageError(
            f"the text: expected at most model.attention_window = {model.config.T} "
            f"{vocabulary.unit}s, which attention sees at once, got {len(ids)}; cut it"
        )
    config, T = model.config, len(ids)
    layer = 4 * config.n_head * T * T  # bytes of one layer's weights
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
