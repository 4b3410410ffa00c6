"""Counting: n-gram models, which predict the next character from counts of the train split."""

import numpy as np
import torch
from torch import Tensor

from gpt.evaluation.baselines import ngram_loss
from gpt.evaluation.kneser_ney import KneserNey, longest_context
from gpt.evaluation.loss import evaluate
from gpt.lessons.lesson_page import Page
from gpt.lessons.trained import Trained
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.display import symbol
from gpt.text.sources import open_source
from gpt.text.vocabulary import Ids

WORD = "banana bandana"  # the text that is counted by hand
MAX_ORDER = 8  # characters of the longest context
SCORED_IDS = 8192  # ids at the start of the val split that a trained network predicts
MAX_LESSON_IDS = 2**20  # most ids of the train split that are counted


def count(text: str, gram: str, distinct: bool) -> int:
    """Return how often `gram` occurs in `text`.

    If `distinct` is True, return how many different characters precede `gram` instead.
    """
    starts = [i for i in range(len(text)) if text.startswith(gram, i)]
    if distinct:
        return len({text[i - 1] for i in starts if i > 0})
    return len(starts)


def discount(count: int) -> float:
    """Return the discount of `count`: 0.5 if it is 1, 1 if it is 2, and 1.5 if it is 3 or more."""
    return min(count, 3) / 2


def kneser_ney(text: str, context: str) -> list[float]:
    """Return the probabilities that the characters sorted(set(text)) follow `context`."""
    characters = sorted(set(text))
    p = [1 / len(characters)] * len(characters)
    for n in range(len(context) + 1):  # the last n characters
        end, distinct = context[len(context) - n :], n < len(context)
        counts = [count(text, end + c, distinct) for c in characters]
        total = sum(counts)
        if total > 0:  # else the context is new
            freed = sum(map(discount, counts)) / total
            kept = [(k - discount(k)) / total for k in counts]
            p = [k + freed * q for k, q in zip(kept, p, strict=True)]
    return p


def production(text: str, context: str) -> Tensor:
    """Compute the same probabilities as `kneser_ney` with the n-gram model of `gpt eval`."""
    characters = sorted(set(text))

    def encode(text: str) -> Ids:
        return np.array([characters.index(c) for c in text], np.uint8)

    model = KneserNey(encode(text), len(characters), len(context))
    return torch.tensor([model.probabilities(encode(context + c)).item() for c in characters])


def losses_by_order(corpus: Corpus, predicted: Ids) -> dict[str, float]:
    """Return the loss (nats per id) of n-gram models on `predicted`, by context length."""
    vocabulary = corpus.vocabulary
    orders = range(min(MAX_ORDER, longest_context(len(vocabulary))) + 1)
    counted = corpus.train[:MAX_LESSON_IDS]
    return {str(n): ngram_loss(counted, predicted, vocabulary, n) for n in orders}


def explain(page: Page, seed: int) -> None:
    """Write the lesson on `page`. Nothing is drawn with `seed`."""
    characters = [symbol(c) for c in sorted(set(WORD))]
    page.section("Counts by hand")
    page.paragraph(f"""Attention learns what to look for. The oldest language model looks up what
        followed the last few characters before: it counts **n-grams**. A **bigram** is a character
        and the one before it, a **trigram** has two before it, a **unigram** none. Take the text
        '{WORD}'. How often does each character follow each context?""")
    contexts = ["", "n", "an"]
    page.table(
        "counts of the next character",
        [[count(WORD, end + c, distinct=False) for c in sorted(set(WORD))] for end in contexts],
        ["no context", "after n", "after an"],
        characters,
    )
    page.paragraph("""Counts have two defects. What never followed gets probability 0, an infinite
        loss. And long contexts are rare: most were never seen. **Smoothing** repairs both: a
        discount D is taken from each count (`gpt eval` estimates D from the counts), and the freed
        probability is given to the prediction of the context that is one character shorter.""")
    page.formula("P_n(c | context)", "(count - D) / total + freed / total * P_n-1(c | shorter)")
    page.paragraph("""In shorter contexts, **Kneser-Ney** smoothing (1995) does not count how often
        a character occurs, but after how many different characters. In a text about San Francisco,
        'Francisco' is frequent, but only after 'San': it should be unlikely anywhere else. Below
        the unigrams all characters are equally likely.""")
    page.source(count, discount, kneser_ney)
    rows = {f"after {context}" if context else "no context": context for context in contexts}
    page.table(
        "probability of the next character",
        {name: torch.tensor(kneser_ney(WORD, context)) for name, context in rows.items()},
        columns=characters,
    )
    ours = torch.tensor(kneser_ney(WORD, "an"))
    after_an = float(ours[characters.index("a")])
    after_n = 2 * after_an - 0.75  # as after_an = (3 - 1.5) / 4 + 2 / 4 * after_n
    page.paragraph(f"""For example, 'an' was followed four times, three times by 'a' and once by
        'd'. The discounts are 1.5 and 0.5, so 2 / 4 is freed. The shorter context 'n', counted as
        Kneser and Ney do, gives 'a' {after_n:.4f}. So 'a' gets (3 - 1.5) / 4 + 2 / 4 *
        {after_n:.4f} = {after_an:.4f}.""")
    sums = torch.tensor([sum(kneser_ney(WORD, context)) for context in contexts])
    page.check("the sum of each row = 1", sums, torch.ones(3))
    page.check("these lines = the n-gram model of gpt eval", ours, production(WORD, "an"))
    page.section("Counts of a text")
    corpus = load_corpus(open_source("python-docs"))
    losses = losses_by_order(corpus, corpus.val)
    _show_losses(page, corpus, losses, "val")
    best = min(losses, key=lambda order: losses[order])
    page.paragraph(f"""The context of one character is the bigram of the lesson `training`. Each
        further character helps less: contexts become rare, and after {best} characters the loss is
        {losses[best]:.4f}. That is far better than the small models of that lesson, which were
        trained for seconds. But counts find a context only if the same characters stood there.
        Attention can learn what matters in a context, at any distance. `gpt eval` shows the loss of
        such an n-gram model beside that of a trained network.""")
    page.exercise(
        """In `discount` return 0. Which probabilities in the second table become 0, and which check
        fails?""",
        """Those whose count is 0, if the context itself was counted: nothing is freed for them. A
        text with such a character has an infinite loss. The rows still sum to 1, but "these lines
        = the n-gram model of gpt eval" fails.""",
    )


def _show_losses(page: Page, corpus: Corpus, losses: dict[str, float], part: str) -> None:
    page.table(
        f"{corpus.name}: loss on {part} (nats per {corpus.vocabulary.unit}) by length of context",
        list(losses.values()),
        columns=[*losses],
    )


def explain_trained(page: Page, trained: Trained) -> None:
    """Compare the val losses of n-gram models and of the trained network."""
    corpus = trained.corpus
    if corpus is None or len(corpus.val) <= MAX_ORDER:
        page.paragraph("""Nothing can be counted here: the text of this run cannot be read, or its
            val split is too short.""")
        return
    predicted = corpus.val[:SCORED_IDS]
    losses = losses_by_order(corpus, predicted)
    _show_losses(page, corpus, losses, f"the first {len(predicted):,} of val")
    counts = min(losses.values())
    network = evaluate(trained.model, predicted)
    page.table(
        f"the same {corpus.vocabulary.unit}s: the best of these, and the network",
        [counts, network],
        columns=["counts", "network"],
    )
    page.paragraph(
        "The network is better than counts: it also uses contexts that it never saw in the same "
        "words."
        if network < counts
        else "Counts are better than the network: it is small or was trained briefly, or the text "
        "repeats itself."
    )
