"""What all parts of a training share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpt.config.schema import Config
from gpt.distributed.ranks import Ranks
from gpt.files import from_here
from gpt.text.corpus import Corpus


@dataclass(frozen=True)
class RunContext:
    """The settings, the text and the folder of a run, and the ranks that train it.

    Attributes:
        folder: the absolute path of the run's folder.
        should_stop: returns whether the caller wants training to stop; called from any thread.
    """

    config: Config
    corpus: Corpus
    folder: Path
    ranks: Ranks
    should_stop: Callable[[], bool]

    @property
    def name(self) -> str:
        """The folder as messages show it: relative to the working folder if it is inside."""
        return str(from_here(self.folder))
