"""The textbook GPT: all lessons so far in one function, equal to the production model.

`configs/classic.yaml` trains it: the shape of GPT-2 (Radford et al. 2019, section 2.3).
"""

import torch
from torch import Tensor

from gpt.config.load import load_config
from gpt.config.schema import ModelConfig
from gpt.lessons import block, normalization
from gpt.lessons.lesson_page import Page, names
from gpt.lessons.positions import add_positions
from gpt.lessons.trained import Trained
from gpt.model.transformer import GPT, count_parameters, cross_entropy
from gpt.text.display import symbol

TEXTBOOK = {  # the settings of a textbook GPT, whatever its size
    "positions": "learned",
    "qk_norm": False,
    "activation": "gelu",
    "ngram": 1,
    "attention_scale": 1.0,
    "key_offset": False,
}


def textbook(model: GPT, ids: Tensor) -> Tensor:
    """(B, T) ids -> (B, T, V) logits, with the weights of a production model of TEXTBOOK shape."""
    weights: dict[str, Tensor] = model.state_dict()
    x = weights["token_embedding.weight"][ids]  # (B, T, C)
    x = add_positions(x, weights["position_embedding.weight"])
    for layer in block.stack(model):
        x = layer(x)
    x = normalization.take_apart(model.norm)(x)
    return x @ weights["head.weight"].T  # (B, T, V)


def is_textbook(config: ModelConfig) -> bool:
    """Return whether `textbook` can compute a model of this config."""
    return all(getattr(config, key) == value for key, value in TEXTBOOK.items())


def draw_zeros(model: GPT) -> None:
    """Draw the parameters that are zero in a new model, so that each part has an effect."""
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)


def example(seed: int) -> tuple[Tensor, GPT]:
    """Draw ids (2, 8) of 11 characters, and the model of classic."""
    torch.manual_seed(seed)
    model = GPT(load_config("classic").model, 11).eval()
    draw_zeros(model)
    return torch.randint(11, (2, 8)), model


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
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
        f"shapes, here and in classic: B = {B} texts of T = {T}, C = {C}, V = {V} characters",
        [
            f"ids                     (B, T)     ({B}, {T})",
            f"token and position      (B, T, C)  ({B}, {T}, {C})",
            f"{n_layer} blocks and LayerNorm  (B, T, C)  ({B}, {T}, {C})",
            f"head: logits            (B, T, V)  ({B}, {T}, {V})",
        ],
    )
    claim = "the textbook's logits = those of the production model that classic trains"
    page.check(claim, logits, model(ids))
    changed = ids.clone()
    changed[:, 5:] = (ids[:, 5:] + 1) % V
    page.check(
        "causal: logits up to t=4 = the same with all later characters changed",
        logits[:, :5],
        textbook(model, changed)[:, :5],
    )
    page.table(
        "predicted probabilities of the next character, first text, untrained: all about 1 / V",
        logits[0].softmax(-1),
        names("t", T),
        [f"id {i}" for i in range(V)],
    )
    page.paragraph("""The **loss** is the **cross-entropy**. It is minus the logarithm of the
        probability that was predicted for the actual next character, averaged over all positions.
        Untrained it is about ln V; training minimises it. Its exponential is the **perplexity**: a
        model with perplexity 5 is as unsure as if it guessed among 5 equally likely characters.""")
    page.formula("cross-entropy", "loss = -mean of log softmax(logits[t])[id of character t + 1]")
    loss = cross_entropy(logits[:, :-1], ids[:, 1:])
    by_hand = -logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).mean()
    page.check("the formula = the loss that training minimises", by_hand, loss)
    _show_loss(page, "the first texts", loss, V)
    page.paragraph("""GPT-2 differs in two points. Its queries, keys and values have biases
        (model.qkv_bias), and its token embedding is also its head (weight tying, arXiv:1608.05859).
        How this project starts and trains its models, and what its own default changes, is the
        lesson recipe.""")
    if trained is not None:
        _explain_trained(page, trained)
    earlier = ids.clone()
    earlier[:, 0] = (ids[:, 0] + 1) % V
    with_blocks = logits[:, -1] - textbook(model, earlier)[:, -1]
    model.blocks = torch.nn.ModuleList()
    without = textbook(model, ids)[:, -1] - textbook(model, earlier)[:, -1]
    page.exercise(
        """In textbook leave out the two lines of the loop over the blocks. On what can the
        prediction at a position still depend?""",
        f"""On that character and its position only: a bigram model that has positions. Change
        the first character: the last position's logits change by {float(without.abs().max()):.0f}
        without blocks, and by {float(with_blocks.abs().max()):.4f} with them. The first check
        fails: the production model has its blocks.""",
    )


def _show_loss(page: Page, caption: str, loss: Tensor, V: int) -> None:
    numbers = torch.stack([loss, torch.tensor(V).log(), loss.exp()])
    page.table(caption, numbers, columns=["loss", "ln V", "perplexity"])


def _explain_trained(page: Page, trained: Trained) -> None:
    """Show a trained model's prediction, its loss on the text, and its parameters."""
    config = trained.model.config
    trained.introduce(page)
    logits = trained.model(trained.ids)
    if is_textbook(config):
        by_hand = textbook(trained.model, trained.ids)
        page.check("the textbook's logits = the trained model's", by_hand, logits)
    else:
        other = {key: getattr(config, key) for key in TEXTBOOK}
        other = {key: value for key, value in other.items() if value != TEXTBOOK[key]}
        listed = ", ".join(f"model.{key} is {value}" for key, value in other.items())
        page.paragraph(f"""{trained.name} is no textbook GPT: {listed}. The lesson recipe computes
            it by hand, too.""")
    likely = logits[0, -1].softmax(-1).topk(min(6, logits.shape[-1]))
    columns = [symbol(trained.vocabulary.names[i]) for i in likely.indices]
    page.table("the likeliest characters after the text", likely.values, columns=columns)
    if trained.ids.shape[1] > 1:
        loss = cross_entropy(logits[:, :-1], trained.ids[:, 1:])
        _show_loss(page, "this text", loss, logits.shape[-1])
    counts = count_parameters(trained.model)
    page.table("number of parameters", list(counts.values()), columns=list(counts))
