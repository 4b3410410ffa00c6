"""AdamW and Muon.

Both are written out here. torch.optim's load torch's compiler as they are made, which
takes 2 s, and its Muon takes one matrix at a time, in bfloat16, which on a CPU that has none costs
four times this one. (`python scripts/bench.py optimizer`)
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gpt.config.schema import TrainConfig
from gpt.distributed.ddp import assign_owners, share_results
from gpt.distributed.ranks import SINGLE, Ranks
from gpt.model.transformer import GPT, Block
from gpt.runs.format import Tensors

# (a, b, c) of each step: the polynomials of degree 5 that together bring singular values from 0.02
# to 1 nearest to 1, as in Polar Express (arXiv:2505.16932).
POLAR_EXPRESS = (
    (7.71097, -22.11376, 16.24874),
    (3.21528, -2.41117, 0.5013),
    (2.21831, -1.59399, 0.41075),
)


class Optimizer:
    """Parameters, and what is kept of each from step to step: `state`, lists of tensors by name.

    A parameter without a gradient is left alone, and so is its state.
    """

    def __init__(self, parameters: Sequence[Tensor], **state: list[Tensor]) -> None:
        self.parameters, self.state = list(parameters), state
        self.param_groups = [{"params": self.parameters}]  # where torch.amp.GradScaler looks

    @torch.no_grad()
    def step(self, lr_factor: float, skip: Tensor | None = None) -> None:
        """Update every parameter by its gradient, at `lr_factor` times the peak learning rate.

        If `skip`, a () of bool beside the parameters, is true, all stays as it was. The CPU need
        not wait to know.
        """
        if skip is None:
            self.update(lr_factor)
            return
        kept = [t for tensors in self.state.values() for t in tensors]
        tensors = [*self.parameters, *kept]
        before = [t.clone() for t in tensors]
        self.update(lr_factor)
        for tensor, old in zip(tensors, before, strict=True):
            torch.where(skip, old, tensor, out=tensor)

    def update(self, lr_factor: float) -> None:
        """What `step` does unless it skips."""
        raise NotImplementedError

    def state_dict(self) -> Tensors:
        """The state as arrays, `momentum.0` and so on; on a CPU they share its memory."""
        return {name: tensor.numpy(force=True) for name, tensor in self._named_state()}

    def load_state_dict(self, state: Tensors) -> None:
        """Copy what `state_dict` gave into the state.

        Raises:
            ValueError: it is not of these parameters; nothing was copied.
        """
        expected = {name: tuple(tensor.shape) for name, tensor in self._named_state()}
        if expected != {name: array.shape for name, array in state.items()}:
            raise ValueError("the optimizers' tensors are not those of this model")
        for name, tensor in self._named_state():
            tensor.copy_(torch.from_numpy(state[name]))

    def _named_state(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensors in self.state.items():
            for i, tensor in enumerate(tensors):
                yield f"{name}.{i}", tensor


class AdamW(Optimizer):
    """Adam with decoupled weight decay (arXiv:1711.05101), by torch's fused kernel."""

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

    def update(self, lr_factor: float) -> None:
        """See Optimizer.step."""
        state = zip(self.state["mean"], self.state["square"], self.state["steps"], strict=True)
        updated = [
            [p, p.grad, *of_p]
            for p, of_p in zip(self.parameters, state, strict=True)
            if p.grad is not None
        ]
        if not updated:
            return
        parameters, gradients, mean, square, steps = zip(*updated, strict=True)
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            *(parameters, gradients, mean, square, [], steps),
            lr=lr_factor * self.learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )


class Muon(Optimizer):
    """Momentum, orthogonalised (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

    A gradient's few large directions would drown the others; here all directions of a matrix move
    equally far, and so, in the long run, do its neurons (NorMuon, arXiv:2510.05491). `rows` are
    those of the matrices that share a parameter, such as queries, keys and values: each is taken
    for itself. Products are computed in `dtype`.

    Each of several ranks orthogonalises its share of the matrices, and gets the others' results.
    """

    MOMENTUM, BETA2 = 0.95, 0.95  # of the gradients' mean; of the neurons' mean square

    def __init__(
        self,
        parameters: Sequence[Tensor],
        rows: Sequence[list[int]],
        learning_rate: float,
        weight_decay: float,
        dtype: torch.dtype = torch.float32,
        ranks: Ranks = SINGLE,
    ) -> None:
        sizes = [(n, p.shape[1]) for p, ns in zip(parameters, rows, strict=True) for n in ns]
        neurons = [(n, 1) if is_tall(n, m) else (1, m) for n, m in sizes]
        super().__init__(
            parameters,
            momentum=[torch.zeros_like(p) for p in parameters],
            square=[
                torch.zeros(n, dtype=torch.float32, device=parameters[0].device) for n in neurons
            ],
        )
        self.rows, self.dtype, self.ranks = rows, dtype, ranks
        self.learning_rate, self.weight_decay = learning_rate, weight_decay

    def update(self, lr_factor: float) -> None:
        """See Optimizer.step; Nesterov momentum, decoupled weight decay."""
        rate = lr_factor * self.learning_rate
        squares = iter(self.state["square"])
        updated: list[Update] = []
        for p, momentum, rows in zip(
            self.parameters, self.state["momentum"], self.rows, strict=True
        ):
            of_p = [next(squares) for _ in rows]
            if p.grad is None:
                continue
            momentum.lerp_(p.grad, 1 - self.MOMENTUM)
            direction = p.grad.lerp(momentum, self.MOMENTUM)
            p.mul_(1 - rate * self.weight_decay)
            updated.append((p, direction, rows, of_p))
        self._move(updated, rate)

    def _move(self, updated: "list[Update]", rate: float) -> None:
        """Move these parameters by their orthogonalised directions."""
        steps = [part for _, d, rows, _ in updated for part in torch.split(d, rows)]
        squares = [square for *_, of_p in updated for square in of_p]
        costs = [step.numel() * min(step.shape) for step in steps]
        owner = assign_owners(costs, self.ranks.size)
        by_shape: dict[torch.Size, list[int]] = {}  # one product for all of it
        for i, step in enumerate(steps):
            if owner[i] == self.ranks.rank:
                by_shape.setdefault(step.shape, []).append(i)
        for same in by_shape.values():
            mean_squares = [squares[i] for i in same]
            directions = torch.stack([steps[i] for i in same]).to(self.dtype)
            orthogonal = orthogonalise(directions).float()
            neurons = mean_of_neurons(orthogonal.square())
            torch._foreach_lerp_(mean_squares, [*neurons], 1 - self.BETA2)
            even = orthogonal / (torch.stack(mean_squares).sqrt() + 1e-8)
            even *= frobenius_norm(orthogonal) / (frobenius_norm(even) + 1e-8)  # norm as before
            for i, step in zip(same, even, strict=True):
                steps[i] = step
        share_results([*steps, *squares], [*owner, *owner], self.ranks)
        matrices = (matrix for p, _, rows, _ in updated for matrix in torch.split(p, rows))
        for step, matrix in zip(steps, matrices, strict=True):
            height, width = step.shape
            matrix.sub_(step, alpha=rate * max(1, height / width) ** 0.5)


Update = tuple[Tensor, Tensor, list[int], list[Tensor]]
"""A parameter, its direction, the rows of its matrices, and the mean squares of their neurons."""


def mean_of_neurons(matrices: Tensor) -> Tensor:
    """(..., height, width) -> the mean of each row if they are tall, else of each column.

    The longer side of an MLP's matrices is its neurons; dimensions are kept, with size 1.
    """
    return matrices.mean(-1 if is_tall(*matrices.shape[-2:]) else -2, keepdim=True)


def is_tall(height: int, width: int) -> bool:
    """Whether its rows are the neurons."""
    return height >= width


def frobenius_norm(matrices: Tensor) -> Tensor:
    """(N, height, width) -> (N, 1, 1)."""
    norms: Tensor = torch.linalg.matrix_norm(matrices, keepdim=True)
    return norms


def orthogonalise(matrices: Tensor) -> Tensor:
    """(N, height, width) -> the same with singular values from 0.9 to 1.1, the directions kept.

    That is U V^T of each U S V^T, by polynomials in the matrix: products only. (Directions that
    have less than a fiftieth of the length of the whole stay shorter.)
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices  # x x^T is the smaller square
    x = x / (1.01 * frobenius_norm(x) + 1e-7)
    for a, b, c in POLAR_EXPRESS:
        square = x @ x.mT  # (N, s, s)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def make_optimizers(
    model: GPT,
    config: TrainConfig,
    dtype: torch.dtype = torch.float32,
    ranks: Ranks = SINGLE,
) -> list[Optimizer]:
    """AdamW for all that is trained; or Muon for the blocks' matrices, and AdamW for the rest.

    There is none for parts that are frozen: a GradScaler refuses one without gradients.

    Biases and LayerNorms do not decay, and neither, beside Muon, do the vectors of characters.
    Muon computes its products in `dtype`.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    matrices = {name: p for name, p in trained.items() if p.ndim == 2}
    vectors = [p for p in trained.values() if p.ndim < 2]
    betas = (config.beta1, config.beta2)
    rate, decay = config.learning_rate, config.weight_decay
    optimizers: list[Optimizer]
    if config.optimizer == "adamw":
        optimizers = [
            AdamW([*matrices.values()], rate, betas, decay),
            AdamW(vectors, rate, betas, 0.0),
        ]
    else:
        in_blocks = {name: p for name, p in matrices.items() if name.startswith("blocks.")}
        block = model.blocks[0]
        assert isinstance(block, Block)
        qkv = block.attention.sizes
        rows = [qkv if name.endswith("qkv.weight") else [len(p)] for name, p in in_blocks.items()]
        rest = [p for name, p in matrices.items() if name not in in_blocks]
        optimizers = [
            Muon([*in_blocks.values()], rows, config.muon_learning_rate, decay, dtype, ranks),
            AdamW([*rest, *vectors], rate, betas, 0.0),
        ]
    return [optimizer for optimizer in optimizers if optimizer.parameters]
