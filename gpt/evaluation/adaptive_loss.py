"""Dynamic evaluation: a model that learns from each part of a text after that part was scored.

Dynamic evaluation of neural sequence models, arXiv:1709.07432. Compressors adapt in the same way.
"""

from copy import deepcopy

import torch
from torch import Tensor

from gpt.counts.mixture import Mixture
from gpt.evaluation.loss import unknown_cost
from gpt.model.ensemble import LanguageModel
from gpt.model.transformer import cross_entropy
from gpt.model.windows import mixed
from gpt.text.batches import consecutive_windows, split_batches
from gpt.text.vocabulary import Ids, Vocabulary

ADAPTIVE_LEARNING_RATE = 1e-3  # learning rate of Adam
SQUARES_DECAY = 0.99  # decay of the running mean of squared gradients from one update to the next


def adaptive_loss(
    model: LanguageModel,
    ids: Ids,
    vocabulary: Vocabulary,
    mixture: Mixture | None = None,
    learning_rate: float = ADAPTIVE_LEARNING_RATE,
) -> float:
    """Return the mean loss in nats per id of a copy of `model` that learns while it is evaluated.

    The windows are those of `evaluate`. After each segment as long as the network's context, the
    copy is updated by Adam, without momentum, with the gradient of that segment's loss. Counts of
    the train split do not change.

    Args:
        model: the network, which does not change.
        ids: at least two ids.
        vocabulary: the vocabulary of `ids`.
        mixture: n-gram counts to mix the network's predictions with.
        learning_rate: the learning rate of Adam.
    """
    adapted = deepcopy(model).eval()
    device = next(adapted.parameters()).device
    optimizer = torch.optim.Adam(adapted.parameters(), learning_rate, (0.0, SQUARES_DECAY))
    T, total = adapted.config.T, 0.0

    def learn(x: Tensor, y: Tensor) -> Tensor:
        """Return the logits (1, n, V) of a segment; then train the copy on it."""
        logits: Tensor = adapted(x)
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(logits, y))
        optimizer.step()
        return logits.detach().float()

    for window in split_batches(consecutive_windows(ids, T if mixture is None else mixture.T), 1):
        x, y = (part.to(device) for part in window)
        segments = zip(torch.split(x, T, 1), torch.split(y, T, 1), strict=True)
        logits = torch.cat([learn(*segment) for segment in segments], 1)
        if mixture is not None:
            logits = mixed(mixture, x, logits)
        total += cross_entropy(logits, y, reduction="sum").item() + unknown_cost(y, vocabulary)
    return total / (len(ids) - 1)
