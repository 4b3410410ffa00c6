"""AdamW and Muon."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt.config.train_config import TrainConfig
from gpt.model.transformer import GPT, Block
from gpt.runs.format import Tensors
from gpt.torch_private import adamw_

BETA1 = 0.9  # AdamW: decay of the running mean of the gradient
# Coefficients (a, b, c) of three polynomials of degree 5 that together map singular values from
# 0.02 to 1 to values near 1, as in Polar Express (arXiv:2505.16932).
POLAR_EXPRESS = (
    (7.71097, -22.11376, 16.24874),
    (3.21528, -2.41117, 0.5013),
    (2.21831, -1.59399, 0.41075),
)


class Optimizer:
    """Base class of AdamW and Muon; `state` contains lists of tensors, such as `momentum`."""

    waits = True  # whether the CPU waits for `skip`; otherwise, an update takes more operations

    def __init__(self, parameters: Sequence[Tensor], **state: list[Tensor]) -> None:
        self.parameters, self.state = list(parameters), state

    @property
    def gradients(self) -> list[Tensor]:
        """List of the gradients of the parameters."""
        return [p.grad for p in self.parameters if p.grad is not None]

    @torch.no_grad()
    def step(self, lr_factor: float | Tensor, skip: Tensor | None = None) -> None:
        """Update every parameter by its gradient, at `lr_factor` times the peak learning rate.

        If `skip`, a scalar bool tensor, is true, nothing changes. Unless `waits`, the CPU does not
        wait for `skip`, nor for `lr_factor`, which may be a tensor.
        """
        if skip is None or not self.waits:
            self.update(lr_factor, skip)
        elif not skip:
            self.update(lr_factor, None)

    def update(self, lr_factor: float | Tensor, skip: Tensor | None) -> None:
        """Do what `step` does, without waiting for `skip`."""
        raise NotImplementedError

    def state_dict(self) -> Tensors:
        """Return the state by name, such as `momentum.0`, as NumPy arrays (views on a CPU)."""
        return {name: tensor.numpy(force=True) for name, tensor in self._named_state().items()}

    def load_state_dict(self, state: Tensors) -> None:
        """Copy `state`, a result of `state_dict`; raise ValueError if names or shapes differ."""
        named = self._named_state()
        expected = {name: tuple(tensor.shape) for name, tensor in named.items()}
        if expected != {name: array.shape for name, array in state.items()}:
            raise ValueError(
                "the optimizers' tensors do not have the names and shapes of this model"
            )
        for name, tensor in named.items():
            tensor.copy_(torch.from_numpy(state[name]))

    def _named_state(self) -> dict[str, Tensor]:
        return {f"{name}.{i}": t for name, ts in self.state.items() for i, t in enumerate(ts)}


class AdamW(Optimizer):
    """Adam with decoupled weight decay (arXiv:1711.05101), computed by torch's fused kernel."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        learning_rate: float,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        super().__init__(
            parameters,
            mean=[torch.zeros_like(p) for p in parameters],
            square=[torch.zeros_like(p) for p in parameters],
            steps=[torch.zeros((), dtype=torch.float32, device=p.device) for p in parameters],
        )
        self.learning_rate, self.betas, self.weight_decay = learning_rate, betas, weight_decay

    def update(self, lr_factor: float | Tensor, skip: Tensor | None) -> None:
        """Update every parameter by its gradient; see `Optimizer.step`."""
        found_inf = None if skip is None else skip.float()  # 1.0 makes the kernel do nothing
        torch._foreach_add_(self.state["steps"], 1)
        adamw_(
            self.parameters,
            self.gradients,
            self.state,
            learning_rate=lr_factor * self.learning_rate,
            betas=self.betas,
            weight_decay=self.weight_decay,
            found_inf=found_inf,
        )
        if found_inf is not None:
            torch._foreach_sub_(self.state["steps"], [found_inf] * len(self.parameters))


class Muon(Optimizer):
    """Muon: updates matrices by their orthogonalised momentum (kellerjordan.github.io/posts/muon).

    Orthogonalising makes the singular values of an update nearly equal; otherwise, a few large ones
    would dominate. Each update is also scaled so that, over time, all neurons of a matrix change
    equally much (NorMuon, arXiv:2510.05491).
    """

    BETA2 = 0.95  # weight of the past in the running mean square of each neuron

    def __init__(
        self,
        parameters: Sequence[Tensor],  # 2-D
        rows: Sequence[list[int]],  # heights of the matrices stacked in each parameter, such as qkv
        learning_rate: float,  # peak
        momentum: float,  # weight of the past in the running mean of gradients
        weight_decay: float,  # decoupled, as in AdamW
        dtype: torch.dtype = torch.float32,  # type of the matrix products
    ) -> None:
        self.rows, self.dtype = rows, dtype
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.momentum = momentum
        super().__init__(
            parameters,
            momentum=[torch.zeros_like(p) for p in parameters],
            square=[  # one number for each row or, if width > height, for each column
                torch.zeros_like(m[:, :1] if len(m) >= m.shape[1] else m[:1], dtype=torch.float32)
                for m in self._split([*parameters])
            ],
        )

    def update(self, lr_factor: float | Tensor, skip: Tensor | None) -> None:
        """Update every parameter by its gradient; see `Optimizer.step`.

        The number of kernels limits the speed on an accelerator. `torch._foreach_` operations
        process a list of tensors with one kernel.
        """
        rate, momentum = lr_factor * self.learning_rate, self.state["momentum"]
        gradients = update_means(momentum, self.gradients, self.momentum, skip)
        directions = torch._foreach_lerp(gradients, momentum, self.momentum)  # Nesterov momentum
        decay = rate * self.weight_decay
        torch._foreach_mul_(self.parameters, 1 - (decay if skip is None else ~skip * decay))
        matrices, steps = self._split(self.parameters), self._split([*directions])
        by_shape: dict[torch.Size, list[int]] = {}  # indices of the matrices with each shape
        for i, step in enumerate(steps):
            by_shape.setdefault(step.shape, []).append(i)
        for (height, width), same in by_shape.items():
            squares = [self.state["square"][i] for i in same]
            even = self._equalise(torch.stack([steps[i] for i in same]), squares, skip)
            alpha, updated = -rate * max(1, height / width) ** 0.5, [matrices[i] for i in same]
            if skip is None:
                torch._foreach_add_(updated, [*even], alpha=alpha)
            else:  # contiguous, so that `_foreach_add_` starts only one kernel
                even = even.mul_(alpha).masked_fill_(skip, 0.0).contiguous()
                torch._foreach_add_(updated, [*even])

    def _split(self, tensors: list[Tensor]) -> list[Tensor]:
        return [m for t, rows in zip(tensors, self.rows, strict=True) for m in torch.split(t, rows)]

    def _equalise(self, steps: Tensor, squares: list[Tensor], skip: Tensor | None) -> Tensor:
        """Orthogonalise N matrices of updates, and give all neurons updates of similar size.

        `steps` is (N, height, width). The neurons are the rows or, if width > height, columns.
        Divide each neuron's update by the root of its running mean square, stored in `squares`.
        Then scale each matrix back to the norm that it had before this division.
        """
        orthogonal = orthogonalise(steps.to(self.dtype)).float()
        along = -1 if steps.shape[-2] >= steps.shape[-1] else -2  # axis of a neuron's weights
        sums = orthogonal.square().sum(along, keepdim=True)
        update_means(squares, [*(sums / steps.shape[along])], self.BETA2, skip)
        factors = 1 / (torch.stack(squares).sqrt() + 1e-8)  # one per neuron
        before, after = (each.sum((-2, -1), keepdim=True) for each in (sums, sums * factors**2))
        return orthogonal.mul_(factors * (before / (after + 1e-16)).sqrt())


def update_means(
    means: list[Tensor], new: list[Tensor], weight: float, skip: Tensor | None
) -> list[Tensor]:
    """Set each mean, in place, to `weight` x mean + (1 - `weight`) x new; return `new`.

    If `skip`, a scalar bool tensor, is true, change no mean; return a copy of `means`. (Setting the
    weight of `new` to zero would not suffice: `new` can be NaN, and 0 times NaN is NaN.)
    """
    if skip is not None:  # join all tensors: one kernel is faster than many
        old, added = (torch.cat([t.flatten() for t in tensors]) for tensors in (means, new))
        parts = torch.split(torch.where(skip, old, added), [t.numel() for t in new])
        new = [part.view(t.shape) for part, t in zip(parts, new, strict=True)]
    torch._foreach_lerp_(means, new, 1 - weight)
    return new


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return `matrices` (N, height, width) with singular values mapped to values from 0.9 to 1.1.

    For a matrix U S V^T, the result is about U V^T. Singular values below 2 % of the matrix's norm
    stay below 0.9.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices  # so that x x^T is the smaller square
    norms = torch.linalg.matrix_norm(x, keepdim=True)  # Frobenius: (N, height, width) -> (N, 1, 1)
    x = x / (1.01 * norms + 1e-7)
    for a, b, c in POLAR_EXPRESS:
        square = x @ x.mT  # (N, s, s), where s is the length of the shorter side
        # a x + (b x x^T + c (x x^T)^2) x
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def make_optimizers(
    model: GPT, config: TrainConfig, precision: torch.dtype = torch.float32
) -> list[Optimizer]:
    """Return AdamW for all weights, or Muon for the blocks' matrices and AdamW for the rest.

    Biases and LayerNorms have no weight decay. With Muon, embeddings and the head have none either.
    If `precision` is bfloat16, Muon multiplies matrices in bfloat16, otherwise in float32.
    """
    matrices = {name: p for name, p in model.named_parameters() if p.ndim == 2}
    vectors = [p for p in model.parameters() if p.ndim < 2]
    betas = (BETA1, config.beta2)
    rate, decay = config.learning_rate, config.weight_decay
    optimizers: list[Optimizer]
    if config.optimizer == "adamw":
        decaying = AdamW([*matrices.values()], rate, betas, decay)
        optimizers = [decaying, AdamW(vectors, rate, betas, 0.0)]
    else:
        in_blocks = {name: p for name, p in matrices.items() if name.startswith("blocks.")}
        others = [p for name, p in matrices.items() if name not in in_blocks]
        block = model.blocks[0]
        assert isinstance(block, Block)
        qkv = block.attention.sizes
        rows = [qkv if name.endswith("qkv.weight") else [len(p)] for name, p in in_blocks.items()]
        dtype = torch.bfloat16 if precision == torch.bfloat16 else torch.float32
        muon_rate, momentum = config.muon_learning_rate, config.muon_momentum
        muon = Muon([*in_blocks.values()], rows, muon_rate, momentum, decay, dtype)
        optimizers = [muon, AdamW([*others, *vectors], rate, betas, 0.0)]
    for optimizer in optimizers:  # on MPS, AdamW's kernel does not support `skip`
        optimizer.waits = vectors[0].device.type in ("cpu", "mps") or precision == torch.float16
    return optimizers
