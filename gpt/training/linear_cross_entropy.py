"""The head and the cross entropy in one operation, for large vocabularies.

Shapes use N for the number of characters, C for channels and V for the vocabulary size.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpt.distributed import SINGLE, Ranks
from gpt.model.transformer import LARGE_VOCABULARY

LOGITS_AT_ONCE = 2**21  # logits in memory at a time; 8 MB of float32 fit into the cache
ACCELERATOR_LOGITS_AT_ONCE = 2**24  # as LOGITS_AT_ONCE; fewer would not keep a GPU busy


def fuses_head(V: int, ranks: Ranks = SINGLE) -> bool:
    """Return whether training uses `linear_cross_entropy`, for a vocabulary of `V` ids.

    This is impossible with DDP, which wraps the whole forward pass.
    """
    return V >= LARGE_VOCABULARY and ranks.size == 1


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """Return cross_entropy(x @ weight.T, targets, reduction="sum"), storing no (N, V) logits.

    Logits, loss and gradients are computed for a few rows of `x` at a time (Liger Kernel,
    arXiv:2410.10989, section 3.2). On a CPU, this is faster, because these logits fit into the
    cache. On an accelerator, it saves memory.

    Args:
        x: the input of the head, (N, C).
        weight: the weight of the head, (V, C).
        targets: the ids to predict, (N,).
        dtype: dtype of the matrix products; everything else is float32.
    """
    loss: Tensor = LinearCrossEntropy.apply(x, weight, targets, dtype)  # type: ignore[no-untyped-call]
    return loss


def logits_at_once(device: torch.device) -> int:
    """Return how many logits `linear_cross_entropy` computes at a time on `device`."""
    return LOGITS_AT_ONCE if device.type == "cpu" else ACCELERATOR_LOGITS_AT_ONCE


class LinearCrossEntropy(torch.autograd.Function):
    """Autograd function of `linear_cross_entropy`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the loss, a scalar, and save the gradients of `x` and `weight` in `ctx`."""
        (N, C), V = x.shape, len(weight)
        rows = min(N, max(1, logits_at_once(x.device) // V))
        weight_in_dtype, total = weight.to(dtype), x.new_zeros((), dtype=torch.float32)
        x_gradient, weight_gradient = torch.empty_like(x), torch.zeros_like(weight)
        # memory for all chunks: the system would first fill new memory with zeros, which takes time
        all_logits, product = x.new_empty(rows, V, dtype=dtype), x.new_empty(V, C, dtype=dtype)
        all_probs = all_logits.float()  # the same tensor if `dtype` is float32
        for start in range(0, N, rows):
            chunk = slice(start, start + rows)
            x_chunk, target = x[chunk].to(dtype), targets[chunk, None]  # (rows, C), (rows, 1)
            logits, probs = (t[: len(x_chunk)] for t in (all_logits, all_probs))  # (rows, V)
            torch.mm(x_chunk, weight_in_dtype.T, out=logits)
            probs.copy_(logits)
            below_max = probs.amax(-1, keepdim=True) - probs.gather(-1, target)
            torch.softmax(probs, -1, out=probs)
            # -log of the target's probability, but finite if the probability is rounded to 0
            total += (below_max - probs.amax(-1, keepdim=True).log()).sum()
            # the gradient of the logits is the probabilities, minus 1 for the target
            probs.scatter_add_(-1, target, torch.full_like(below_max, -1))
            logits.copy_(probs)
            x_gradient[chunk] = logits @ weight_in_dtype
            weight_gradient += torch.mm(logits.T, x_chunk, out=product)
        ctx.save_for_backward(x_gradient, weight_gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the saved gradients of `x` and `weight`, times the gradient of the loss."""
        x_gradient, weight_gradient = ctx.saved_tensors
        return x_gradient.mul_(gradients[0]), weight_gradient.mul_(gradients[0]), None, None
