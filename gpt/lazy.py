"""Import a module that may be missing."""

from importlib import import_module
from types import ModuleType


def optional_module(name: str) -> ModuleType | None:
    """Import and return a module of this package; return None if its file was removed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "gpt":  # a library is not installed
            raise
        return None
