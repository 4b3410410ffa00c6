"""From seeing to causing: what each head does on a text, beside what it attends to."""

from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from gpt.evaluation.attention import Attention, attend_text, blocks_of, run_with_streams
from gpt.evaluation.head_removal import losses_without_heads
from gpt.evaluation.head_scores import induction_score, previous_character_score
from gpt.evaluation.logit_lens import LogitLens, logit_lens
from gpt.evaluation.loss import unknown_costs
from gpt.model.ensemble import LanguageModel, members_of
from gpt.model.transformer import GPT
from gpt.text.batches import to_torch
from gpt.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class AttentionAnalysis(Attention):
    """An attention, and what it does: float32, on the CPU. Losses are in nats per character.

    value_norms (n_layer, H, T): of each key position's value, projected to the C channels of the
    stream. A weight times it is the length of what that key adds to the query's stream, which says
    more than the weight alone (arXiv:2004.10102).
    previous, induction (n_layer, H): the previous-character score on this text, and the induction
    score, see head_scores.py.
    losses (T - 1,): of each character but the first.
    losses_without (n_layer, H, T - 1): the same without that head, see head_removal.py.
    lens: what the model would predict after each block, see logit_lens.py.
    """

    value_norms: Tensor
    previous: Tensor
    induction: Tensor
    losses: Tensor
    losses_without: Tensor
    lens: LogitLens

    @property
    def removal_costs(self) -> Tensor:
        """(n_layer, H): by how much the text's loss rises without that head.

        NaN for a text of one character, which has no loss.
        """
        return (self.losses_without - self.losses).mean(-1)

    def costliest_head(self, layer: int | None = None, head: int | None = None) -> tuple[int, int]:
        """Return the layer and head whose removal costs most, of the given `layer` or `head`.

        Of an ensemble without a given `head`, one of the first member's.
        """
        costs = self.removal_costs.nan_to_num()
        layers = range(costs.shape[0]) if layer is None else [layer]
        heads = range(costs.shape[1] // self.members) if head is None else [head]
        return max(product(layers, heads), key=lambda place: costs[place].item())


def analyze_text(model: LanguageModel, vocabulary: Vocabulary, text: str) -> AttentionAnalysis:
    """The analysis of the model, in evaluation mode, on a text.

    The losses and predictions of an ensemble are those of its members' mean probabilities, also
    without a head.

    Raises:
        UsageError, CheckpointError: as `attend_text`.
    """
    attention = attend_text(model, vocabulary, text)
    ids = to_torch(vocabulary.encode(text))
    shared = unknown_costs(ids[1:], vocabulary)  # (T - 1,), in every loss
    lens = logit_lens(model, ids)
    lens = replace(lens, losses=lens.losses + shared)
    return AttentionAnalysis(
        attention.weights,
        attention.probabilities,
        value_norms=value_norms(model, ids),
        previous=previous_character_score(attention.weights),
        induction=induction_score(model),
        losses=lens.losses[-1],
        losses_without=losses_without_heads(model, ids) + shared,
        lens=lens,
        members=attention.members,
    )


@torch.no_grad()
def value_norms(model: LanguageModel, ids: Tensor) -> Tensor:
    """The norm of each value once projected, without the bias: ids (T,) -> (n_layer, H, T)."""
    return torch.cat([_value_norms(member, ids) for member in members_of(model)], dim=1)


def _value_norms(member: GPT, ids: Tensor) -> Tensor:
    _, streams = run_with_streams(member, ids)
    norms = []
    for block, x in zip(blocks_of(member), streams, strict=False):
        attention = block.attention
        _, _, v = attention.heads(block.attention_norm(x))  # (1, H, T, vs)
        matrices = attention.projection.weight.T.view(attention.n_head, -1, member.config.C)
        norms.append((v[0] @ matrices).norm(dim=-1).float().cpu())  # (H, T, C) -> (H, T)
    return torch.stack(norms)
