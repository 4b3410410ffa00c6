"""A trained model, a text from the model or the user, and the model's activations on the text."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.errors import UsageError
from gpt.lessons.lesson_page import Page
from gpt.model.attention import CausalSelfAttention
from gpt.model.attention_maps import blocks_of, run_with_streams
from gpt.model.ensemble import LanguageModel, members_of
from gpt.model.transformer import GPT, Block
from gpt.sampling.generate import generate_text
from gpt.text.batches import to_torch
from gpt.text.corpus import Corpus
from gpt.text.display import symbol
from gpt.text.prompt import check_known
from gpt.text.vocabulary import Vocabulary

MAX_CHARACTERS = 256  # length of the longest text of a lesson; model.T may be far larger
QUOTED_CHARACTERS = 40  # largest number of characters of the text that `introduce` quotes


@dataclass(frozen=True)
class Trained:
    """A model, a text of T characters (or bytes), and the model's activations on the text."""

    name: str
    model: GPT
    vocabulary: Vocabulary
    text: str
    origin: str  # where the text is from: "of yours", "of its val split" or "that it generated"
    seed: int
    ids: Tensor  # (1, T)
    streams: list[Tensor]  # the residual stream before each block, (1, T, C)
    corpus: Corpus | None = None  # the text that the model was trained on, if it can be read

    @property
    def characters(self) -> list[str]:
        """Name of each of the T ids: its character, or its byte in a byte model."""
        return self.vocabulary.names_of(self.ids[0].tolist())

    @property
    def blocks(self) -> list[Block]:
        """Blocks of the model, in order."""
        return blocks_of(self.model)

    @property
    def inputs(self) -> list[Tensor]:
        """Input of each layer's attention: the normalised residual stream, (1, T, C)."""
        return [block.attention_norm(x) for block, x in zip(self.blocks, self.streams, strict=True)]

    def heads(self) -> Iterator[tuple[CausalSelfAttention, Tensor, Tensor, Tensor]]:
        """Yield (attention module, q, k, v) of each layer; q, k, v are (1, heads, T, size).

        The queries q are already multiplied by `attention_scale`.
        """
        for block, x in zip(self.blocks, self.inputs, strict=True):
            q, k, v = block.attention.heads(x)
            yield block.attention, self.model.config.attention_scale * q, k, v

    @property
    def layers(self) -> list[str]:
        """Names of the layers in a table: `layer 1` and so on."""
        return [f"layer {layer + 1}" for layer in range(self.model.config.n_layer)]

    @property
    def columns(self) -> list[str]:
        """Names of the heads of a layer in a table: `head 1` and so on."""
        return [f"head {head + 1}" for head in range(self.model.config.n_head)]

    def names_of(self, positions: Tensor) -> list[str]:
        """Return a name for each position: its number and its character, such as `t=3 a`."""
        return [f"t={t} {symbol(self.characters[t])}" for t in positions.tolist()]

    def introduce(self, page: Page) -> None:
        """Add a sentence that introduces the model and the text."""
        quoted = self.text
        if len(quoted) > QUOTED_CHARACTERS:
            quoted = f"{quoted[:QUOTED_CHARACTERS]}..."
        page.verbatim(
            f"The same in the trained model {self.name}, on {len(self.characters)} "
            f"{self.vocabulary.unit}s {self.origin}: {quoted!r}."
        )

    def likeliest(self, probabilities: Tensor) -> tuple[list[int], list[str]]:
        """Return ids and symbols of the six characters with the largest `probabilities` (V,)."""
        ids = probabilities.topk(min(6, len(probabilities))).indices.tolist()
        return ids, [symbol(self.vocabulary.names[id_]) for id_ in ids]


@torch.no_grad()
def trained_model(
    name: str,
    model: LanguageModel,
    vocabulary: Vocabulary,
    seed: int,
    text: str | None = None,
    corpus: Corpus | None = None,
) -> Trained:
    """Run `model` on `text`; return the model, the text, and the residual stream before each block.

    Args:
        name: the name of the run.
        model: the trained model; if it is an ensemble, its first member is used.
        vocabulary: the model's vocabulary.
        seed: seed of the generated text, and of the lessons' random numbers.
        text: at most model.T characters (or bytes), and at most `MAX_CHARACTERS`. Default: the
            start of the val split, or a generated text if there is no corpus.
        corpus: the text that the model was trained on.

    Raises:
        UsageError: the text is empty, too long, or has characters outside the vocabulary.
    """
    first, *others = members_of(model)
    if others:
        name = f"{name} (member 1 of {1 + len(others)})"
    longest = min(first.config.T, MAX_CHARACTERS)
    if text is not None:
        check_known(text, vocabulary)
        chosen, origin = vocabulary.encode(text), "of yours"
    elif corpus is not None:
        chosen, origin = corpus.val[:longest], "of its val split"
    else:
        generated = generate_text(first, vocabulary, length=longest, seed=seed)
        chosen, origin = vocabulary.encode(generated)[:longest], "that it generated"
    ids = to_torch(chosen)
    text = vocabulary.decode(ids.tolist()) if text is None else text
    if not 0 < len(ids) <= longest:
        raise UsageError(f"--text: expected 1 to {longest} {vocabulary.unit}s, got {len(ids)}")
    _, (*streams, _) = run_with_streams(first, ids)  # the last one is after the last block
    return Trained(name, first, vocabulary, text, origin, seed, ids[None], streams, corpus)
