"""The losses of a model on consecutive blocks of a text, to compare models block by block."""

import hashlib

import numpy as np

from gpt.counts.mixture import Mixture
from gpt.evaluation.bootstrap import BlockSums
from gpt.evaluation.characters import spread_slices
from gpt.evaluation.reference_losses import utf8_of
from gpt.evaluation.scored_text import ScoredText
from gpt.evaluation.scores import score_text
from gpt.model.ensemble import LanguageModel


def block_losses(
    model: LanguageModel, text: ScoredText, mixture: Mixture | None = None
) -> tuple[BlockSums, float]:
    """Score `text`, and sum the losses in blocks of characters.

    All bytes of a character are in one block, so models of bytes and of characters have the same
    blocks.

    Args:
        model: the network, which is set to evaluation mode.
        text: the text.
        mixture: n-gram counts to mix the network's predictions with.

    Returns:
        The sums in nats, and the mean loss in nats per character.
    """
    blocks, begun = BlockSums(text.units.characters), 0
    for scores in score_text(model, text.ids, text.vocabulary, mixture=mixture):
        ids = text.ids[scores.start : scores.start + len(scores.losses)]
        begins = (ids & 0xC0) != 0x80 if text.vocabulary.is_bytes else np.ones(len(ids), bool)
        characters = begun + np.cumsum(begins)  # number of characters begun after each id
        blocks.add(characters - 1, scores.losses)
        begun = int(characters[-1])
    return blocks, float(blocks.sums.sum()) / text.units.characters


def text_sha256(text: ScoredText) -> str:
    """Return a hash of the scored text, which is the same for ids of characters and of bytes.

    If the vocabulary lacks some characters of the text, the hash differs, because all of these have
    the same id.
    """
    digest = hashlib.sha256()
    for part in spread_slices(len(text.ids) - 1, len(text.ids)):
        digest.update(utf8_of(text.ids[1:][part], text.vocabulary))
    return digest.hexdigest()
