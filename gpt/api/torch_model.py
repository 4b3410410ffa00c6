"""Functions of `Model` that need torch, which takes seconds to import; see `gpt.api.model`."""

import torch
from torch import Tensor

from gpt.device import default_modes, select_device
from gpt.errors import UsageError
from gpt.evaluation.loss import evaluate, scored_ids
from gpt.model.attention_maps import Attention, attend_text
from gpt.model.ensemble import LanguageModel, members_of
from gpt.runs.format import CheckpointData
from gpt.runs.weights import load_model
from gpt.text.batches import to_torch
from gpt.text.vocabulary import Vocabulary


def load_module(checkpoint: CheckpointData, device: str) -> LanguageModel:
    """Return the model of `checkpoint` on a device, such as `auto`, in evaluation mode."""
    with default_modes():
        return load_model(checkpoint, select_device(device))


def text_logits(module: LanguageModel, vocabulary: Vocabulary, text: str) -> Tensor:
    """Return the result of `Model.logits` for a text from `Model.prepare`."""
    ids, T = to_torch(vocabulary.encode(text)), module.config.T
    if not 0 < len(ids) <= T:
        unit = vocabulary.unit
        raise UsageError(f"expected a text of 1 to {T} {unit}s (model.T), got {len(ids)}")
    device = next(module.parameters()).device
    with default_modes(), torch.no_grad():  # not inference_mode, whose tensors autograd refuses
        logits: Tensor = module(ids[None].to(device))
    return logits[0].float().cpu()


def text_loss(module: LanguageModel, vocabulary: Vocabulary, text: str) -> float:
    """Return the result of `Model.loss` for a text from `Model.prepare`."""
    if len(text) < 2:
        raise UsageError(f"expected a text of at least 2 characters, got {len(text)}")
    ids = scored_ids(text, vocabulary)
    with default_modes():
        loss = evaluate(module, ids)
    return loss * ((len(ids) - 1) / (len(text) - 1))


def text_attention(module: LanguageModel, vocabulary: Vocabulary, text: str) -> Attention:
    """Return the result of `Model.attention` for a text from `Model.prepare`."""
    with default_modes():
        return attend_text(members_of(module)[0], vocabulary, text)
