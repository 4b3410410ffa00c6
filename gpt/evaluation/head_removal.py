"""What a head causes: the loss of the model without it ("Are Sixteen Heads Really Better than
One?", arXiv:1905.10650)."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gpt.evaluation.attention import blocks_of, run_with_streams
from gpt.model.ensemble import LanguageModel, mean_prediction, members_of
from gpt.model.transformer import GPT, cross_entropy


@torch.no_grad()
def losses_without_heads(model: LanguageModel, ids: Tensor) -> Tensor:
    """The loss of each character but the first, in nats, without each head: (n_layer, H, T - 1).

    The model is in evaluation mode; ids (T,). One head at a time; what comes before its block is
    the same without it, and is computed once. An ensemble loses a head of one member: the others
    predict what they did.
    """
    members = members_of(model)
    targets = ids[None, 1:].to(next(model.parameters()).device)
    logits = [member(ids.to(targets.device)[None])[:, :-1] for member in members]
    of_members = []
    for m, member in enumerate(members):
        losses: list[list[Tensor]] = [[] for _ in member.blocks]
        for layer, changed in _logits_without_heads(member, ids):
            prediction = mean_prediction([*logits[:m], changed, *logits[m + 1 :]])
            losses[layer].append(cross_entropy(prediction, targets, reduction="none").cpu())
        of_members.append(torch.stack([torch.stack(heads) for heads in losses]))
    return torch.cat(of_members, dim=1)


def _logits_without_heads(model: GPT, ids: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield (layer, logits (1, T - 1, V)) with each head ablated."""
    _, streams = run_with_streams(model, ids)
    blocks = blocks_of(model)
    for layer, block in enumerate(blocks):
        for head in range(block.attention.n_head):
            x = block(streams[layer], ablated_head=head)  # (1, T, C)
            for later in blocks[layer + 1 :]:
                x = later(x)
            yield layer, model.head(model.norm(x[:, :-1]))
