"""`RunContext`, which all parts of training use, and `Outcome`, the result of a run."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from gpt.config.schema import Config
from gpt.counts.mixture import Mixture
from gpt.distributed.ranks import Ranks
from gpt.files import from_here
from gpt.model.ensemble import LanguageModel
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids
from gpt.training.gate_fit import GateFit
from gpt.training.teacher import Teacher


@dataclass(frozen=True)
class RunContext:
    """The settings, text and folder of a run, and the ranks that train it."""

    config: Config
    corpus: Corpus
    folder: Path  # absolute
    ranks: Ranks
    should_stop: Callable[[], bool]  # any thread may call it
    device: torch.device
    gate_fit: GateFit | None = None  # None without `model.counts`
    teacher: Teacher | None = None  # the model to distill
    clock: Callable[[], float] = time.perf_counter  # seconds, since the command began

    @property
    def network_ids(self) -> Ids:
        """Ids that the network trains on: the train split without what `gate_fit` holds out."""
        return self.gate_fit.network_ids if self.gate_fit else self.corpus.train

    def mixture(self, model: LanguageModel, step: int) -> Mixture | None:
        """Return n-gram counts and a gate fitted to `model` at `step`; None without counts."""
        return self.gate_fit.fit(model, step) if self.gate_fit else None

    def shared_mixture(self, model: LanguageModel, step: int) -> Mixture | None:
        """Return the `mixture` of rank 0 on every rank. Every rank must call this method."""
        if (fit := self.gate_fit) is None:
            return None
        gates = self.ranks.broadcast(lambda: fit.fit(model, step).gates)
        return Mixture(fit.experts, *gates, fit.T)  # each rank has the counts

    @property
    def name(self) -> str:
        """The run's folder for messages: a relative path if it is inside the working folder."""
        return str(from_here(self.folder))


@dataclass(frozen=True)
class Outcome:
    """Result of a run that has ended. Val losses are in nats per id (character or byte)."""

    run: str  # path of the run's folder
    text: str  # name of the text
    config: str  # path of the resolved config
    seed: int
    parameters: int
    reason: str  # why training ended
    step: int  # number of steps done
    val_loss: float  # after the last step
    val_loss_per_character: float  # nats
    best_val_loss: float  # val loss of the best checkpoint
    best_val_loss_per_character: float  # nats
    bits_per_byte: float  # best val loss per byte of UTF-8; compares runs of any vocabulary
    best_step: int
    trigram_bits_per_character: float | None  # baseline: a trigram model of the train split
    xz_bits_per_character: float  # baseline: the text compressed by xz
    elapsed_s: float  # seconds of training, over all resumes
    seconds: float  # seconds of training in this call
