"""A character-level GPT that you train, watch and sample from the command line or from Python.

The modules follow the way of the data; each imports only from those above its own:

    errors, files, seeds         what can go wrong, safe writing, all chance
    memory, device               what is free, and where it computes
    config                       what was asked for
    text                         characters in, batches out
    model                        batches in, logits out
    runs                         a run on disk: its folder and its checkpoints
    sampling                     a model in, characters out
    evaluation                   a model and a text in, numbers out
    inspection                   numbers in, pictures out
    training                     batches in, checkpoints out
    recipe                       a text and a time in, a config out; sweeps
    lessons                      the same attention built up from averaging
    api                          what notebooks and the commands call
    cli                          the commands

From Python: `gpt.train`, `gpt.resume` and `gpt.sweep` train, `gpt.load` returns a `gpt.Model`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt.api import Model, load, resume, sweep, train

__all__ = ["Model", "load", "resume", "sweep", "train"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `gpt.api` when one of its functions is first used: `import gpt` loads no library."""
    if name not in __all__:
        raise AttributeError(f"module 'gpt' has no attribute {name!r}")
    from gpt import api

    return getattr(api, name)


def __dir__() -> list[str]:
    """List the functions of `gpt.api` too, for `help(gpt)` and completion."""
    return sorted({*globals(), *__all__})
