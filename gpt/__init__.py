"""A character-level GPT that you train, watch and sample from the command line or from Python.

`gpt.train`, `gpt.resume` and `gpt.sweep` train. `gpt.load` returns a `gpt.Model`. README.md in
this folder is a map of the code.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt.api import Model, load, resume, sweep, train

__all__ = ["Model", "load", "resume", "sweep", "train"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `gpt.api` at the first use of one of its names, so that `import gpt` is fast."""
    if name not in __all__:
        raise AttributeError(f"module 'gpt' has no attribute {name!r}")
    from gpt import api

    return getattr(api, name)


def __dir__() -> list[str]:
    """Return all names, also those not yet imported, for `help(gpt)` and completion."""
    return sorted({*globals(), *__all__})
