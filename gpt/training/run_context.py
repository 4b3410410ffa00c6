"""`RunContext`, which all parts of a training use, and `Outcome`, the result of a training."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpt.config.schema import Config
from gpt.counts.mixture import Mixture
from gpt.distributed.ranks import Ranks
from gpt.files import from_here
from gpt.model.ensemble import LanguageModel
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Ids
from gpt.training.gate_fit import GateFit


@dataclass(frozen=True)
class RunContext:
    """The settings, the text and the folder of a run, and the ranks that train it.

    Attributes:
        folder: the absolute path of the run's folder.
        should_stop: returns whether training should stop. Any thread may call it.
        gate_fit: fits the gate, which weights predictions by n-gram counts against those of the
            network; None without `model.counts`.
    """

    config: Config
    corpus: Corpus
    folder: Path
    ranks: Ranks
    should_stop: Callable[[], bool]
    gate_fit: GateFit | None = None

    @property
    def network_ids(self) -> Ids:
        """Ids of the train split that the network trains on.

        With `model.counts`, some ids are held out to fit the gate, which weights the predictions of
        n-gram counts against those of the network.
        """
        return self.gate_fit.network_ids if self.gate_fit else self.corpus.train

    def mixture(self, model: LanguageModel, step: int) -> Mixture | None:
        """Return the mixture of predictions by n-gram counts and by `model`, fitted at `step`.

        Without `model.counts`, return None.
        """
        return self.gate_fit.fit(model, step) if self.gate_fit else None

    def shared_mixture(self, model: LanguageModel, step: int) -> Mixture | None:
        """Return the `mixture` of rank 0 on every rank; every rank must call this method."""
        if (fit := self.gate_fit) is None:
            return None
        gates = self.ranks.broadcast(lambda: fit.fit(model, step).gates)
        return Mixture(fit.experts, *gates, fit.T)  # each rank has the counts

    @property
    def name(self) -> str:
        """The run's folder, as messages show it: relative to the working folder if it is inside."""
        return str(from_here(self.folder))


@dataclass(frozen=True)
class Outcome:
    """Result of a run that has ended.

    `val_loss` and `best_val_loss` are in nats per id. An id is a character or, in a vocabulary of
    bytes, a byte.
    """

    run: str  # path of the run's folder
    text: str  # name of the text
    config: str  # path of the resolved config
    seed: int
    parameters: int
    reason: str  # why training ended
    step: int  # number of steps done
    val_loss: float  # after the last step
    val_loss_per_character: float  # nats
    best_val_loss: float  # of the best checkpoint
    best_val_loss_per_character: float  # nats
    bits_per_byte: float  # best val loss per byte of UTF-8; compares runs of any vocabulary
    best_step: int
    trigram_bits_per_character: float | None  # baseline: a trigram model of the train split
    xz_bits_per_character: float  # baseline: the text compressed by xz
    elapsed_s: float  # seconds of training, over all resumes
    seconds: float  # seconds of this call
