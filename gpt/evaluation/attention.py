"""The attention weights of a model on a text, and what it predicts at each character of it.

H heads, T characters, V vocabulary size; layers and heads are counted from 0.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.errors import CheckpointError, UsageError
from gpt.memory import check_memory
from gpt.model.ensemble import LanguageModel, mean_prediction, members_of
from gpt.model.transformer import GPT, Block
from gpt.sampling.prompt import check_known
from gpt.text.batches import to_torch
from gpt.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Attention:
    """What a model computes on a text of T characters (or bytes); float32, on the CPU.

    weights (n_layer, H, T, T): attention weights; row t is a query position, its entries sum to 1
    over the key positions 0 to t, and are 0 after t. The heads of an ensemble are those of its
    members, one member after the other: H is `members` times `model.n_head`.
    probabilities (T, V): row t is the predicted distribution of the character after t.
    """

    weights: Tensor
    probabilities: Tensor
    members: int = field(default=1, kw_only=True)

    def first_member(self) -> "Attention":
        """Return the attention of an ensemble's first member; `probabilities` stay the mean."""
        H = self.weights.shape[1] // self.members
        return Attention(self.weights[:, :H], self.probabilities)

    def whose(self, head: int) -> str:
        """Of an ensemble, whose head this is, counted from 0: ` (member 2)`; else nothing."""
        each = self.weights.shape[1] // self.members
        return f" (member {head // each + 1})" if self.members > 1 else ""


@torch.no_grad()
def attend(model: LanguageModel, ids: Tensor) -> Attention:
    """The attention of the model, in evaluation mode, to ids (T,).

    The fused kernel never holds the weights, so each block's input is kept, and put through the
    same attention step by step.

    Raises:
        ValueError: more than `model.config.T` ids.
    """
    training = model.training
    model.eval()
    logits, weights = [], []
    try:
        for member in members_of(model):
            of_it, streams = run_with_streams(member, ids)
            layers = [
                block.attention.explicit(block.attention_norm(x))[1]  # (1, H, T, T)
                for block, x in zip(
                    blocks_of(member), streams, strict=False
                )  # the last: the head's
            ]
            logits.append(of_it)
            weights.append(torch.cat(layers))
    finally:
        model.train(training)
    probabilities = mean_prediction(logits)[0].float().softmax(-1)
    heads = torch.cat(weights, dim=1).float()  # K x (n_layer, n_head, T, T) -> (n_layer, H, T, T)
    return Attention(heads.cpu(), probabilities.cpu(), members=len(logits))


def run_with_streams(model: GPT, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the logits (1, T, V) of ids (T,), and the residual streams; see `GPT.hidden`."""
    streams: list[Tensor] = []
    hidden = model.hidden(ids.to(next(model.parameters()).device)[None], streams=streams)
    return model.head(hidden), streams


def blocks_of(model: GPT) -> list[Block]:
    """The model's blocks, in order."""
    return [block for block in model.blocks if isinstance(block, Block)]


def _check_memory(config: ModelConfig, vocabulary_size: int, T: int) -> None:
    """Raises OutOfMemory if the attention of a text of T characters takes more than is free."""
    layer = 4 * config.n_head * T * T  # bytes of a member's weights
    stream = 4 * config.C * T
    logits = (4 * config.ensemble + 12) * vocabulary_size * T
    parts = {
        "attention weights": layer * (3 * config.n_layer * config.ensemble + 4),
        "activations": stream * (config.n_layer + config.n_head + 14) + logits,
    }
    check_memory(f"the attention of {T:,} characters", parts, "use a shorter text")


def attend_text(model: LanguageModel, vocabulary: Vocabulary, text: str) -> Attention:
    """The attention of the model to a text.

    Raises:
        UsageError: the text is empty, longer than the model's T, or has characters outside its
            vocabulary.
        CheckpointError: the model computes NaN or infinite numbers.
        OutOfMemory: the attention weights would take more memory than is free.
    """
    if not text:
        raise UsageError("the text: expected at least one character, got none")
    check_known(text, vocabulary)
    ids = to_torch(vocabulary.encode(text))
    if len(ids) > model.config.T:
        raise UsageError(
            f"the text: expected at most T = {model.config.T} {vocabulary.unit}s, as many as the "
            f"model sees at once, got {len(ids)}; cut it"
        )
    _check_memory(model.config, len(vocabulary), len(ids))
    attention = attend(model, ids)
    if not (attention.weights.isfinite().all() and attention.probabilities.isfinite().all()):
        raise CheckpointError(
            "the model's logits are NaN or infinite; load another checkpoint of the run (best, "
            "last or a step)"
        )
    return attention
