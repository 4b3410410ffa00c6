"""What a head causes: the loss of the model without it ("Are Sixteen Heads Really Better than
One?", arXiv:1905.10650)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gpt.evaluation.attention import blocks_of, run_with_streams
from gpt.model.attention import CausalSelfAttention
from gpt.model.ensemble import LanguageModel, mean_prediction, members_of
from gpt.model.transformer import GPT, cross_entropy


@contextmanager
def head_removed(attention: CausalSelfAttention, head: int) -> Iterator[None]:
    """While it lasts, the output of a head, counted from 0, is zero before the projection."""

    def zero(projection: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        heads = [*arguments[0].chunk(attention.n_head, dim=-1)]  # H x (B, T, vs)
        heads[head] = torch.zeros_like(heads[head])
        return (torch.cat(heads, dim=-1),)

    hook = attention.projection.register_forward_pre_hook(zero)
    try:
        yield
    finally:
        hook.remove()


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
    """Each layer as often as it has heads, and the logits (1, T - 1, V) without that head."""
    _, streams = run_with_streams(model, ids)
    blocks = blocks_of(model)
    for layer, block in enumerate(blocks):
        for head in range(block.attention.n_head):
            with head_removed(block.attention, head):
                x = streams[layer]  # (1, T, C)
                for later in blocks[layer:]:
                    x = later(x)
            yield layer, model.head(model.norm(x[:, :-1]))
