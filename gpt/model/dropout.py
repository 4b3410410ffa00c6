"""Dropout that draws from a given random generator.

`torch.nn.Dropout` draws from torch's global generator. Other threads may draw from that generator,
too, so results would depend on the timing of threads.
"""

from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """`nn.Dropout` that draws from the generator given to `set_generator`, if any.

    Without a call of `set_generator`, it draws from torch's global generator. On a CPU, the output
    equals that of `nn.Dropout` with an equally seeded generator, bit for bit.
    """

    generator: torch.Generator | None = None
    key = torch.tensor(0)  # key in `_dropouts`; a tensor: torch.compile recompiles for each int

    def forward(self, input: Tensor) -> Tensor:
        """In training, zero each number with probability p; scale the others by 1 / (1 - p)."""
        if not (self.training and self.p):
            return input
        if torch.compiler.is_compiling():
            noise: Tensor = _opaque_noise(input.detach(), self.p, self.key)
        else:
            noise = _noise(input, self.p, self.generator)
        return input * noise


_dropouts = WeakValueDictionary[int, Dropout]()  # modules with a generator, by id(module)


def set_generator(model: nn.Module, generator: torch.Generator) -> None:
    """Set the generator from which all `Dropout` modules of `model` draw."""
    for part in model.modules():
        if isinstance(part, Dropout):
            part.generator, part.key = generator, torch.tensor(id(part))
            _dropouts[id(part)] = part


def _noise(x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """Return factors in the shape of `x`: 0 with probability `p`, otherwise 1 / (1 - p)."""
    return torch.empty_like(x).bernoulli_(1 - p, generator=generator).div_(1 - p)


# Compiled code would draw from the global generator. A custom operator is not compiled, so it draws
# from the module's generator. It cannot take a generator as an argument, so it takes a `key`.
@torch.library.custom_op(
    "gpt::dropout_noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _opaque_noise(x: Tensor, p: float, key: Tensor) -> Tensor:
    return _noise(x, p, getattr(_dropouts.get(int(key)), "generator", None))


@_opaque_noise.register_fake
def _(x: Tensor, p: float, key: Tensor) -> Tensor:
    return torch.empty_like(x)
