"""The lessons of `gpt explain`. They build a GPT step by step, from counts to the whole model.

A lesson is a script, `lesson_NAME.py`, that prints and checks what it says. Comments that begin in
the first column are its prose, in Markdown; the last ones, after `# Answers`, answer the exercises.
An import marked `# show its code` is replaced by the code of what it imports. `render` shows a
lesson in a terminal, or writes it as a notebook or as a program. `ladder` has the code that lessons
share, and `textbook` is the whole model as one program.
"""

LESSONS = {  # in the order in which they build on each other
    "counting": "predict, measure and sample with a table; train the same table",
    "averaging": "average the past: loop, triangular matrix, masked softmax",
    "head": "one head of attention: queries, keys and values",
    "layers": "six words with a calculator; parameters and linear layers",
    "scaling": "why scores are divided by the square root of head_size",
    "heads": "several heads in one matrix product",
    "masks": "encoder, decoder, cross-attention; the inverted mask",
    "positions": "attention ignores order until positions are added",
    "normalization": "BatchNorm and LayerNorm: over which numbers to take the mean",
    "block": "residual stream, LayerNorm, attention, MLP",
    "model": "the textbook GPT: embeddings, blocks, logits",
    "training": "Adam, warmup and clipping, by hand",
    "dropout": "numbers set to zero at random in training, against overfitting",
    "recipe": "what this project adds to the textbook, and how much it helps",
    "follow": "one character on its way through your own model",
}
FOLLOW = "follow"  # shows a trained model; the only lesson that takes --run and --text
TEXTBOOK = "textbook"  # not a lesson, but a program; only --write FILE.py works with it
