"""Where each head looks, and what the model expects next: the figures behind the pictures.

H heads, T characters, V vocabulary size; layers and heads are counted from 0 here, and shown
from 1.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.errors import UsageError
from gpt.model.attention import CausalSelfAttention
from gpt.model.transformer import GPT
from gpt.sampling.generator import check_known
from gpt.text.batches import to_torch
from gpt.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Attention:
    """What a model does with a text of T characters; float32, on the CPU.

    weights (n_layer, H, T, T): row t says how much each character gives to character t.
    probabilities (T, V): row t says how likely each character is to follow character t.
    """

    weights: Tensor
    probabilities: Tensor


@torch.no_grad()
def attend(model: GPT, ids: Tensor) -> Attention:
    """The attention of the model, as it runs in production, to ids (T,).

    The fused kernel never holds the weights, so each block's input is kept while the model runs,
    and put through the same attention step by step.
    """
    inputs: list[Tensor] = []

    def keep(module: nn.Module, arguments: tuple[Tensor]) -> None:
        inputs.append(arguments[0])

    attentions = [part for part in model.modules() if isinstance(part, CausalSelfAttention)]
    hooks = [attention.register_forward_pre_hook(keep) for attention in attentions]
    model.eval()
    try:
        logits = model(ids.to(next(model.parameters()).device)[None])[0]  # (T, V)
    finally:
        for hook in hooks:
            hook.remove()
    weights = torch.cat(  # (n_layer, H, T, T)
        [attention.explicit(x)[1] for attention, x in zip(attentions, inputs, strict=True)]
    )
    return Attention(weights.float().cpu(), logits.float().softmax(-1).cpu())


def attend_text(model: GPT, vocabulary: Vocabulary, text: str) -> Attention:
    """The attention of the model to a text.

    Raises:
        UsageError: the text is longer than the model's T, or has characters that the model has
            never seen.
    """
    if len(text) > model.config.T:
        raise UsageError(
            f"the text: expected at most T = {model.config.T} characters, as many as the model "
            f"sees at once, got {len(text)}; cut it"
        )
    check_known(text, vocabulary)
    return attend(model, to_torch(vocabulary.encode(text)))


def tile(weights: Tensor, scale: int = 4) -> Tensor:
    """(n_layer, H, T, T) -> one picture (height, width) in 0..255: layers down, heads across.

    Black is a weight of 1 and white 0; the square root between them, so that small shares show.
    """
    n_layer, H, T, _ = weights.shape
    maps = F.pad(1 - weights.sqrt(), (0, 1, 0, 1), value=0.5)  # a grey line between maps
    maps = maps.permute(0, 2, 1, 3).reshape(n_layer * (T + 1), H * (T + 1))
    maps = maps.repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    return (255 * maps).round().to(torch.uint8)
