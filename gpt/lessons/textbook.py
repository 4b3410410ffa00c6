"""The textbook GPT, made of earlier lessons' code. Its architecture is that of config `classic`."""

import torch
from torch import Tensor, nn

from gpt.config.load import load_config
from gpt.lessons.block import PreNormBlock
from gpt.lessons.lesson_page import Page
from gpt.lessons.positions import add_positions
from gpt.lessons.trained import Trained
from gpt.model.transformer import GPT, count_parameters, cross_entropy


class Textbook(nn.Module):
    """The textbook GPT: embeddings, blocks, a last LayerNorm, and a head that predicts V logits."""

    def __init__(self, V: int, T: int, C: int, n_layer: int, n_head: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(V, C)
        self.position_embedding = nn.Embedding(T, C)
        blocks = [PreNormBlock(T, C, n_head) for _ in range(n_layer)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(C)
        self.head = nn.Linear(C, V, bias=False)
        self.draw_weights()

    def draw_weights(self) -> None:
        """Draw the weights as config `classic` does. The first predictions are uniform."""
        zero = ("projection.weight", "head.weight", "bias")
        for name, p in self.named_parameters():
            if name.endswith(zero):
                nn.init.zeros_(p)
            elif "embedding" in name:  # variance 1/4 each
                nn.init.normal_(p, std=0.5)
            elif p.ndim == 2:  # outputs have variance 1/2
                nn.init.normal_(p, std=(0.5 / p.shape[1]) ** 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, t), for any t up to T, to logits (B, t, V)."""
        x = self.token_embedding(ids)  # (B, t, C)
        x = add_positions(x, self.position_embedding.weight)
        x = self.norm(self.blocks(x))  # (B, t, C)
        return self.head(x)  # (B, t, V)


def with_weights_of(model: GPT) -> Textbook:
    """Return a `Textbook` with the weights of `model`. The config of `model` must be `classic`."""
    config = model.config
    book = Textbook(model.head.out_features, config.T, config.C, config.n_layer, config.n_head)
    book.load_state_dict(model.state_dict())
    return book


def draw_zeros(model: GPT) -> None:
    """Replace parameters that are all zero by random numbers, so that each affects the logits."""
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)


def example(seed: int) -> tuple[Tensor, GPT]:
    """Return random ids (2, 8), and a random model of config `classic` for 11 characters."""
    torch.manual_seed(seed)
    model = GPT(load_config("classic").model, 11).eval()
    draw_zeros(model)
    return torch.randint(11, (2, 8)), model


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    ids, model = example(seed)
    book = with_weights_of(model)
    logits = book(ids)
    B, T, V = logits.shape
    C, n_layer = model.config.C, model.config.n_layer
    page.section("From ids to logits")
    page.paragraph("""A character's id selects a row of a table, its **token embedding** (a token
        here is a character). Its position selects a row of another table. Their sum begins the
        residual stream, which runs through the blocks and a last LayerNorm. The model's **head** (a
        matrix, not a head of attention) turns each position's C channels into V **logits**, one for
        each character that could be next. Softmax turns them into probabilities. That is a GPT, as
        in GPT-2 and in this project's config `classic`:""")
    page.source(Textbook)
    page.drawing(
        f"shapes: B = {B} texts of T = {T}, C = {C}, V = {V} characters",
        [
            f"ids                     (B, T)     ({B}, {T})",
            f"token and position      (B, T, C)  ({B}, {T}, {C})",
            f"{n_layer} blocks and LayerNorm  (B, T, C)  ({B}, {T}, {C})",
            f"head: logits            (B, T, V)  ({B}, {T}, {V})",
        ],
    )
    claim = "with copied weights: these logits = the production model's"
    page.check(claim, logits, model(ids))
    page.section("The loss")
    page.paragraph("""The **loss** is the **cross-entropy**. It is minus the logarithm of the
        probability that was predicted for the actual next character, averaged over all positions.
        Untrained it is about ln V; training minimises it. Its exponential is the **perplexity**: a
        model with perplexity 5 is as unsure as if it guessed among 5 equally likely characters.""")
    page.formula("cross-entropy", "loss = -mean of log softmax(logits[t])[id of character t + 1]")
    by_hand = -logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).mean()
    loss = _add_loss(page, "the first texts", logits, ids)
    page.check("the formula = the loss that training minimises", by_hand, loss)
    page.paragraph("""GPT-2 differs in two points. Its queries, keys and values have biases
        (model.qkv_bias), and its token embedding is also its head (weight tying, arXiv:1608.05859).
        The lesson `recipe` explains what this project changes.""")
    earlier = ids.clone()
    earlier[:, 0] = (ids[:, 0] + 1) % V
    with_blocks = (logits - book(earlier))[:, -1].abs().max()
    book.blocks = nn.Sequential()
    without = (book(ids) - book(earlier))[:, -1].abs().max()
    page.exercise(
        """In Textbook.forward write self.norm(x) for self.norm(self.blocks(x)). What does the
        prediction at a position still depend on?""",
        f"""On that character and its position only: a bigram model that has positions. Change the
        first character: the last position's logits change by {without:.0f} without blocks, and by
        {with_blocks:.4f} with them. The first check fails.""",
    )


def _add_loss(page: Page, caption: str, logits: Tensor, ids: Tensor) -> Tensor:
    """Add a table of the loss of logits (B, T, V) on ids (B, T); return the loss."""
    loss = cross_entropy(logits[:, :-1], ids[:, 1:])
    numbers = torch.stack([loss, torch.tensor(logits.shape[-1]).log(), loss.exp()])
    page.table(caption, numbers, columns=["loss", "ln V", "perplexity"])
    return loss


def explain_trained(page: Page, trained: Trained) -> None:
    """Show the trained model's prediction after the text, its loss and parameter counts."""
    logits = trained.model(trained.ids)
    probabilities = logits[0, -1].softmax(-1)
    likely, columns = trained.likeliest(probabilities)
    page.table("the likeliest characters after the text", probabilities[likely], columns=columns)
    if trained.ids.shape[1] > 1:
        _add_loss(page, "this text", logits, trained.ids)
    counts = count_parameters(trained.model)
    page.table("number of parameters", list(counts.values()), columns=list(counts))
