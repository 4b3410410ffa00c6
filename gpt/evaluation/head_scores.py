"""What a head attends to, as one number: to the character before, or to what followed last time.

Both are those of "In-context Learning and Induction Heads" (arXiv:2209.11895), which finds that a
head of the first kind and a later one of the second copy together: [A][B] ... [A] -> [B].
"""

import torch
from torch import Tensor

from gpt.evaluation.attention import attend
from gpt.model.ensemble import LanguageModel, members_of
from gpt.seeds import uniforms

REPEATED_CHARACTERS = 32  # at most, in the sequence that is repeated
SEQUENCES = 4


def previous_character_score(weights: Tensor) -> Tensor:
    """The mean attention weight on the character before: (..., T, T) -> (...), from 0 to 1.

    NaN for a text of one character, which has none before.
    """
    return weights.diagonal(-1, -2, -1).mean(-1)


def prefix_matching_score(weights: Tensor) -> Tensor:
    """The mean weight that the second half of a repeated sequence puts on what followed last time.

    weights (..., 2 n, 2 n) on n different characters and the same n again -> (...), from 0 to 1.
    The query position n + i attends to the key position i + 1, the one after the same character.
    """
    n = weights.shape[-1] // 2
    return weights[..., n:, :].diagonal(1, -2, -1)[..., :n].mean(-1)


def induction_score(model: LanguageModel) -> Tensor:
    """The prefix matching score of each head, (n_layer, H): that of an induction head is near 1.

    On random sequences of different characters, each written twice: nothing but the repetition
    says what comes next. The mean over a few; always the same ones. NaN for a model
    whose T is 1.
    """
    config, V = model.config, members_of(model)[0].head.out_features
    if config.T == 1:
        shape = (config.n_layer, config.ensemble * config.n_head)
        return torch.full(shape, torch.nan, dtype=torch.float32, device="cpu")
    n = min(REPEATED_CHARACTERS, config.T // 2, V)
    scores = []
    for i in range(SEQUENCES):
        once = torch.from_numpy(uniforms(0, "induction", i).permutation(V)[:n])
        scores.append(prefix_matching_score(attend(model, once.repeat(2)).weights))
    return torch.stack(scores).mean(0)
