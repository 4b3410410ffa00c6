"""Import a module only when it is used: importing torch takes seconds."""

from importlib import import_module
from typing import Any

from gpt.files import check_working_folder


class LazyModule:
    """Module that is imported at the first use of one of its names."""

    def __init__(self, name: str) -> None:
        """Prepare to import the module with this full `name`."""
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """Return a name of the module."""
        check_working_folder()
        return getattr(import_module(self._name), name)
