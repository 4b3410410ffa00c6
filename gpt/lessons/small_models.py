"""Training: five small models of growing size, trained while the page is built.

Shapes: B batch, T time, C channels, V vocabulary size.
"""

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.device import computing_with
from gpt.lessons.averaging import by_softmax
from gpt.lessons.block import PreNormBlock
from gpt.lessons.head import Head
from gpt.lessons.heads import FusedHeads
from gpt.lessons.lesson_page import Page
from gpt.lessons.positions import add_positions
from gpt.lessons.trained import Trained
from gpt.model.transformer import cross_entropy
from gpt.text.batches import scored_windows, to_torch
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.display import in_one_line
from gpt.text.sources import open_source
from gpt.text.vocabulary import Ids

T, C, BATCH_SIZE, STEPS = 16, 64, 32, 300  # C channels; BATCH_SIZE windows per step
BIGRAM_RATE, RATE = 0.1, 0.01  # peak learning rates
SCORED_CHARACTERS = 8192  # characters of the val split over which a loss is averaged
SAMPLE_CHARACTERS = 64  # characters of a sample
MEASURED_CHARACTERS = 2048  # characters of the val split in the table of losses by context
MAX_CONTEXT = 64  # longest context in the table of losses, in characters


class Bigram(nn.Module):
    """Bigram model: a table (V, V) whose row i has the logits of the character after id i."""

    def __init__(self, V: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(V, V))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        return F.embedding(ids, self.table)


class Averages(nn.Module):
    """Model that adds the average of the past embeddings to each embedding: a bag of words."""

    def __init__(self, V: int, C: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(V, C)
        self.output = nn.Parameter(torch.zeros(V, C))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        x = self.tokens(ids)  # (B, T, C)
        x = x + by_softmax(x)
        return F.linear(x, self.output)


class OneHead(nn.Module):
    """Model with one head of attention, whose output is added to the embeddings."""

    def __init__(self, V: int, T: int, C: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(V, C)
        self.positions = nn.Embedding(T, C)
        self.head = Head(C, C)
        self.output = nn.Parameter(torch.zeros(V, C))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        x = add_positions(self.tokens(ids), self.positions.weight)
        x = x + self.head(x)[0]  # (B, T, C)
        return F.linear(x, self.output)


class ManyHeads(nn.Module):
    """Model with four heads of attention, whose projected outputs are added to the embeddings."""

    def __init__(self, V: int, T: int, C: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(V, C)
        self.positions = nn.Embedding(T, C)
        self.heads = FusedHeads(C, 4, C // 4, C // 4, T)
        self.output = nn.Parameter(torch.zeros(V, C))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        x = add_positions(self.tokens(ids), self.positions.weight)
        x = x + self.heads(x)  # (B, T, C)
        return F.linear(x, self.output)


class OneBlock(nn.Module):
    """Model with token and position embeddings, one textbook block and a last LayerNorm."""

    def __init__(self, V: int, T: int, C: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(V, C)
        self.positions = nn.Embedding(T, C)
        self.block = PreNormBlock(T, C, n_head=4)
        self.norm = nn.LayerNorm(C)
        self.output = nn.Parameter(torch.zeros(V, C))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        x = add_positions(self.tokens(ids), self.positions.weight)
        x = self.norm(self.block(x))  # (B, T, C)
        return F.linear(x, self.output)


class Adam:
    """Adam (arXiv:1412.6980): step by -rate * mean(g) / sqrt(mean(g^2)) for recent gradients g."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.steps, self.parameters = 0, list(parameters)
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update all parameters with the learning rate `rate`, then clear their gradients."""
        self.steps += 1
        for i, p in enumerate(self.parameters):
            if p.grad is None:  # the loss does not depend on it
                continue
            mean, square = self.means[i], self.squares[i]
            mean.lerp_(p.grad, 0.1)  # 0.9 of the old mean
            square.lerp_(p.grad**2, 0.01)
            # both begin at 0, so they are too small in the first steps
            m = mean / (1 - 0.9**self.steps)
            s = square / (1 - 0.99**self.steps)
            p.sub_(rate * m / (s.sqrt() + 1e-8))
            p.grad = None  # else the gradients of all steps add up


def draw_batch(ids: Tensor, B: int, T: int) -> tuple[Tensor, Tensor]:
    """Draw B random windows of `ids`; return inputs (B, T) and targets (B, T), the next ids."""
    starts = torch.randint(len(ids) - T, (B, 1))
    windows = ids[starts + torch.arange(T + 1)]  # (B, T + 1)
    return windows[:, :-1], windows[:, 1:]


def fit(model: nn.Module, ids: Tensor, shape: tuple[int, int], steps: int, rate: float) -> None:
    """Train `model` on a text by Adam.

    Args:
        model: maps ids (B, T) to logits (B, T, V).
        ids: the ids of the text.
        shape: (B, T), the shape of a batch.
        steps: the number of steps.
        rate: the peak learning rate. It is reached after the first steps; then the rate falls to 0.
    """
    adam, warmup = Adam(model.parameters()), min(100, steps // 10)
    for step in range(steps):
        x, y = draw_batch(ids, *shape)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        done = step / steps
        adam.step(rate * min((step + 1) / (warmup + 1), 1 - done))


@torch.no_grad()
def sample(model: nn.Module, ids: Tensor, count: int, T: int) -> Tensor:
    """Append `count` ids to ids (1, t). Draw each from the prediction after the last `T` ids."""
    for _ in range(count):
        logits = model(ids[:, -T:])[:, -1]  # (1, V)
        drawn = logits.softmax(-1).multinomial(1)
        ids = torch.cat([ids, drawn], dim=1)
    return ids


@torch.no_grad()
def evaluate(model: nn.Module, ids: Ids) -> float:
    """Return the loss (nats per id) on about `SCORED_CHARACTERS` ids, spread evenly over `ids`."""
    windows = scored_windows(ids, T, SCORED_CHARACTERS)
    losses = [cross_entropy(model(x), y, reduction="none") for x, y in windows]
    return float(torch.cat(losses).mean())


def count_bigrams(ids: Ids, V: int) -> Bigram:
    """Return a `Bigram` whose logits are the logarithms of counts of pairs in `ids`.

    0.01 is added to each count, so that no pair is impossible.
    """
    text = to_torch(ids)
    counts = (text[:-1] * V + text[1:]).bincount(minlength=V * V)
    model = Bigram(V)
    model.table.data = (counts.view(V, V) + 0.01).log()
    return model


def train(model: nn.Module, corpus: Corpus, seed: int) -> list[float]:
    """Train a model with `seed`; return [val loss before, val loss after, val perplexity after]."""
    before = evaluate(model, corpus.val)
    torch.manual_seed(seed)
    with torch.enable_grad():
        rate = BIGRAM_RATE if isinstance(model, Bigram) else RATE
        fit(model, to_torch(corpus.train), (BATCH_SIZE, T), STEPS, rate)
    after = evaluate(model, corpus.val)
    return [before, after, math.exp(after)]


def sample_text(model: nn.Module, corpus: Corpus, seed: int) -> str:
    """Return text sampled after the first character of the val split, as one line."""
    torch.manual_seed(seed)
    ids = sample(model, to_torch(corpus.val[:1])[None], SAMPLE_CHARACTERS, T)
    return in_one_line(corpus.vocabulary.decode(ids[0, 1:].tolist()))


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`; draw its random tensors with `seed`."""
    corpus = load_corpus(open_source("python-docs"))
    V = len(corpus.vocabulary)
    page.section("A step of training")
    page.paragraph(f"""At first the weights are random. Each step of training
        moves them a little way down the gradient of the loss. The text here is python-docs:
        {len(corpus.ids):,} characters, {V} of them distinct. Its first 90 % are the **train split**
        and its last 10 % the **val split**. No step sees the val split, so its loss measures
        what was learned, not what was memorised. A **batch** is B = {BATCH_SIZE} windows of T = {T}
        characters; the targets are the same windows one character later.""")
    page.source(draw_batch, fit)
    page.paragraph("""**Adam** (arXiv:1412.6980) divides each weight's mean gradient by its usual
        size, so that every weight moves by about the **learning rate**. (AdamW, which production
        uses, is Adam with decoupled weight decay.)""")
    page.source(Adam)
    page.paragraph("A trained model writes a text by drawing one character after the other:")
    page.source(sample)
    page.section("Five models")
    page.paragraph("""A **bigram** model predicts from one character, by a table of V x V numbers.
        The second model adds the average of the past, the third has one head of attention instead,
        the fourth has four heads, and the fifth one block of the textbook:""")
    page.source(Averages, OneHead, ManyHeads, OneBlock)
    losses, samples = [], list[str]()
    models: dict[str, Callable[[], nn.Module]] = {
        "bigram": lambda: Bigram(V),
        "average": lambda: Averages(V, C),
        "one head": lambda: OneHead(V, T, C),
        "four heads": lambda: ManyHeads(V, T, C),
        "one block": lambda: OneBlock(V, T, C),
    }
    with computing_with(1):  # in models so small, threads would only wait for each other
        for name, new in models.items():
            torch.manual_seed(seed)
            model = new()
            if not samples:
                samples.append(f"{'untrained':<11}{sample_text(model, corpus, seed)}")
            losses.append(train(model, corpus, seed))
            samples.append(f"{name:<11}{sample_text(model, corpus, seed)}")
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
        samples,
    )
    bigram = losses[0][1]
    page.paragraph(f"""Untrained, all begin at ln V = {math.log(V):.4f}: each of the {V} characters
        is equally likely. The best bigram needs no gradient: count how often each character follows
        each. Counted it has a loss of {counted:.4f}; {STEPS} steps of training reach
        {bigram:.4f}. What is better than that comes from **context**. An average does not say
        which character was where; attention does.""")
    claim = "the val loss of the bigram, and of the block"
    page.check_differ(claim, *torch.tensor(losses)[[0, -1], 1])
    page.paragraph("""`gpt train` does the same with more layers, more steps and a faster recipe
        (lesson `recipe`). Its loop is in gpt/training/trainer.py, a step in
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
    ids, unit = trained.ids[0], trained.vocabulary.unit
    if trained.corpus is not None and trained.origin != "of yours":
        ids = to_torch(trained.corpus.val[:MEASURED_CHARACTERS])
    losses = loss_by_context(trained.model, ids, min(MAX_CONTEXT, trained.model.config.T))
    if not losses:
        page.paragraph("The text has no next character to predict: give at least two characters.")
        return
    page.paragraph(f"""How much does context help? The table shows the loss on {len(ids):,}
        {unit}s {trained.origin}, if the model sees only the given number of {unit}s before each. If
        that is 1, the model is a bigram model.""")
    page.table(
        f"loss (nats per {unit}) by number of {unit}s that it sees",
        list(losses.values()),
        columns=[str(context) for context in losses],
    )
    *shorter, longest = losses.values()
    if longest > min([longest, *shorter]):
        page.paragraph("""The longest context is not the best one here. In a text that is unlike the
        train split (out of domain), what the model expects after a context misleads it; and in a
        text as short as this, a loss depends on chance.""")


def loss_by_context(model: nn.Module, ids: Tensor, longest: int) -> dict[int, float]:
    """Return the mean loss in nats for each context length: 1, 2, 4 and so on.

    The largest length is at most `longest`, and at most half of the text `ids`. Each loss is the
    mean over the same characters: those that have a context of the largest length.
    """
    powers = range(min(len(ids) // 2, longest).bit_length())
    losses = {}
    for context in (2**power for power in powers):
        start = 2 ** powers[-1]  # the first character that is predicted
        windows = ids[start - context : -1].unfold(0, context, 1)  # (N - start, context)
        logits = model(windows)[:, -1:]  # (N - start, 1, V)
        losses[context] = float(cross_entropy(logits, ids[start:, None]))
    return losses
