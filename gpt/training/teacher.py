"""Distillation: train on the predictions of a trained model, in addition to the text."""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.errors import ConfigError
from gpt.model.ensemble import LanguageModel
from gpt.runs.find import find_run
from gpt.runs.fine_tuning import warn_of_known_val
from gpt.runs.format import CheckpointData
from gpt.runs.old_losses import NOTICE
from gpt.runs.read import read_checkpoint, read_summary
from gpt.runs.weights import load_model
from gpt.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

TEACHER_WEIGHT = 0.7  # weight of the teacher's predictions in the targets; the text has the rest


@dataclass(frozen=True)
class Teacher:
    """A trained model whose probabilities are training targets (arXiv:1503.02531, section 2).

    No temperature softens the probabilities, because the next character is rarely certain.
    """

    model: LanguageModel
    sha256: str  # SHA-256 of the weights file

    @torch.no_grad()
    def targets(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the target distributions (B, T, V) for inputs `x` and targets `y`, (B, T).

        Each is a weighted mean of the teacher's prediction and the true id. Token dropout can mask
        ids in `x`, so the teacher reads them from `y`, except the first id of each window.
        """
        text = torch.cat([x[:, :1], y[:, :-1]], dim=1)
        targets: Tensor = TEACHER_WEIGHT * self.model(text).float().softmax(-1)
        certain = torch.full_like(targets[..., :1], 1 - TEACHER_WEIGHT)
        targets.scatter_add_(-1, y[..., None], certain)
        return targets


def load_teacher(config: Config, vocabulary: Vocabulary, device: torch.device) -> Teacher | None:
    """Load the best checkpoint of the run `train.distill`; return None if that is not set."""
    run = config.train.distill
    if run is None:
        return None
    data = read_checkpoint(find_run(run))
    _check_fits(data, config, vocabulary)
    if data.had_counts:
        log.warning(NOTICE, run)
    warn_of_known_val("train.distill", data.config, config)
    return Teacher(load_model(data, device), data.weights_sha256)


def check_teacher(config: Config, vocabulary: Vocabulary) -> None:
    """Raise ConfigError if the run `train.distill` cannot be the teacher; load no weights."""
    if config.train.distill is not None:
        _check_fits(read_summary(find_run(config.train.distill)), config, vocabulary)


def _check_fits(data: CheckpointData, config: Config, vocabulary: Vocabulary) -> None:
    run = config.train.distill
    if data.vocabulary != vocabulary:
        raise ConfigError(
            f"train.distill {run}: expected a run with the vocabulary of this text, got another; "
            f"use a run that was trained on this text, or set data.vocabulary={run}"
        )
    if data.config.model.T < config.model.T:
        raise ConfigError(
            f"train.distill {run}: expected a run with a model.T of at least {config.model.T}, "
            f"got {data.config.model.T}; use a smaller model.T"
        )
