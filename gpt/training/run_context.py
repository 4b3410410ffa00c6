"""Settings, text, folder and clock of a run, for all parts of training; and its outcome."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from gpt.config.schema import Config
from gpt.distributed import Ranks
from gpt.files import from_here
from gpt.text.corpus import Corpus


@dataclass(frozen=True)
class RunContext:
    """Settings, text, folder, ranks, device and clock of a run, for all parts of training."""

    config: Config
    corpus: Corpus
    folder: Path  # absolute
    ranks: Ranks
    should_stop: Callable[[], bool]  # any thread may call it
    device: torch.device
    clock: Callable[[], float]  # seconds since the command began

    @property
    def name(self) -> str:
        """The run's folder for messages: a relative path if it is inside the working folder."""
        return str(from_here(self.folder))

    def passes(self, step: int) -> float:
        """Return the number of passes over the train split in `step` steps."""
        ids = step * self.config.train.batch_size * self.config.model.T
        return round(ids / len(self.corpus.train), 4)


@dataclass(frozen=True)
class Outcome:
    """Result of a run that has ended. Val losses are in nats per id (character or byte)."""

    run: str  # path of the run's folder
    text: str  # name of the text
    seed: int
    parameters: int
    reason: str  # why training ended
    step: int  # number of steps done
    passes: float  # number of passes over the train split in `step` steps
    advice: str  # a sentence: what would lower the val loss most
    val_loss: float  # after the last step, on the whole val split
    val_loss_per_character: float  # nats
    best_val_loss: float  # val loss of the best checkpoint
    best_val_loss_per_character: float  # nats
    bits_per_byte: float  # best val loss in bits per byte of UTF-8; comparable across vocabularies
    best_step: int
    trigram_bits_per_character: float | None  # baseline: a trigram model of the train split
    elapsed_s: float  # seconds of training, over all resumes
