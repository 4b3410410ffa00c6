"""The head and the cross entropy as one, for large vocabularies.

N characters, C channels, V vocabulary size.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpt.config.schema import Config
from gpt.distributed import world_size
from gpt.model.transformer import LARGE_VOCABULARY

CHUNK_NUMBERS = 2**21  # logits at a time: 8 MB in float32, which stay in the cache


def fuses_head(config: Config, vocabulary_size: int, device: torch.device) -> bool:
    """Whether a step takes the head and the loss as one: on a CPU, if V is large.

    A compiler and DDP need the model's whole forward. (Nor can distillation, whose targets are
    many.)
    """
    large, whole = vocabulary_size >= LARGE_VOCABULARY, config.train.compile == "on"
    return large and device.type == "cpu" and not whole and world_size() == 1


def head_bytes(C: int, vocabulary_size: int) -> float:
    """Bytes that `linear_cross_entropy` takes at most, beside the gradients."""
    return 6 * max(CHUNK_NUMBERS, vocabulary_size) + 4 * vocabulary_size * C


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """cross_entropy(x @ weight.T, targets, reduction="sum"), (), without its (N, V) logits.

    x (N, C), weight (V, C), targets (N,). Products are computed in `dtype`, all else in float32.
    The gradients come with the loss, a few rows at a time (Liger Kernel, arXiv:2410.10989, section
    3.2): memory is what such a step waits for.
    """
    loss: Tensor = LinearCrossEntropy.apply(x, weight, targets, dtype)  # type: ignore[no-untyped-call]
    return loss


class LinearCrossEntropy(torch.autograd.Function):
    """See `linear_cross_entropy`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """The loss, (); its gradients are kept."""
        (N, C), V = x.shape, len(weight)
        rows = min(N, max(1, CHUNK_NUMBERS // V))
        weight_in_dtype, total = weight.to(dtype), torch.zeros((), dtype=torch.float32)
        of_x, of_weight = torch.empty_like(x), torch.zeros_like(weight)
        # one memory for all chunks: new pages would be cleared each time
        all_logits, of_chunk = torch.empty(rows, V, dtype=dtype), torch.empty(V, C, dtype=dtype)
        all_probs = (
            torch.empty(rows, V, dtype=torch.float32) if dtype != torch.float32 else all_logits
        )
        for start in range(0, N, rows):
            chunk = slice(start, start + rows)
            x_chunk, target = x[chunk].to(dtype), targets[chunk, None]  # (rows, C), (rows, 1)
            logits, probs = (t[: len(x_chunk)] for t in (all_logits, all_probs))
            torch.mm(x_chunk, weight_in_dtype.T, out=logits)
            probs.copy_(logits)
            below_max = probs.amax(-1, keepdim=True) - probs.gather(-1, target)
            torch.softmax(probs, -1, out=probs)
            # not -log of the target's, which can be 0
            total += (below_max - probs.amax(-1, keepdim=True).log()).sum()
            # the gradient of the logits
            probs.scatter_add_(-1, target, torch.full_like(below_max, -1))
            logits.copy_(probs)
            of_x[chunk] = logits @ weight_in_dtype
            of_weight += torch.mm(logits.T, x_chunk, out=of_chunk)
        ctx.save_for_backward(of_x, of_weight)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """The gradient of the loss -> those of x and the weight."""
        of_x, of_weight = ctx.saved_tensors
        return of_x.mul_(gradients[0]), of_weight.mul_(gradients[0]), None, None
