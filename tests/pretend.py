"""A pretended accelerator: code written for one runs on any machine, with a CPU's numbers.

`torch.device("pretend:0")` is a device like any other to torch: moves, autograd, and, while it is
`plugged_in`, `torch.accelerator`. Its tensors keep their numbers in a CPU tensor, by which every
operation is computed. As on a real accelerator, an operation refuses operands of two devices and
generators of another, and `count_syncs` tells how often the CPU had to wait for numbers.

After PyTorch's own test/test_privateuseone_python_backend.py.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self
from unittest.mock import patch
from weakref import WeakSet

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

CPU, PRETEND = torch.device("cpu"), "pretend:0"
aten = torch.ops.aten
MOVES = (aten._to_copy.default, aten.copy_.default)
WAITS = (  # what cannot return before the numbers are known
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
)


class _Backend:
    """What torch looks for in `torch.pretend`."""

    plugged_in = False
    syncs = 0

    def is_available(self) -> bool:
        return self.plugged_in

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Nothing draws from a generator of its own."""

    def get_rng_state(self, device: object) -> Tensor:
        return torch.empty(0)

    def set_rng_state(self, state: Tensor, device: object) -> None: ...

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_generators = WeakSet[torch.Generator]()  # of the pretended device


class PretendGenerator(torch._C.Generator):
    """`torch.Generator`, which while it is plugged in takes the pretended device, too."""

    def __new__(cls, device: torch.device | str = "cpu") -> Self:
        pretends = torch.device(device).type == "pretend"
        new = super().__new__(cls, device="cpu" if pretends else device)
        if pretends:
            _generators.add(new)
        return new


_backend = _Backend()
_setup_privateuseone_for_python_backend("pretend", backend_module=_backend)


class PretendTensor(Tensor):
    """A tensor on the pretended device; `numbers` is the CPU tensor that it stands for."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: Tensor) -> Self:
        new = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=torch.device(PRETEND),
        )
        new.numbers = numbers
        return new

    def __repr__(self, **_: object) -> str:
        return f"{self.numbers!r} on {PRETEND}"

    def numpy(self, *, force: bool = False) -> NDArray[Any]:
        if not force:
            raise TypeError(f"expected a tensor on the CPU, got one on {PRETEND}")
        return self.detach().cpu().numpy()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if operation._can_decompose():  # in inference mode, none has been by now
            return operation.decompose(*args, **kwargs)
        with torch.inference_mode(mode=False):  # of tensors of that kind Python can make no views
            if operation in MOVES:
                return _move(operation, *args, **kwargs)
            _check_operands(operation, (args, kwargs))
            _backend.syncs += operation in WAITS
            results = operation(*_numbers_of(args), **_numbers_of(kwargs))
            wrapped = tree_map_only(Tensor, PretendTensor, results)
            return return_and_correct_aliasing(operation, args, kwargs, wrapped)


def _numbers_of(tree: Any) -> Any:
    tree = tree_map_only(PretendTensor, _numbers, tree)
    return tree_map_only(torch.device, lambda device: CPU, tree)


def _numbers(tensor: PretendTensor) -> Tensor:
    assert tensor.shape == tensor.numbers.shape, "resized by an operation that is to be registered"
    return tensor.numbers


def _check_operands(operation: object, tree: Any) -> None:
    def check(tensor: Tensor) -> None:
        if not isinstance(tensor, PretendTensor) and tensor.ndim:
            raise RuntimeError(
                f"{operation}: expected all tensors on {PRETEND}, got one on the CPU"
            )

    def check_generator(generator: torch.Generator) -> None:
        if generator._cdata in {own._cdata for own in _generators}:  # an operation gets a copy
            return
        raise RuntimeError(f"{operation}: expected a generator of {PRETEND}, got the CPU's")

    tree_map_only(Tensor, check, tree)
    tree_map_only(torch._C.Generator, check_generator, tree)


def _move(operation: Any, *args: Any, **kwargs: Any) -> Tensor:
    """The two operations that may have operands of both devices."""
    if operation is aten.copy_.default:
        return _copy_from(args[1], args[0])
    device = kwargs.get("device") or torch.device(PRETEND)
    _backend.syncs += device.type == "cpu"
    moved = operation(*_numbers_of(args), **_numbers_of(kwargs))
    return moved if device.type == "cpu" else PretendTensor(moved)


def _copy_from(origin: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    _backend.syncs += not isinstance(to, PretendTensor)
    _numbers_of(to).copy_(_numbers_of(origin))
    return to


def _make(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def factory(*args: Any, **kwargs: Any) -> Tensor:
        return PretendTensor(operation(*_numbers_of(args), **_numbers_of(kwargs)))

    return factory


_library = torch.library.Library("aten", "IMPL")
for _factory in (
    aten.empty.memory_format,
    aten.empty_strided.default,
    *(aten.arange.default, aten.arange.start, aten.arange.start_step),
):
    _library.impl(_factory, _make(_factory), "PrivateUse1")
_library.impl(aten._copy_from.default, _copy_from, "PrivateUse1")  # torch.tensor(..., device=)


@contextmanager
def plugged_in() -> Iterator[torch.device]:
    """The pretended device is the accelerator of this machine."""
    _backend.plugged_in = True
    try:
        with patch.object(torch, "Generator", PretendGenerator):
            yield torch.device(PRETEND)
    finally:
        _backend.plugged_in = False


@contextmanager
def count_syncs() -> Iterator[Callable[[], int]]:
    """Gives a function that counts how often the CPU waited since the context was entered."""
    before = _backend.syncs
    yield lambda: _backend.syncs - before


class PretendedCuda:
    """A CUDA runtime of two GPUs that records on which GPU, the current one, each call is made.

    Attributes:
        current: the index of the current GPU.
        calls: (call, index of the current GPU) for each capture, replay and question.
    """

    def __init__(self) -> None:
        self.current = 0
        self.calls: list[tuple[str, int]] = []
        self.is_capturing = False

    def set_device(self, device: torch.device | int) -> None:
        self.current = device if isinstance(device, int) else device.index

    @contextmanager
    def device(self, device: torch.device | int) -> Iterator[None]:
        before = self.current
        self.set_device(device)
        try:
            yield
        finally:
            self.current = before

    def note(self, call: str) -> None:
        self.calls.append((call, self.current))

    def is_bf16_supported(self, including_emulation: bool) -> bool:
        self.note("bf16")
        return True

    @contextmanager
    def graph(
        self, graph: object, stream: torch.device | None = None, capture_error_mode: str = "global"
    ) -> Iterator[None]:
        """As in torch, graphs without a stream share one on the first GPU of the process.

        In the default mode, CUDA refuses most calls of other threads; in any, a second capture.
        Bug: the garbage collector freed the graph of an earlier sample, which ended the capture.
        """
        assert not gc.isenabled()
        assert stream is not None
        assert capture_error_mode == "thread_local"
        assert not self.is_capturing
        self.note(f"capture on a stream of {stream}")
        self.is_capturing = True
        yield
        self.is_capturing = False


@contextmanager
def two_gpus() -> Iterator[PretendedCuda]:
    """Replace the parts of torch.cuda that depend on the current GPU."""
    cuda = PretendedCuda()
    graph = type("CUDAGraph", (), {"replay": lambda self: cuda.note("replay")})
    with (
        patch.multiple(
            torch.cuda,
            device_count=lambda: 2,
            set_device=cuda.set_device,
            device=cuda.device,
            is_bf16_supported=cuda.is_bf16_supported,
            graph=cuda.graph,
            CUDAGraph=graph,
            Stream=lambda device, priority: device,
        ),
        patch.object(torch._C, "_cuda_clearCublasWorkspaces", create=True),
    ):
        yield cuda
