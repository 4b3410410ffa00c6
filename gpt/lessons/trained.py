"""A trained model and its activations on a text that it generated."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.model.attention import CausalSelfAttention
from gpt.model.transformer import GPT, Block
from gpt.sampling.generate import generate_text
from gpt.text.batches import to_torch
from gpt.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Trained:
    """A model, a text of T characters, and the residual stream before each block, (1, T, C)."""

    name: str
    model: GPT
    vocabulary: Vocabulary
    text: str
    ids: Tensor
    streams: list[Tensor]

    @property
    def blocks(self) -> list[Block]:
        """The model's blocks."""
        return [block for block in self.model.blocks if isinstance(block, Block)]

    @property
    def inputs(self) -> list[Tensor]:
        """The input of each attention: the normalised residual stream, (1, T, C) each."""
        return [block.attention_norm(x) for block, x in zip(self.blocks, self.streams, strict=True)]

    def heads(self) -> Iterator[tuple[CausalSelfAttention, Tensor, Tensor, Tensor]]:
        """For each layer: its attention, queries and keys (1, H, T, hs) and values (1, H, T, vs).

        The queries are times `attention_scale`: the scores are q k / sqrt(hs), as in the lessons.
        """
        for block, x in zip(self.blocks, self.inputs, strict=True):
            q, k, v = block.attention.heads(x)
            yield block.attention, self.model.config.attention_scale * q, k, v

    def names(self) -> tuple[list[str], list[str]]:
        """Labels of a table with a row for each layer and a column for each head."""
        config = self.model.config
        rows = [f"layer {layer + 1}" for layer in range(config.n_layer)]
        return rows, [f"head {head + 1}" for head in range(config.n_head)]

    def introduction(self) -> str:
        """A sentence that introduces the model and the text."""
        return (
            f"The same in the trained model {self.name}, on {len(self.text)} characters that it "
            f"generated, beginning with {self.text[:40]!r}."
        )


@torch.no_grad()
def trained_model(name: str, model: GPT, vocabulary: Vocabulary, seed: int) -> Trained:
    """Generate T characters, and record the residual stream before each block on them."""
    text = generate_text(model, vocabulary, length=model.config.T, seed=seed)
    ids = to_torch(vocabulary.encode(text)).unsqueeze(0)
    streams: list[Tensor] = []
    hooks = [
        block.register_forward_pre_hook(lambda _block, inputs: streams.append(inputs[0]))
        for block in model.blocks
    ]
    model(ids)
    for hook in hooks:
        hook.remove()
    return Trained(name, model, vocabulary, text, ids, streams)
