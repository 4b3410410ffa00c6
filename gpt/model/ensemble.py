"""Ensemble: several models with different seeds, whose predicted probabilities are averaged.

Shapes: B batch, T time, V vocabulary size.
"""

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.model.keys_and_values import Cache
from gpt.model.transformer import GPT
from gpt.seeds import derive_seed, member_seed


class Ensemble(nn.Module):
    """Deep ensemble (arXiv:1612.01474) of `config.ensemble` models with equal settings.

    The names of member m's parameters start with `members.m.`.
    """

    def __init__(self, config: ModelConfig, vocabulary_size: int, seed: int | None = None) -> None:
        super().__init__()
        self.config = config
        config_of_one = config.model_copy(update={"ensemble": 1})
        seeds = [None if seed is None else member_seed(seed, m) for m in range(config.ensemble)]
        self.members = nn.ModuleList(make_model(config_of_one, vocabulary_size, s) for s in seeds)

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Map ids (B, T) to log-probabilities (B, T, V) of the next characters, in float32."""
        return mean_prediction([member(ids, cache, m) for m, member in enumerate(self.members)])


LanguageModel = GPT | Ensemble


def make_model(config: ModelConfig, vocabulary_size: int, seed: int | None = None) -> LanguageModel:
    """Return a new model or ensemble; if `seed` is None, use torch's global random generator."""
    if config.ensemble > 1:
        return Ensemble(config, vocabulary_size, seed)
    if seed is None:
        return GPT(config, vocabulary_size)
    source = torch.Generator().manual_seed(derive_seed(seed, "init", 0))
    return GPT(config, vocabulary_size, source)


def members_of(model: LanguageModel) -> list[GPT]:
    """Return the members of an ensemble; for a single model, a list of only that model."""
    if isinstance(model, GPT):
        return [model]
    return [member for member in model.members if isinstance(member, GPT)]


def mean_prediction(logits: Sequence[Tensor]) -> Tensor:
    """Return the logarithm (..., V) of an ensemble's mean probabilities, in float32.

    `logits` has one tensor (..., V) for each model of the ensemble. If there is only one model,
    return its logits unchanged.
    """
    if len(logits) == 1:
        return logits[0]
    total = reduce(torch.logaddexp, (each.float().log_softmax(-1) for each in logits))
    return total - math.log(len(logits))
