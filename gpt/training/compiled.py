"""torch.compile: when it is used, and a model with compiled blocks."""

import logging
from collections.abc import Callable
from copy import copy
from typing import Any, cast

import torch
from torch import nn

from gpt.config.schema import Config
from gpt.errors import DeviceError, GPTError
from gpt.model.ensemble import LanguageModel, members_of

log = logging.getLogger(__name__)

# Shortest run that torch.compile makes faster: in seconds, and in float operations on an H100.
# Compiling takes 17 s for each batch shape, and halves the time of a step.
MIN_COMPILED_S, MIN_COMPILED_OPERATIONS = 180, 3e15


def compile_mode(setting: str, device: torch.device) -> str:
    """Return `setting`, a value of `train.compile`; without CUDA, return `off` for `auto`.

    On a CPU, compiling takes longer than it saves in a run of minutes.
    """
    return "off" if setting == "auto" and device.type != "cuda" else setting


def with_compile_choice(config: Config, model: LanguageModel, device: torch.device) -> Config:
    """Return `config`, with `train.compile` off instead of auto if compiling would not save time.

    A new run saves this choice in its config, and a resume for more steps keeps it. Without CUDA,
    or with `train.plans` (the config repeats another run), `config` is unchanged. Training is
    assumed to take six float operations for each parameter and character (arXiv:2001.08361).
    """
    if compile_mode(config.train.compile, device) != "auto" or config.train.plans:
        return config
    if config.train.minutes is not None:  # `train.steps` is not planned yet
        is_short = 60 * config.train.minutes < MIN_COMPILED_S
    else:
        parameters = sum(parameter.numel() for parameter in members_of(model)[0].parameters())
        characters = config.train.steps * config.train.batch_size * config.model.T
        is_short = 6 * parameters * characters < MIN_COMPILED_OPERATIONS
    return config.changed(train={"compile": "off"}) if is_short else config


def compile_model(model: nn.Module, mode: str, rehearse: Callable[[Any], object]) -> Any:
    """Return a copy of `model` with compiled blocks; return `model` if `mode` is `off`.

    The copy shares the parameters of `model`. All blocks run the same compiled code. Each batch
    shape is compiled separately, because code for variable shapes is slower.

    torch.compile compiles, and can fail, only when the copy is used. Therefore, `rehearse` runs a
    forward and a backward pass of the copy for each batch shape. If the compiler does not work on
    this machine, raise DeviceError in mode `on`; in mode `auto`, log a warning and return `model`.
    """
    if mode == "off":
        return model
    try:
        compiled, layers = copy(model), cast(nn.ModuleList, model.get_submodule("blocks"))
        blocks = [cast(nn.Module, torch.compile(block, dynamic=False)) for block in layers]
        compiled._modules = model._modules | {"blocks": nn.ModuleList(blocks)}
        rehearse(compiled)
    except GPTError:  # e.g. OutOfMemory
        raise
    except Exception as error:  # e.g. without g++, or on an unsupported Python or processor
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
