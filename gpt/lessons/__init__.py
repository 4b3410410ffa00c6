"""The lessons of `gpt explain`, which build the model up step by step, starting from averaging.

Each lesson's module contains its step as code, often in a naive form and a better form. The
function `explain` runs the code on small tensors and writes the lesson's page. The function
`explain_trained` shows the same step in a trained model. `lesson_page` defines pages, `build` makes
them, `render` formats them for a terminal, and `trained` holds a trained model and its activations.
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
# modules of the lessons whose own name is already used by a module in another package
MODULES = {"dropout": "dropout_by_hand", "model": "textbook", "training": "three_models"}
