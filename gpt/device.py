"""Where and how torch computes: device, precision, threads, modes, compiler and random draws."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from threading import Lock
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gpt.errors import DeviceError, GPTError, counted
from gpt.seeds import derive_seed

log = logging.getLogger(__name__)


def select_device(name: str) -> torch.device:
    """Return the device `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.

    Raises:
        DeviceError: this machine, or this build of torch, does not have it.
    """
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    gpus, has_mps = torch.cuda.device_count(), torch.backends.mps.is_available()
    names = ["cpu", *(f"cuda:{i}" for i in range(gpus)), *(["mps"] if has_mps else [])]
    if name not in names and not (name == "cuda" and gpus):
        raise DeviceError(
            f"device {name}: expected auto, cpu, cuda, cuda:N or mps; torch {torch.__version__} "
            f"sees {counted(gpus, 'CUDA device')} and {'an' if has_mps else 'no'} Apple GPU here; "
            f"use --device cpu, or install another build of torch"
        )
    return torch.device(name)


def select_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products; weights stay float32 (arXiv:1710.03740).

    `auto` is bfloat16 if the chip multiplies it. Otherwise it is float16 on CUDA, and float32
    elsewhere. A CPU without bfloat16 computes it five times slower than float32 (scripts/bench.py
    peak).
    """
    if name == "auto":
        name = "bf16" if has_fast_bf16(device) else "fp16" if device.type == "cuda" else "fp32"
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def has_fast_bf16(device: torch.device) -> bool:
    """Return whether the chip multiplies bfloat16 itself, and so faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    able = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(able.get("avx512_bf16") or able.get("amx_bf16"))


_setting_threads = Lock()


def set_threads_here(count: int) -> None:
    """Set the number of torch's threads in this thread only.

    torch.set_num_threads also changes the default of threads that start later. A new thread sets it
    back, because setting it here would change this thread, too.
    """
    if torch.get_num_threads() == count:  # this call also fixes the number of this thread
        return
    with _setting_threads, ThreadPoolExecutor(1) as new_thread:
        default = new_thread.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        new_thread.submit(torch.set_num_threads, default).result()


@contextmanager
def computing_with(threads: int | str, *, deterministic: bool = False) -> Iterator[None]:
    """Set torch's threads and modes in this thread for the body of a `with` statement.

    Args:
        threads: the number of threads; `auto` leaves it as it is.
        deterministic: use only CUDA kernels that add in a fixed order.
    """
    before = torch.get_num_threads()
    if isinstance(threads, int):
        set_threads_here(threads)
    try:
        with default_modes(), _deterministic() if deterministic else nullcontext():
            yield
    finally:
        set_threads_here(before)


@contextmanager
def default_modes() -> Iterator[None]:
    """Set torch's modes to those of a new thread, whatever the caller has set.

    Gradients are recorded, new tensors are on the CPU, and autocast is off.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":  # otherwise it would only slow each call
            stack.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):  # its cache would keep weights of old steps
                stack.enter_context(torch.autocast(kind, enabled=False, cache_enabled=False))
        yield


@contextmanager
def _deterministic() -> Iterator[None]:
    """On CUDA, use only kernels that add in a fixed order; fail where there is none."""
    # torch requires the first variable, which CUDA reads when it starts, and sets the second
    not_set = {"CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_CACHE_DIR"} - os.environ.keys()
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        for name in not_set:
            os.environ.pop(name, None)


def free_cached_memory(device: torch.device) -> None:
    """Return the memory that torch keeps for later to the device."""
    if device.type != "cpu":
        torch.accelerator.empty_cache()


def autocast(device: torch.device, precision: torch.dtype) -> AbstractContextManager[object]:
    """Return a context in which a forward pass computes its products in `precision`."""
    if precision == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=precision)


def compile_model(
    model: nn.Module, mode: str, device: torch.device, rehearse: Callable[[Any], object]
) -> Any:
    """Return the model, compiled by torch.compile if `mode` says so.

    Args:
        model: the model.
        mode: `on`, `off`, or `auto`, which compiles on CUDA if that works. On a CPU, compiling
            takes longer than it saves in a run of minutes.
        device: where the model is.
        rehearse: computes a forward and a backward pass for each shape of batches with the model
            that it is given, because a compiler fails only when it is used.

    Raises:
        DeviceError: `on`, and the compiler does not work here.
    """
    if mode == "off" or (mode == "auto" and device.type != "cuda"):
        return model
    try:
        compiled = torch.compile(model)
        rehearse(compiled)
    except GPTError:  # such as for lack of memory
        raise
    except Exception as error:  # anything can fail: no g++, this Python, this chip
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if mode == "on":
            raise DeviceError(
                f"train.compile on: torch.compile fails here ({reason}); install a C++ compiler, "
                f"or use train.compile auto or off"
            ) from error
        log.warning("torch.compile does not work here (%s); continuing without it", reason)
        return model
    finally:
        model.zero_grad(set_to_none=True)
    return compiled


class SkipInitialization(TorchFunctionMode):
    """Mode in which modules are made without drawing their weights from the global generator.

    On the device `meta`, drawing would even import torch's compiler.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func` unless it is one of torch.nn.init, which fill a tensor."""
        named = kwargs or {}
        draws = getattr(func, "__module__", None) == "torch.nn.init"
        return named["tensor"] if draws else func(*args, **named)


def generator(seed: int, purpose: str, step: int) -> torch.Generator:
    """Return a generator for one purpose and step. It draws on the CPU, for any device."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, step))
