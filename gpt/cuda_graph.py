"""CUDA graphs: record the kernels of a function once; later, start all of them at once."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor

from gpt.torch_private import can_clear_cublas_workspaces, clear_cublas_workspaces

EAGER_STEPS = 3  # warm-up calls that CUDA needs before a call may be captured as a graph

# While a CUDA graph is captured, another capture fails, because it first waits for the device.
_capturing = Lock()

R = TypeVar("R")


class StepGraph:
    """Replays the kernels of `function`, the part of a training step after the batch is drawn.

    Each call copies its inputs into the tensors on `device` that the graph reads. A new graph is
    recorded when the shape of the batch changes. `masks` draws the dropout masks.
    """

    def __init__(
        self,
        function: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
        device: torch.device,
        masks: torch.Generator | None,
    ) -> None:
        self.function, self.device, self.masks = function, device, masks
        self.x = torch.empty(0, device=device)

    def __call__(
        self, x: Tensor, y: Tensor, lr_factor: float, is_probe: bool
    ) -> tuple[Tensor, Tensor]:
        """Return copies of the loss and the norm that `function` returns for these inputs."""
        if self.x.shape != x.shape:
            self.x, self.y = (torch.empty_like(ids, device=self.device) for ids in (x, y))
            self.lr_factor = torch.empty((), dtype=torch.float32, device=self.device)
            self.is_probe = torch.empty((), dtype=torch.bool, device=self.device)
            own = partial(self.function, self.x, self.y, self.lr_factor, self.is_probe)
            self.replay = replayed(own, self.device, self.masks)
        self.x.copy_(x, non_blocking=True)
        self.y.copy_(y, non_blocking=True)
        self.lr_factor.fill_(lr_factor)
        self.is_probe.fill_(is_probe)
        loss, norm = self.replay()
        return loss.clone(), norm.clone()  # the next replay overwrites `loss` and `norm`


def replayed(
    function: Callable[[], R], device: torch.device, generator: torch.Generator | None = None
) -> Callable[[], R]:
    """Return a function that computes `function()`; on CUDA, it replays a graph of its kernels.

    The first EAGER_STEPS calls run `function`. The next call records its kernels in a graph. That
    call and all later ones replay the graph, which starts all kernels at once. `function` must read
    and write the same tensors at each call, and must not wait for results of the device. A call
    overwrites the tensors that the previous call returned. `function` may draw random numbers from
    `generator`, which callers may seed.
    """
    if device.type != "cuda" or not can_clear_cublas_workspaces():
        return function
    graph, calls = torch.cuda.CUDAGraph(), 0
    output: R

    def run() -> R:
        nonlocal output, calls
        calls += 1
        if calls <= EAGER_STEPS:
            return function()
        with torch.cuda.device(device):
            if calls == EAGER_STEPS + 1:
                if generator is not None:
                    graph.register_generator_state(generator)
                # record the kernels without running them, on a stream of `device` (torch's default
                # capture stream is on the device of the first graph of this process); streams with
                # this priority have a pool of their own, so that nothing else runs on it
                stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
                mode = "thread_local"  # by default, allocations by other threads would fail
                capture = torch.cuda.graph(graph, stream=stream, capture_error_mode=mode)
                with _capturing, _ready_to_capture(), capture:
                    output = function()
            graph.replay()
        return output

    return run


@contextmanager
def _ready_to_capture() -> Iterator[None]:
    """Let a CUDA graph be captured in a `with` block.

    Meanwhile, Python's garbage collector must not free an old graph, because that would end the
    capture (github.com/pytorch/pytorch/pull/161037). The graph gets a cuBLAS workspace of its own;
    otherwise, it could use one that is freed with another graph.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    clear_cublas_workspaces()
    try:
        yield
    finally:
        clear_cublas_workspaces()
        if was_enabled:
            gc.enable()
