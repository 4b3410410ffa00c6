"""Training: three small models of growing size, trained while the page is built.

Shapes: B batch, T time, C channels, V vocabulary size.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.device import computing_with
from gpt.lessons.block import textbook_block
from gpt.lessons.head import Head
from gpt.lessons.lesson_page import Page
from gpt.lessons.positions import add_positions
from gpt.lessons.trained import Trained
from gpt.model.transformer import cross_entropy
from gpt.text.batches import batch, spread_windows, to_torch
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.display import in_one_line
from gpt.text.sources import open_source
from gpt.text.vocabulary import Ids
from gpt.training.optimizer import AdamW

T, C, BATCH_SIZE, STEPS = 16, 64, 32, 300  # C channels; BATCH_SIZE windows per step
BIGRAM_RATE, RATE = 0.1, 0.01  # learning rates
SCORED_CHARACTERS = 8192  # characters of the val split whose loss is measured
SAMPLE_CHARACTERS = 64  # characters of a sample
MAX_CONTEXT = 64  # longest context in the table of losses, in characters


class Bigram(nn.Module):
    """Bigram model: a table (V, V) whose row i has the logits of the character after id i."""

    def __init__(self, V: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(V, V))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        return F.embedding(ids, self.table)


class OneHead(nn.Module):
    """Model with one head of attention, whose output is added to the embeddings."""

    def __init__(self, V: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, C), nn.Embedding(T, C)
        self.head = Head(C, C)
        self.output = nn.Parameter(torch.zeros(V, C))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        x = add_positions(self.tokens(ids), self.positions.weight)  # (B, T, C)
        x = x + self.head(x)[0]
        return F.linear(x, self.output)


class OneBlock(nn.Module):
    """Model with token and position embeddings, one textbook block and a last LayerNorm."""

    def __init__(self, V: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, C), nn.Embedding(T, C)
        self.block, self.norm = textbook_block(T, C), nn.LayerNorm(C)
        self.output = nn.Parameter(torch.zeros(V, C))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        x = add_positions(self.tokens(ids), self.positions.weight)  # (B, T, C)
        return F.linear(self.norm(self.block(x)), self.output)


def fit(model: nn.Module, ids: Ids, rate: float, seed: int) -> None:
    """Train `model` on the text `ids`, for `STEPS` steps, at the learning rate `rate`."""
    optimizer = AdamW([*model.parameters()], rate, (0.9, 0.99), 0.0)
    for step in range(STEPS):
        x, y = batch(ids, BATCH_SIZE, T, seed=seed, step=step)  # (B, T)
        loss = cross_entropy(model(x), y)
        for parameter in optimizer.parameters:
            # else the gradients of all steps add up
            parameter.grad = torch.zeros_like(parameter)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(1 - step / STEPS)  # fraction of the learning rate


@torch.no_grad()
def evaluate(model: nn.Module, ids: Ids) -> float:
    """Return the mean loss in nats on about `SCORED_CHARACTERS` characters, spread over `ids`."""
    windows = spread_windows(ids, T, SCORED_CHARACTERS)
    losses = [cross_entropy(model(x), y, reduction="none") for x, y in windows]
    return float(torch.cat(losses).mean())


def sample(model: nn.Module, first: int, seed: int) -> list[int]:
    """Return `SAMPLE_CHARACTERS` ids after the id `first`, drawn from the model's predictions."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.tensor([[first]])
    for _ in range(SAMPLE_CHARACTERS):
        probabilities = model(ids[:, -T:])[:, -1].softmax(-1)  # (1, V)
        ids = torch.cat([ids, probabilities.multinomial(1, generator=generator)], dim=1)
    return ids[0, 1:].tolist()


def count_bigrams(ids: Ids, V: int) -> Bigram:
    """Return the bigram model that fits the text `ids` best, computed by counting pairs.

    0.01 is added to each count, so that no pair is impossible.
    """
    text = to_torch(ids)
    counts = (text[:-1] * V + text[1:]).bincount(minlength=V * V)
    model = Bigram(V)
    model.table.data = (counts.view(V, V) + 0.01).log()
    return model


def train(model: nn.Module, corpus: Corpus, rate: float, seed: int) -> list[float]:
    """Train a model; return [val loss before, val loss after, val perplexity after]."""
    before = evaluate(model, corpus.val)
    with torch.enable_grad():
        fit(model, corpus.train, rate, seed)
    after = evaluate(model, corpus.val)
    return [before, after, math.exp(after)]


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    corpus = load_corpus(open_source("python-docs"))
    V, first = len(corpus.vocabulary), int(corpus.val[0])
    page.paragraph(f"""Where do the weights come from? They begin random. Each step of training
        moves them a little way down the gradient of the loss. The text here is python-docs:
        {len(corpus.ids):,} characters, {V} of them distinct. Its first 90 % are the **train split**
        and its last 10 % the **val split**. No step sees the val split, so its loss measures
        what was learned, not what was memorised. A **batch** is B = {BATCH_SIZE} windows of T = {T}
        characters; the targets are the same windows one character later.""")
    page.source(fit)
    page.paragraph("""**Adam** (arXiv:1412.6980) divides each weight's mean gradient by its usual
        size, so that every weight moves by about the **learning rate**. AdamW is Adam
        with decoupled weight decay.
        Three models are trained, each with one part more. A **bigram** model predicts from one
        character, by a table. The second has one head of attention, the third one block of the
        textbook:""")
    page.source(Bigram.forward, OneHead.forward, OneBlock.forward)
    losses, samples = [], dict[str, list[int]]()
    models = {"bigram": Bigram, "one head": OneHead, "one block": OneBlock}
    with computing_with(1):  # in models so small, threads would only wait for each other
        for name, kind in models.items():
            torch.manual_seed(seed)
            model = kind(V)
            samples.setdefault("untrained", sample(model, first, seed))
            losses.append(train(model, corpus, BIGRAM_RATE if kind is Bigram else RATE, seed))
            samples[name] = sample(model, first, seed)
        counted = evaluate(count_bigrams(corpus.train, V), corpus.val)
    page.table(
        f"nats per character of the val split (about {SCORED_CHARACTERS:,} of its characters), "
        f"before and after {STEPS} steps, and perplexity",
        losses,
        [*models],
        ["before", "after", "perplexity"],
    )
    page.drawing(
        "untrained, and trained: each character drawn from the prediction after those before it",
        [
            f"{name:<11}{in_one_line(corpus.vocabulary.decode(samples[name]))}"
            for name in ("untrained", *models)
        ],
    )
    bigram = losses[0][1]
    page.paragraph(f"""Untrained, all begin at ln V = {math.log(V):.4f}: each of the {V} characters
        is equally likely. The best bigram needs no gradient: count how often each character follows
        each. Counted it has a loss of {counted:.4f}; {STEPS} steps come to {bigram:.4f}. What is
        better than that comes from **context**: attention uses the characters before.""")
    claim = "the val loss of the bigram, and of the block"
    page.check_differ(claim, *torch.tensor(losses)[[0, 2], 1])
    page.paragraph("""`gpt train` does the same with more layers, more steps and a faster recipe
        (the lesson recipe). Its loop is in gpt/training/trainer.py, a step in
        gpt/training/step.py.""")
    page.exercise(
        """In OneHead.forward leave out the line x = x + self.head(x)[0]. Which loss in the table
        is the loss after training then close to?""",
        f"""To the bigram's, {bigram:.4f}. A prediction depends on one character again, and on its
        position in the window, which is no help, since windows begin anywhere. The loss is a little
        worse.""",
    )


def explain_trained(page: Page, trained: Trained) -> None:
    """Show the trained model's loss with contexts of different lengths."""
    losses = loss_by_context(trained.model, trained.ids[0])
    if not losses:
        page.paragraph("The text has no next character to predict: give at least two characters.")
        return
    page.paragraph("""How much does context help? The table shows the loss of the text's later
        characters if the model sees only the given number of characters before each. If that is 1,
        the model is a bigram model.""")
    page.table(
        "loss (nats per character) by number of characters that it sees",
        list(losses.values()),
        columns=[str(context) for context in losses],
    )


def loss_by_context(model: nn.Module, ids: Tensor) -> dict[int, float]:
    """Return the mean loss in nats for each context length: 1, 2, 4 and so on.

    The longest context has at most `MAX_CONTEXT` characters, and at most half of the text `ids`.
    All losses are means over the same characters: those after the longest context.
    """
    powers = range(min(len(ids) // 2, MAX_CONTEXT).bit_length())
    losses = {}
    for context in (2**power for power in powers):
        start = 2 ** powers[-1]  # the first character that is predicted
        windows = ids[start - context : -1].unfold(0, context, 1)  # (N - start, context)
        logits = model(windows)[:, -1:]  # (N - start, 1, V)
        losses[context] = float(cross_entropy(logits, ids[start:, None]))
    return losses
