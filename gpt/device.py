"""Set how torch computes: device, precision, threads, modes."""

import gc
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from threading import Lock
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gpt.errors import DeviceError, counted
from gpt.memory import cpu_limit

log = logging.getLogger(__name__)

# Earlier versions cannot release cached memory on MPS (github.com/pytorch/pytorch/issues/186430),
# and compute wrong attention there: in half precision (195910), for strided queries, keys and
# values (170837, 181133), and if value_size differs from head_size (176767).
MIN_MPS_TORCH = "2.13"


def select_device(name: str) -> torch.device:
    """Return the torch device with this name: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.

    `auto` is the accelerator of this machine or, if there is none, the CPU. `cuda:N` becomes the
    current CUDA device of the calling thread, because torch allocates streams, graphs and pinned
    memory on the current device.

    Raises:
        DeviceError: this machine, or this build of torch, does not support the device. `mps` also
            needs torch MIN_MPS_TORCH or newer; with an older torch, `auto` is the CPU.
    """
    if name == "auto":
        found = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        if found.type == "mps" and torch.__version__ < MIN_MPS_TORCH:
            log.warning("the Apple GPU is not used: it needs torch %s or later", MIN_MPS_TORCH)
            return torch.device("cpu")
        return found
    gpus, has_mps = torch.cuda.device_count(), torch.backends.mps.is_available()
    names = ["cpu", *(f"cuda:{i}" for i in range(gpus)), *(["mps"] if has_mps else [])]
    if name not in names and not (name == "cuda" and gpus):
        raise DeviceError(
            f"device {name}: expected {' or '.join(['auto', *names])}; torch {torch.__version__} "
            f"sees {counted(gpus, 'CUDA device')} and {'an' if has_mps else 'no'} Apple GPU here; "
            f"use cpu, or install another build of torch"
        )
    if name == "mps" and torch.__version__ < MIN_MPS_TORCH:
        raise DeviceError(
            f"device mps: expected torch {MIN_MPS_TORCH} or later, got {torch.__version__}, whose "
            f"attention is wrong on Apple GPUs; upgrade torch, or use cpu"
        )
    device = torch.device(name)
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def select_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products for the precision `name`: auto, fp32, bf16 or fp16.

    Weights stay float32 (mixed precision, arXiv:1710.03740). `auto` is bfloat16 on a CPU or CUDA
    device that multiplies bfloat16 in hardware, float16 on other CUDA devices, else float32. On a
    CPU without such hardware, bfloat16 is five times slower than float32 (`scripts/bench peak`).
    """
    if name == "auto":
        name = "bf16" if has_fast_bf16(device) else "fp16" if device.type == "cuda" else "fp32"
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def has_fast_bf16(device: torch.device) -> bool:
    """Return whether `device` is a CPU or CUDA device that multiplies bfloat16 in hardware."""
    if device.type == "cuda":
        with torch.cuda.device(-1 if device.index is None else device.index):  # -1: no change
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    able = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(able.get("avx512_bf16") or able.get("amx_bf16"))


_setting_threads = Lock()


def set_threads_here(count: int) -> None:
    """Set the number of CPU threads that torch uses in the calling Python thread only.

    torch.set_num_threads also changes the default for Python threads that start later. Therefore,
    this function restores the previous default by a second call, in a temporary thread.
    """
    if torch.get_num_threads() == count:  # this thread keeps `count` even if the default changes
        return
    with _setting_threads, ThreadPoolExecutor(1) as new_thread:
        default = new_thread.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        new_thread.submit(torch.set_num_threads, default).result()


def default_threads() -> int:
    """Return torch's number of CPU threads, or fewer if a container may use fewer CPUs."""
    threads = torch.get_num_threads()
    return min(threads, cpu_limit() or threads)


@contextmanager
def computing_with(threads: int | str, *, deterministic: bool = False) -> Iterator[None]:
    """Set the number of CPU threads, and use torch's `default_modes`, in a `with` block.

    `threads` is a number, or `auto` for `default_threads`. With `deterministic`, compute only with
    deterministic kernels.
    """
    before = torch.get_num_threads()
    set_threads_here(threads if isinstance(threads, int) else default_threads())
    try:
        with default_modes(), _deterministic_runs() if deterministic else nullcontext():
            yield
    finally:
        set_threads_here(before)


@contextmanager
def default_modes() -> Iterator[None]:
    """Set torch's modes to their defaults in a `with` block.

    Record gradients, make tensors on the CPU, leave torch.inference_mode, and disable autocast.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":  # the context below slows down each torch call
            stack.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):  # autocast's cache keeps old weights
                stack.enter_context(torch.autocast(kind, enabled=False, cache_enabled=False))
        yield


@contextmanager
def _deterministic_runs() -> Iterator[None]:
    """In a `with` block, require deterministic kernels; for cuBLAS, set os.environ meanwhile."""
    # to unset later: CUBLAS_..., set here before CUDA starts, and TORCHINDUCTOR_..., set by torch
    not_set = {"CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_CACHE_DIR"} - os.environ.keys()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        with deterministic_kernels(required=True):
            yield
    finally:
        for name in not_set:
            os.environ.pop(name, None)


@contextmanager
def deterministic_kernels(*, required: bool) -> Iterator[None]:
    """In a `with` block, require deterministic kernels of torch, or allow all kernels.

    If they are required, an operation without such a kernel raises RuntimeError.
    """
    enabled = torch.are_deterministic_algorithms_enabled()
    if not (enabled or required):  # setting the mode imports torch's compiler, which is slow
        yield
        return
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(required)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


def autocast(device: torch.device, precision: torch.dtype) -> AbstractContextManager[object]:
    """Return a context in which a forward pass computes matrix products in `precision`."""
    if precision == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=precision)


def product_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype of matrix products with `x`: autocast's, or `x.dtype` without autocast."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class SkipInitialization(TorchFunctionMode):
    """Context in which the functions of torch.nn.init do nothing.

    Use it to make a module whose weights are set afterwards. No weights are then drawn from torch's
    global generator. On the device `meta`, torch.nn.init would also import torch's compiler, which
    is slow.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func`; if it is from torch.nn.init, return its argument `tensor` instead."""
        named = kwargs or {}
        draws = getattr(func, "__module__", None) == "torch.nn.init"
        return named["tensor"] if draws else func(*args, **named)


def free_memory(device: torch.device) -> None:
    """Free the memory on `device` of models that were trained before in this process."""
    gc.collect()  # a TrainStep and its parts refer to each other
    if device.type != "cpu":
        torch.accelerator.empty_cache()
