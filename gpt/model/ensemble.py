"""Several models as one: members that differ by their seed, and predict the mean of what they do.

K members, B batch, T time, V vocabulary size.
"""

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from gpt.config.schema import ModelConfig
from gpt.device import generator
from gpt.model.cache import EnsembleCache
from gpt.model.transformer import GPT
from gpt.seeds import member_seed


class Ensemble(nn.Module):
    """A deep ensemble (arXiv:1612.01474): `config.ensemble` members of one config.

    Its logits are the logarithms of the members' mean probabilities. The parameters of member m
    are named `members.m.`, and then as those of a GPT.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocabulary_size: int,
        generators: Sequence[torch.Generator] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        of_one = config.model_copy(update={"ensemble": 1})
        self.members = nn.ModuleList(
            GPT(of_one, vocabulary_size, generators[m] if generators else None)
            for m in range(config.ensemble)
        )

    def forward(self, ids: Tensor, cache: EnsembleCache | None = None) -> Tensor:
        """(B, T) ids -> (B, T, V) log-probabilities, float32; see `GPT.forward`."""
        caches = [None] * self.config.ensemble if cache is None else cache.members
        return mean_prediction(
            [member(ids, of_it) for member, of_it in zip(self.members, caches, strict=True)]
        )


LanguageModel = GPT | Ensemble


def make_model(config: ModelConfig, vocabulary_size: int, seed: int | None = None) -> LanguageModel:
    """A model of this config; with a run's seed, each member's weights are drawn from its own."""
    if config.ensemble == 1:
        draws = None if seed is None else generator(seed, "init", 0)
        return GPT(config, vocabulary_size, draws)
    seeds = [] if seed is None else [member_seed(seed, m) for m in range(config.ensemble)]
    return Ensemble(config, vocabulary_size, [generator(s, "init", 0) for s in seeds])


def members_of(model: LanguageModel) -> list[GPT]:
    """The members of an ensemble; a single model is its own only one."""
    if isinstance(model, GPT):
        return [model]
    return [member for member in model.members if isinstance(member, GPT)]


def mean_prediction(logits: Sequence[Tensor]) -> Tensor:
    """The members' logits, K x (..., V) -> (..., V): the logarithms of their mean probabilities.

    Those are float32. The logits of one are left as they are.
    """
    if len(logits) == 1:
        return logits[0]
    total = reduce(torch.logaddexp, (each.float().log_softmax(-1) for each in logits))
    return total - math.log(len(logits))
