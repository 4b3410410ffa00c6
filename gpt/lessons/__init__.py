"""The model built up from averaging, one runnable step a file; `gpt explain` shows them.

Each module holds the step itself, as a naive form and a better one. Below them, `explain` runs
both on small tensors and writes the page, and `explain_trained` shows the same in a trained model.
`lesson_page` is the page of a lesson, `build` makes it, `render` shows it in a terminal, and
`trained` holds a trained model and its activations.
"""

LESSONS = {  # in the order in which they build on each other
    "averaging": "the past averaged: loop, triangular matrix, masked softmax",
    "head": "one head: queries, keys and values",
    "scaling": "why scores are divided by the square root of head_size",
    "heads": "many heads in one matrix product; masks, and cross-attention",
    "dropout": "numbers set to zero at random in training, so that none is relied on",
    "normalization": "BatchNorm and LayerNorm: over which numbers to take the mean",
    "positions": "attention ignores order until positions are added",
    "block": "residual stream, LayerNorm, attention, MLP",
    "model": "the textbook GPT: embeddings, blocks, logits, loss",
    "training": "bigram, one head, one block: trained here, in seconds",
    "recipe": "what this project adds to the textbook, and what it brings",
}
# lessons whose module has another name, since other packages have modules so named
MODULES = {"dropout": "dropout_by_hand", "model": "textbook", "training": "three_models"}
