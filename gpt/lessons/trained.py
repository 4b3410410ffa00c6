"""A trained model and its activations on a text: one that it generated, or the learner's own."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.errors import UsageError
from gpt.evaluation.attention_weights import blocks_of, run_with_streams
from gpt.lessons.page import Page
from gpt.model.attention import CausalSelfAttention
from gpt.model.ensemble import LanguageModel, members_of
from gpt.model.transformer import GPT, Block
from gpt.sampling.generate import generate_text
from gpt.sampling.prompt import check_known
from gpt.text.batches import to_torch
from gpt.text.vocabulary import Vocabulary

MAX_CHARACTERS = 256  # of a text in a lesson: a stranger's model.T may be any size


@dataclass(frozen=True)
class Trained:
    """A model, a text of T characters, and the residual stream before each block, (1, T, C).

    Of a model of bytes, T is their number.
    """

    name: str
    model: GPT
    vocabulary: Vocabulary
    text: str
    generated: bool
    ids: Tensor
    streams: list[Tensor]

    @property
    def characters(self) -> list[str]:
        """What each of the T ids is called."""
        return self.vocabulary.names_of(self.ids[0].tolist())

    @property
    def blocks(self) -> list[Block]:
        """The model's blocks."""
        return blocks_of(self.model)

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

    def introduce(self, page: Page) -> None:
        """Add a sentence that introduces the model and the text."""
        quoted = self.text if len(self.text) <= 40 else f"{self.text[:40]}..."
        origin = "that it generated" if self.generated else "of yours"
        page.verbatim(
            f"The same in the trained model {self.name}, on {len(self.characters)} "
            f"{self.vocabulary.unit}s {origin}: {quoted!r}."
        )


@torch.no_grad()
def trained_model(
    name: str, model: LanguageModel, vocabulary: Vocabulary, seed: int, text: str | None = None
) -> Trained:
    """Record the residual stream before each block on a text, by default one that is generated.

    The text has at most T characters (of a model of bytes: bytes), and at most `MAX_CHARACTERS`.
    Of an ensemble, the lessons look into the first member, and its name says so.

    Raises:
        UsageError: the text is empty, too long, or has characters outside the vocabulary.
    """
    first, *others = members_of(model)
    if others:
        name = f"{name} (member 1 of {1 + len(others)})"
    longest = min(first.config.T, MAX_CHARACTERS)
    generated = text is None
    if text is None:
        text = generate_text(first, vocabulary, length=longest, seed=seed)
        ids = to_torch(vocabulary.encode(text)[:longest])
        text = vocabulary.decode(ids.tolist())
    else:
        check_known(text, vocabulary)
        ids = to_torch(vocabulary.encode(text))
    if not 0 < len(ids) <= longest:
        raise UsageError(f"--text: expected 1 to {longest} {vocabulary.unit}s, got {len(ids)}")
    _, streams = run_with_streams(first, ids)
    before_blocks = streams[:-1]  # the last is the head's
    return Trained(name, first, vocabulary, text, generated, ids[None], before_blocks)
