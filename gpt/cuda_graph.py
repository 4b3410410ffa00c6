"""CUDA graphs start all kernels of a computation at once, which saves the CPU most of its work."""

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

import torch

EAGER_STEPS = 3  # warm-up calls that CUDA needs before a call may be captured as a graph

# A capture begins by waiting for the device, which fails while another thread captures.
_capturing = Lock()

R = TypeVar("R")


def replayed(
    step: Callable[[], R], device: torch.device, generator: torch.Generator | None = None
) -> Callable[[], R]:
    """Return a function that computes `step()`; on CUDA, it replays `step` as a CUDA graph.

    The first EAGER_STEPS calls run `step`. The next call records the kernels of `step` in a graph.
    That call and all later ones replay the graph, which starts all kernels at once. `step` must
    read and write the same tensors at each call. A call overwrites the tensors that the previous
    call returned.

    Args:
        step: the computation, which must not wait for results of the device.
        device: the device on which `step` computes.
        generator: the generator from which `step` draws on `device`; callers may seed it.
    """
    if device.type != "cuda":
        return step
    graph, calls = torch.cuda.CUDAGraph(), 0
    output: R

    def run() -> R:
        nonlocal output, calls
        calls += 1
        if calls <= EAGER_STEPS:
            return step()
        with torch.cuda.device(device):
            if calls == EAGER_STEPS + 1:
                if generator is not None:
                    graph.register_generator_state(generator)
                # record the kernels without running them; torch's own capture stream would belong
                # to the device of the first graph of this process
                stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                mode = "thread_local"  # by default, CUDA would refuse allocations of other threads
                with _capturing, torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
                    output = step()
            graph.replay()
        return output

    return run
