"""Analyse the attention of a model on a text."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt.api.model import Model
    from gpt.evaluation.head_analysis import AttentionAnalysis


def analyze_attention(model: "Model", text: str) -> "AttentionAnalysis":
    """Compute the attention weights of all heads on a text, and the effect of each head.

    Args:
        model: the model, from `gpt.load`. For an ensemble, only the first member is used.
        text: 1 to `model.T` characters.

    Returns:
        An AttentionAnalysis: the tensors of an Attention, and others. `losses` (T - 1,) are the
        network's losses in nats at each character but the first. `losses_without`
        (n_layer, H, T - 1) are these losses with one head ablated. `previous` (n_layer, H) is
        each head's mean weight on the previous character. `induction` (n_layer, H) is near 1
        for heads that attend to what followed the same character before.

    Raises:
        UsageError, CheckpointError, OutOfMemory: as `Model.attention` raises them.
    """
    from gpt.device import default_modes
    from gpt.evaluation.head_analysis import analyze_text
    from gpt.model.ensemble import members_of

    with default_modes():
        member = members_of(model.module)[0]
        return analyze_text(member, model.vocabulary, model.prepare(text))
