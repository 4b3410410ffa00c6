"""Operators of torch that are not public: each makes a step faster, and has a public substitute.

If a release of torch lacks one of them, this module uses its substitute, whose results are equal up
to rounding. Only `torch._foreach_` operations, which process a list of tensors with one kernel, are
called elsewhere. `tests/test_torch_private.py` lists all that are in use.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-8  # AdamW: added to the root of the running mean square, so that it is not zero


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return relu(x @ weight.T + bias)."""
    if _is_eager_bf16(x) and _onednn_has_bf16():
        # oneDNN multiplies, adds the bias and applies ReLU in one pass instead of three
        fused: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "relu", [], "")
        return fused
    return F.linear(x, weight, bias).relu_()


def _is_eager_bf16(x: Tensor) -> bool:
    return x.is_cpu and x.dtype == torch.bfloat16 and not torch.compiler.is_compiling()


def _onednn_has_bf16() -> bool:
    """Return whether oneDNN multiplies bfloat16 on this CPU (with AVX2 only, it does not)."""
    names = ("_linear_pointwise", "_is_mkldnn_bf16_supported")
    has_operators = all(hasattr(torch.ops.mkldnn, name) for name in names)
    return has_operators and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def adamw_(
    parameters: list[Tensor],
    gradients: list[Tensor],
    state: dict[str, list[Tensor]],
    *,
    learning_rate: float | Tensor,
    betas: tuple[float, float],
    weight_decay: float,
    found_inf: Tensor | None,  # scalar
) -> None:
    """Update `parameters` and `state` in place by AdamW (arXiv:1711.05101).

    `state` contains running means of the gradient (`mean`) and of its square (`square`), and the
    number of updates, including this one (`steps`). If `found_inf` is 1, nothing changes.
    """
    if hasattr(torch, "_fused_adamw_"):
        torch._fused_adamw_(
            parameters,
            gradients,
            state["mean"],
            state["square"],
            [],
            state["steps"],
            lr=learning_rate,
            beta1=betas[0],
            beta2=betas[1],
            weight_decay=weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
            found_inf=found_inf,
        )
        return
    lists = (state[name] for name in ("mean", "square", "steps"))
    for p, gradient, mean, square, steps in zip(parameters, gradients, *lists, strict=True):
        new_mean = mean.lerp(gradient, 1 - betas[0])
        new_square = square.lerp(gradient.square(), 1 - betas[1])
        root = (new_square / (1 - betas[1] ** steps)).sqrt() + EPSILON
        change = learning_rate * new_mean / (1 - betas[0] ** steps) / root
        new_p = p * (1 - learning_rate * weight_decay) - change
        for old, new in ((mean, new_mean), (square, new_square), (p, new_p)):
            old.copy_(new if found_inf is None else torch.where(found_inf == 1, old, new))


def can_clear_cublas_workspaces() -> bool:
    """Return whether `clear_cublas_workspaces` works; without it, CUDA graphs are not recorded."""
    return hasattr(torch._C, "_cuda_clearCublasWorkspaces")


def clear_cublas_workspaces() -> None:
    """Free the memory in which cuBLAS stores intermediate results, so that it allocates anew."""
    torch._C._cuda_clearCublasWorkspaces()
