"""Dropout whose masks are drawn by a generator of the run.

`torch.nn.Dropout` draws from the generator of the whole process, in which other threads draw, too.
"""

from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

_generators: WeakValueDictionary[int, torch.Generator] = WeakValueDictionary()  # by id()


class Dropout(nn.Dropout):
    """`nn.Dropout` that draws from the generator of `set_generator`, by default from torch's own.

    With equally seeded generators, both have the same output on a CPU, bit for bit.
    """

    generator: torch.Generator | None = None
    generator_id = 0

    def forward(self, input: Tensor) -> Tensor:
        """Any shape -> the same shape: zeros with probability p, the others times 1 / (1 - p)."""
        if not (self.training and self.p):
            return input
        if torch.compiler.is_compiling():
            noise: Tensor = _opaque_noise(input.detach(), self.p, self.generator_id)
        else:
            noise = _noise(input, self.p, self.generator)
        return input * noise


def set_generator(model: nn.Module, generator: torch.Generator) -> None:
    """Let all `Dropout` modules of `model` draw their masks from `generator`."""
    _generators[id(generator)] = generator
    for part in model.modules():
        if isinstance(part, Dropout):
            part.generator, part.generator_id = generator, id(generator)


def _noise(x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """Return 0 with probability `p` and else 1 / (1 - p), in the shape of `x`."""
    return torch.empty_like(x).bernoulli_(1 - p, generator=generator).div_(1 - p)


# The compiler cannot pass a generator, and would draw from torch's own: it calls this as it is.
@torch.library.custom_op(
    "gpt::dropout_noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _opaque_noise(x: Tensor, p: float, generator_id: int) -> Tensor:
    return _noise(x, p, _generators.get(generator_id))


@_opaque_noise.register_fake
def _(x: Tensor, p: float, generator_id: int) -> Tensor:
    return torch.empty_like(x)
