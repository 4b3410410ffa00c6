"""The textbook GPT: earlier lessons' code in one function, with the same logits as class `GPT`.

`configs/classic.yaml` trains this architecture. It is GPT-2's (Radford et al. 2019, section 2.3).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.config.load import load_config
from gpt.evaluation.attention_weights import blocks_of
from gpt.lessons.block import pre_norm_block
from gpt.lessons.lesson_page import Page
from gpt.lessons.positions import add_positions
from gpt.lessons.trained import Trained
from gpt.model.transformer import GPT, count_parameters, cross_entropy


def textbook(model: GPT, ids: Tensor) -> Tensor:
    """Compute logits (B, T, V) of ids (B, T); `model` must have the config `classic`."""
    weights: dict[str, Tensor] = model.state_dict()
    x = weights["token_embedding.weight"][ids]  # (B, T, C)
    x = add_positions(x, weights["position_embedding.weight"])
    for block in blocks_of(model):
        x = pre_norm_block(x, block)
    x = F.layer_norm(x, x.shape[-1:], weights["norm.weight"], weights["norm.bias"])
    return x @ weights["head.weight"].T  # (B, T, V)


def draw_zeros(model: GPT) -> None:
    """Randomise the parameters that are zero in a new model, so that each has an effect."""
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)


def example(seed: int) -> tuple[Tensor, GPT]:
    """Return random ids (2, 8) and a random model of config `classic` with vocabulary size 11."""
    torch.manual_seed(seed)
    model = GPT(load_config("classic").model, 11).eval()
    draw_zeros(model)
    return torch.randint(11, (2, 8)), model


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    ids, model = example(seed)
    logits = textbook(model, ids)
    B, T, V = logits.shape
    C, n_layer = model.config.C, model.config.n_layer
    page.paragraph("""A character's id selects a row of a table, its **token embedding** (a token
        here is a character). Its position selects a row of another table. Their sum begins the
        residual stream, which runs through the blocks and a last LayerNorm. The model's **head** (a
        matrix, not a head of attention) turns each position's C channels into V **logits**, one for
        each character that could be next. Softmax turns them into probabilities. That is a GPT, as
        in GPT-2 and in this project's config classic:""")
    page.source(textbook)
    page.drawing(
        f"shapes: B = {B} texts of T = {T}, C = {C}, V = {V} characters",
        [
            f"ids                     (B, T)     ({B}, {T})",
            f"token and position      (B, T, C)  ({B}, {T}, {C})",
            f"{n_layer} blocks and LayerNorm  (B, T, C)  ({B}, {T}, {C})",
            f"head: logits            (B, T, V)  ({B}, {T}, {V})",
        ],
    )
    claim = "the textbook's logits = those of the production model that classic trains"
    page.check(claim, logits, model(ids))
    page.paragraph("""The **loss** is the **cross-entropy**. It is minus the logarithm of the
        probability that was predicted for the actual next character, averaged over all positions.
        Untrained it is about ln V; training minimises it. Its exponential is the **perplexity**: a
        model with perplexity 5 is as unsure as if it guessed among 5 equally likely characters.""")
    page.formula("cross-entropy", "loss = -mean of log softmax(logits[t])[id of character t + 1]")
    by_hand = -logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).mean()
    loss = _show_loss(page, "the first texts", logits, ids)
    page.check("the formula = the loss that training minimises", by_hand, loss)
    page.paragraph("""GPT-2 differs in two points. Its queries, keys and values have biases
        (model.qkv_bias), and its token embedding is also its head (weight tying, arXiv:1608.05859).
        The lesson recipe explains what this project changes.""")
    earlier = ids.clone()
    earlier[:, 0] = (ids[:, 0] + 1) % V
    with_blocks = (logits - textbook(model, earlier))[:, -1].abs().max()
    model.blocks = torch.nn.ModuleList()
    without = (textbook(model, ids) - textbook(model, earlier))[:, -1].abs().max()
    page.exercise(
        """In textbook leave out the two lines of the loop over the blocks. What does the
        prediction at a position still depend on?""",
        f"""On that character and its position only: a bigram model that has positions. Change the
        first character: the last position's logits change by {without:.0f} without blocks, and by
        {with_blocks:.4f} with them. The first check fails.""",
    )


def _show_loss(page: Page, caption: str, logits: Tensor, ids: Tensor) -> Tensor:
    """Return the loss of logits (B, T, V) on ids (B, T), after adding it to the page."""
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
        _show_loss(page, "this text", logits, trained.ids)
    counts = count_parameters(trained.model)
    page.table("number of parameters", list(counts.values()), columns=list(counts))
