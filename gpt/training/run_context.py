"""What all parts of a training share, and what it returns."""

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


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    `val_loss` and `best_val_loss` are in nats per id: a character, or with bytes a byte.
    """

    run: str  # the folder
    text: str  # name of the text
    config: str  # path of the resolved config
    seed: int
    parameters: int
    reason: str  # why training ended
    step: int
    val_loss: float
    val_loss_per_character: float  # nats
    best_val_loss: float
    best_val_loss_per_character: float  # nats
    bits_per_byte: float  # best val loss per byte of UTF-8; compares runs of any vocabulary
    best_step: int
    trigram_bits_per_character: float | None  # see Baselines
    xz_bits_per_character: float
    elapsed_s: float  # seconds of training, over all resumes
    seconds: float  # seconds of this call
