"""The textbook GPT: all lessons so far in one function, equal to the production model.

It is what `configs/classic.yaml` trains: the shape of GPT-2 (Radford et al. 2019, section 2.3).
"""

import torch
from torch import Tensor

from gpt.config.load import load_config
from gpt.config.schema import ModelConfig
from gpt.lessons import block, normalization
from gpt.lessons.page import Page
from gpt.lessons.positions import add_positions
from gpt.lessons.trained import Trained
from gpt.model.transformer import GPT, count_parameters, cross_entropy
from gpt.text.display import symbol

TEXTBOOK = {
    "positions": "learned",
    "qk_norm": False,
    "activation": "gelu",
    "ngram": 1,
    "attention_scale": 1.0,
    "key_offset": False,
}  # the settings of a textbook GPT, whatever its size


def textbook(model: GPT, ids: Tensor) -> Tensor:
    """(B, T) ids -> (B, T, V) logits, with the weights of a production model of TEXTBOOK shape."""
    weights: dict[str, Tensor] = model.state_dict()
    x = weights["token_embedding.weight"][ids]  # (B, T, C)
    x = add_positions(x, weights["position_embedding.weight"])
    for layer in block.stack(model):
        x = layer(x)
    x = normalization.take_apart(model.norm)(x)
    return x @ weights["head.weight"].T  # (B, T, V)


def example(seed: int) -> tuple[Tensor, GPT]:
    """Ids (2, 8) of 11 characters, and classic's model, its zero parameters drawn too."""
    torch.manual_seed(seed)
    model = GPT(load_config("classic").model, 11).eval()
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    return torch.randint(11, (2, 8)), model


def explain(page: Page, seed: int, trained: Trained | None) -> None:
    """Write the page."""
    ids, model = example(seed)
    logits = textbook(model, ids)
    B, T, V = logits.shape
    C, n_layer = model.config.C, model.config.n_layer
    page.paragraph(
        """A character's id selects a row of a table, its **token embedding** (a token here is a
        character); its position selects a row of another. Their sum begins the residual stream,
        which runs through the blocks and a last LayerNorm. The model's **head** (a matrix, not a
        head of attention) turns each position's C channels into V **logits**, one for each
        character that could be next; softmax makes probabilities of them. That is a GPT, as in
        GPT-2 and in this project's config classic:"""
    )
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
    page.check(
        "the textbook's logits = those of the production model that classic trains",
        logits,
        model(ids),
    )
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
        [f"t={t}" for t in range(T)],
        [f"id {i}" for i in range(V)],
    )
    page.paragraph(
        """The **loss** is the **cross-entropy**: minus the logarithm of the probability that was
        predicted for the actual next character, averaged over all positions at once. Untrained it
        is about ln V; training minimises it. Its exponential is the **perplexity**: among how many
        equally likely characters the model might as well be guessing."""
    )
    page.formula("cross-entropy", "loss = -mean of log softmax(logits[t])[id of character t + 1]")
    loss = cross_entropy(logits[:, :-1], ids[:, 1:])
    by_hand = -logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).mean()
    page.check("the formula = the loss that training minimises", by_hand, loss)
    page.table(
        "the first texts",
        torch.stack([loss, torch.tensor(V).log(), loss.exp()]),
        columns=["loss", "ln V", "perplexity"],
    )
    page.paragraph(
        """GPT-2 differs in little: queries, keys and values have biases (model.qkv_bias), and the
        token embedding is also the head (weight tying, arXiv:1608.05859). How this project starts
        and trains its models, and what its own default changes, is the lesson recipe."""
    )
    if trained is not None:
        explain_trained(page, trained)
    earlier = ids.clone()
    earlier[:, 0] = (ids[:, 0] + 1) % V
    with_blocks = logits[:, -1] - textbook(model, earlier)[:, -1]
    model.blocks = torch.nn.ModuleList()
    without = textbook(model, ids)[:, -1] - textbook(model, earlier)[:, -1]
    page.exercise(
        """In textbook leave out the two lines of the loop over the blocks. On what can the
        prediction at a position still depend?""",
        f"""On that character and its position only: a bigram model that knows where it is. Change
        the first character: the last position's logits change by {float(without.abs().max()):.0f}
        without blocks, and by {float(with_blocks.abs().max()):.4f} with them. The first check
        fails: the production model has its blocks.""",
    )


def explain_trained(page: Page, trained: Trained) -> None:
    """A trained model's loss on its text, and its parameters."""
    config, counts = trained.model.config, count_parameters(trained.model)
    trained.introduce(page)
    logits = trained.model(trained.ids)
    if is_textbook(config):
        page.check(
            "the textbook's logits = the trained model's",
            textbook(trained.model, trained.ids),
            logits,
        )
    else:
        page.paragraph(
            f"""{trained.name} is no textbook GPT: {
                ", ".join(
                    f"model.{key} is {getattr(config, key)}"
                    for key, value in TEXTBOOK.items()
                    if getattr(config, key) != value
                )
            }. The lesson recipe computes it by hand, too."""
        )
    likely = logits[0, -1].softmax(-1).topk(min(6, logits.shape[-1]))
    page.table(
        "the likeliest characters after the text",
        likely.values,
        columns=[symbol(trained.vocabulary.names[i]) for i in likely.indices],
    )
    if trained.ids.shape[1] > 1:
        loss = cross_entropy(logits[:, :-1], trained.ids[:, 1:])
        V = torch.tensor(logits.shape[-1])
        page.table(
            "this text",
            torch.stack([loss, V.log(), loss.exp()]),
            columns=["loss", "ln V", "perplexity"],
        )
    page.table("number of parameters", list(counts.values()), columns=list(counts))


def is_textbook(config: ModelConfig) -> bool:
    """Whether `textbook` computes a model of this config."""
    return all(getattr(config, key) == value for key, value in TEXTBOOK.items())
