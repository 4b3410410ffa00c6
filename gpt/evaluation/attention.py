"""The attention weights of a model on a text, and what it predicts at each character of it.

H heads, T characters, V vocabulary size; layers and heads are counted from 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpt.errors import CheckpointError, UsageError
from gpt.model.attention import CausalSelfAttention
from gpt.model.transformer import GPT
from gpt.sampling.prompt import check_known
from gpt.text.batches import to_torch
from gpt.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Attention:
    """What a model computes on a text of T characters; float32, on the CPU.

    weights (n_layer, H, T, T): attention weights; row t is a query position, its entries sum to 1
    over the key positions 0 to t, and are 0 after t.
    probabilities (T, V): row t is the predicted distribution of the character after t.
    """

    weights: Tensor
    probabilities: Tensor


@torch.no_grad()
def attend(model: GPT, ids: Tensor) -> Attention:
    """The attention of the model, in evaluation mode, to ids (T,).

    The fused kernel never holds the weights, so each block's input is kept while the model runs,
    and put through the same attention step by step.

    Raises:
        ValueError: more than `model.config.T` ids.
    """
    inputs: list[Tensor] = []

    def keep(module: nn.Module, arguments: tuple[Tensor]) -> None:
        inputs.append(arguments[0])

    attentions = [part for part in model.modules() if isinstance(part, CausalSelfAttention)]
    hooks = [attention.register_forward_pre_hook(keep) for attention in attentions]
    training = model.training
    model.eval()
    try:
        logits = model(ids.to(next(model.parameters()).device)[None])[0]  # (T, V)
        weights = torch.cat(  # (n_layer, H, T, T)
            [attention.explicit(x)[1] for attention, x in zip(attentions, inputs, strict=True)]
        )
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return Attention(weights.float().cpu(), logits.float().softmax(-1).cpu())


def attend_text(model: GPT, vocabulary: Vocabulary, text: str) -> Attention:
    """The attention of the model to a text.

    Raises:
        UsageError: the text is empty, longer than the model's T, or has characters outside its
            vocabulary.
        CheckpointError: the model computes NaN or infinite numbers.
    """
    if not text:
        raise UsageError("the text: expected at least one character, got none")
    if len(text) > model.config.T:
        raise UsageError(
            f"the text: expected at most T = {model.config.T} characters, as many as the model "
            f"sees at once, got {len(text)}; cut it"
        )
    check_known(text, vocabulary)
    attention = attend(model, to_torch(vocabulary.encode(text)))
    if not (attention.weights.isfinite().all() and attention.probabilities.isfinite().all()):
        raise CheckpointError(
            "the model's logits are NaN or infinite; take another checkpoint "
            "(--checkpoint best or last)"
        )
    return attention
