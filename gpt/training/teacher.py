"""Distillation: a trained run's predictions as targets, in addition to the text's characters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.errors import ConfigError
from gpt.model.ensemble import LanguageModel
from gpt.runs.find import find_run
from gpt.runs.fine_tuning import warn_of_known_val
from gpt.runs.format import CheckpointData
from gpt.runs.read import read_checkpoint, read_summary
from gpt.runs.weights import load_model
from gpt.text.vocabulary import Vocabulary

TEACHER_WEIGHT = 0.7  # fraction of the loss that counts the teacher's predictions


@dataclass(frozen=True)
class Teacher:
    """A trained model whose probabilities are targets (arXiv:1503.02531, section 2).

    The probabilities are used at temperature 1: text is uncertain enough.
    """

    model: LanguageModel
    sha256: str  # SHA-256 of the weights file

    @torch.no_grad()
    def targets(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the distributions to predict (B, T, V), for windows x and y (B, T).

        The teacher reads the text itself: x without token dropout, except for each first character,
        which is not in y.
        """
        text = torch.cat([x[:, :1], y[:, :-1]], dim=1)
        targets: Tensor = TEACHER_WEIGHT * self.model(text).float().softmax(-1)
        certain = torch.full_like(targets[..., :1], 1 - TEACHER_WEIGHT)
        targets.scatter_add_(-1, y[..., None], certain)
        return targets


def load_teacher(config: Config, vocabulary: Vocabulary, device: torch.device) -> Teacher | None:
    """Load the best model of the run `train.distill`; return None if that is not set.

    Raises:
        UsageError: there is no such run.
        ConfigError: its vocabulary differs, or its windows are shorter.
        CheckpointError: its checkpoint cannot be read.
    """
    run = config.train.distill
    if run is None:
        return None
    data = read_checkpoint(find_run(run))
    _check_fits(data, config, vocabulary)
    warn_of_known_val("train.distill", data.config, config)
    return Teacher(load_model(data, device), data.weights_sha256)


def check_teacher(config: Config, vocabulary: Vocabulary) -> None:
    """Raise the errors of `load_teacher`, but read no weights."""
    if config.train.distill is not None:
        _check_fits(read_summary(find_run(config.train.distill)), config, vocabulary)


def _check_fits(data: CheckpointData, config: Config, vocabulary: Vocabulary) -> None:
    """Raise ConfigError if the teacher cannot predict the run's windows."""
    run = config.train.distill
    if data.vocabulary != vocabulary:
        raise ConfigError(
            f"train.distill {run}: expected a run with the vocabulary of this text, got another; "
            f"take a run that was trained on it, or its vocabulary by data.vocabulary={run}"
        )
    if data.config.model.T < config.model.T:
        raise ConfigError(
            f"train.distill {run}: expected a run with a model.T of at least {config.model.T}, got "
            f"{data.config.model.T}; use a smaller model.T"
        )
