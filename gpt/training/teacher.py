"""Distillation: a trained run's predictions as targets, beside the characters of the text."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.config.schema import Config
from gpt.errors import ConfigError
from gpt.model.ensemble import LanguageModel
from gpt.runs.find import find_teacher
from gpt.runs.fine_tuning import warn_of_known_val
from gpt.runs.format import CheckpointData
from gpt.runs.read import read_checkpoint, read_summary
from gpt.runs.weights import load_model
from gpt.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Teacher:
    """A trained model whose probabilities are targets (arXiv:1503.02531, section 2).

    They are taken as they are, at temperature 1: text is uncertain enough. `weight` is theirs in
    the loss, and 1 - `weight` that of the characters.
    """

    model: LanguageModel
    weight: float
    sha256: str  # of its weights' file

    @torch.no_grad()
    def targets(self, x: Tensor, y: Tensor) -> Tensor:
        """The distributions to predict (B, T, V), for windows x and the characters y (B, T).

        The teacher is given the text that x and y have in common: x without token dropout, but for
        each first character.
        """
        text = torch.cat([x[:, :1], y[:, :-1]], dim=1)
        targets: Tensor = self.weight * self.model(text).float().softmax(-1)
        certain = torch.full_like(targets[..., :1], 1 - self.weight)
        targets.scatter_add_(-1, y[..., None], certain)
        return targets


def load_teacher(config: Config, vocabulary: Vocabulary, device: torch.device) -> Teacher | None:
    """The best model of the run `train.distill`, if that is set.

    Raises:
        UsageError: there is no such run.
        ConfigError: its vocabulary is another, or its windows are shorter.
        CheckpointError: it cannot be read.
    """
    run = config.train.distill
    if run is None:
        return None
    data = read_checkpoint(find_teacher(run))
    _check_fits(data, config, vocabulary)
    warn_of_known_val("train.distill", data.config, config)
    return Teacher(load_model(data, device), config.train.distill_weight, data.weights_sha256)


def check_teacher(config: Config, vocabulary: Vocabulary) -> None:
    """Raises what `load_teacher` would, but reads no weights."""
    if config.train.distill is not None:
        _check_fits(read_summary(find_teacher(config.train.distill)), config, vocabulary)


def _check_fits(data: CheckpointData, config: Config, vocabulary: Vocabulary) -> None:
    run = config.train.distill
    if data.vocabulary != vocabulary:
        raise ConfigError(
            f"train.distill {run}: expected a run with the vocabulary of this text (V = "
            f"{len(vocabulary)}), got another (V = {len(data.vocabulary)}); take a run that was "
            f"trained on this text, or take its vocabulary by data.vocabulary={run}"
        )
    if data.config.model.T < config.model.T:
        raise ConfigError(
            f"train.distill {run}: expected a run with a model.T of at least {config.model.T}, got "
            f"{data.config.model.T}; use a smaller model.T"
        )
