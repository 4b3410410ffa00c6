"""The whole model by hand: all lessons in one function, equal to the production model."""

import torch
from torch import Tensor

from gpt.config.schema import ModelConfig
from gpt.lessons import block, normalization
from gpt.lessons.page import Page
from gpt.lessons.positions import add_positions
from gpt.lessons.trained import Trained
from gpt.model.transformer import GPT, Block, count_parameters, cross_entropy


def by_hand(model: GPT, ids: Tensor) -> Tensor:
    """(B, T) ids -> (B, T, V) logits, with the production model's weights."""
    x = model.token_embedding.weight[ids]  # (B, T, C)
    for distance, table in enumerate(model.ngram_embeddings, start=1):
        assert isinstance(table, torch.nn.Embedding)
        x[:, distance:] += table.weight[ids[:, :-distance]]  # of the character that far before
    if model.position_embedding is not None:
        x = add_positions(x, model.position_embedding.weight)
    for layer in model.blocks:
        assert isinstance(layer, Block)
        x = block.by_hand(layer, x)
    x = normalization.take_apart(model.norm)(x)
    return x @ model.head.weight.T  # (B, T, V)


def example(seed: int) -> tuple[Tensor, GPT]:
    """Ids (2, 8) of 11 characters, and a model of 2 layers, its zero parameters drawn too."""
    torch.manual_seed(seed)
    model = GPT(ModelConfig(T=8, C=16, n_layer=2, n_head=4), 11).eval()
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    return torch.randint(11, (2, 8)), model


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
    ids, model = example(seed)
    logits = by_hand(model, ids)
    page.paragraph(
        """A character's id selects a row of a table: its token embedding. So do the ids of the
        three before it, from tables of their own (n-gram embeddings), and the four rows are added
        up: 'q' after 'e' differs from 'q' after a space. This residual stream runs through the
        blocks and a last LayerNorm; the head, a matrix of V columns, gives V logits at each
        position, one for each character that could be next. Softmax turns them into
        probabilities."""
    )
    page.table(
        "predicted probabilities of the next character, at each position of the first text",
        logits[0].softmax(-1),
        [f"t={t}" for t in range(8)],
        [f"id {i}" for i in range(11)],
    )
    page.check("the model by hand = the production model", logits, model(ids))
    loss = cross_entropy(logits[:, :-1], ids[:, 1:])
    page.paragraph(
        """The loss is the cross-entropy: minus the logarithm of the probability predicted for the
        actual next character, averaged. Untrained it is about ln V, here ln 11 = 2.3979; training
        minimises it."""
    )
    page.table("loss", torch.stack([loss, torch.tensor(11.0).log()]), columns=["loss", "ln V"])
    if trained is not None:
        trained.introduce(page)
        page.check(
            "the model by hand = the trained model",
            by_hand(trained.model, trained.ids),
            trained.model(trained.ids),
            1e-3,
        )
        counts = count_parameters(trained.model)
        page.table("number of parameters", list(counts.values()), columns=list(counts))
