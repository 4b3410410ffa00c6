"""Dropout that draws from a given random generator.

`torch.nn.Dropout` draws from torch's global generator, as other threads may do. Its results would
then depend on the timing of threads.
"""

from weakref import finalize

import torch
from torch import Tensor, nn

_generators: dict[int, torch.Generator] = {}  # by id(generator), while a module draws from it


class Dropout(nn.Dropout):
    """`nn.Dropout` that draws from the generator given to `set_generator`, if any.

    Without a call of `set_generator`, it draws from torch's global generator. On a CPU, the output
    equals that of `nn.Dropout` with an equally seeded generator, bit for bit.
    """

    generator: torch.Generator | None = None
    generator_id = torch.tensor(0)  # a tensor, because torch.compile would compile for each int

    def forward(self, input: Tensor) -> Tensor:
        """In training, zero each number with probability p; scale the others by 1 / (1 - p)."""
        if not (self.training and self.p):
            return input
        if torch.compiler.is_compiling():
            noise: Tensor = _opaque_noise(input.detach(), self.p, self.generator_id)
        else:
            noise = _noise(input, self.p, self.generator)
        return input * noise


def set_generator(model: nn.Module, generator: torch.Generator) -> None:
    """Set the generator from which all `Dropout` modules of `model` draw."""
    key = id(generator)
    for part in model.modules():
        if isinstance(part, Dropout):
            part.generator, part.generator_id = generator, torch.tensor(key)
            _generators[key] = generator
            finalize(part, _generators.pop, key, None)  # torch < 2.12: no weakrefs to generators


def _noise(x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """Return factors in the shape of `x`: 0 with probability `p`, otherwise 1 / (1 - p)."""
    return torch.empty_like(x).bernoulli_(1 - p, generator=generator).div_(1 - p)


# torch.compile cannot pass a generator to `bernoulli_` and would draw from the global one. It does
# not trace into a custom operator, to which the generator's id is passed.
@torch.library.custom_op(
    "gpt::dropout_noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _opaque_noise(x: Tensor, p: float, generator_id: Tensor) -> Tensor:
    return _noise(x, p, _generators.get(int(generator_id)))


@_opaque_noise.register_fake
def _(x: Tensor, p: float, generator_id: Tensor) -> Tensor:
    return torch.empty_like(x)
