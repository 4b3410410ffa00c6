"""The logit lens: what the model would predict if it ended after fewer blocks.

By nostalgebraist, "interpreting GPT: the logit lens" (2020, LessWrong): the residual stream after
each block, put through the final norm and the head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.evaluation.attention import run_with_streams
from gpt.model.ensemble import LanguageModel, mean_prediction, members_of
from gpt.model.transformer import cross_entropy


@dataclass(frozen=True)
class LogitLens:
    """Row 0 is of the embeddings, row l of the stream after block l, counted from 1; on the CPU.

    predicted, probabilities (n_layer + 1, T): the id of the likeliest next character after each
    character, and its probability. losses (n_layer + 1, T - 1): nats of each character but the
    first. The last row is the model's own.
    """

    predicted: Tensor
    probabilities: Tensor
    losses: Tensor


@torch.no_grad()
def logit_lens(model: LanguageModel, ids: Tensor) -> LogitLens:
    """The logit lens of the model, in evaluation mode, on ids (T,).

    Of an ensemble: the mean of what its members would predict, each after as many blocks.
    """
    members = members_of(model)
    streams = [run_with_streams(member, ids)[1] for member in members]
    targets = ids[None, 1:].to(streams[0][0].device)
    predicted, probabilities, losses = [], [], []
    for xs in zip(*streams, strict=True):
        each = [member.head(member.norm(x)) for member, x in zip(members, xs, strict=True)]
        logits = mean_prediction(each).float()  # (1, T, V)
        top = logits[0].softmax(-1).max(-1)  # (T,)
        probabilities.append(top.values.cpu())
        predicted.append(top.indices.cpu())
        losses.append(cross_entropy(logits[:, :-1], targets, reduction="none").cpu())
    return LogitLens(torch.stack(predicted), torch.stack(probabilities), torch.stack(losses))
