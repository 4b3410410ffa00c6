"""The lessons of `gpt explain`. They build the model up step by step, starting from averaging.

Each lesson is a module with the code of one step, often in a naive form and a better form. The
function `explain` runs the code on small tensors and writes the lesson's page. The function
`explain_trained` shows the same step in a trained model. `lesson_page` defines pages, `build` makes
them, `render` formats them for a terminal, and `trained` holds a trained model and its activations.
"""

LESSONS = {  # in the order in which they build on each other
    "averaging": "averaging the past: loop, triangular matrix, masked softmax",
    "head": "one head: queries, keys and values",
    "scaling": "why scores are divided by the square root of head_size",
    "heads": "many heads in one matrix product",
    "masks": "encoder, decoder and cross-attention; the inverted mask",
    "positions": "attention ignores order until positions are added",
    "normalization": "BatchNorm and LayerNorm: over which numbers to take the mean",
    "block": "residual stream, LayerNorm, attention, MLP",
    "model": "the textbook GPT: embeddings, blocks, logits, loss",
    "training": "bigram, average, one head, four heads, one block: trained here",
    "dropout": "numbers set to zero at random in training, against overfitting",
    "counting": "n-grams: what counts predict, and what attention adds",
    "recipe": "what this project adds to the textbook, and how much it helps",
}
FOLLOW = "follow"  # the name of the page about a character in a trained model
FOLLOW_TITLE = "one character on its way through your own model (--run RUN)"
KARPATHY = 'Karpathy, "Let\'s build GPT"'
RASCHKA = 'Raschka, "Build a Large Language Model (From Scratch)", chapter 3'
THREE_BLUE_ONE_BROWN = '3Blue1Brown, "Attention in transformers"'
LOGIT_LENS = 'nostalgebraist, "interpreting GPT: the logit lens" (2020)'
VASWANI = '"Attention Is All You Need" (arXiv:1706.03762)'
SOURCES = {  # where the ideas and examples of each lesson are from
    "averaging": [KARPATHY],
    "head": [KARPATHY, RASCHKA, THREE_BLUE_ONE_BROWN],
    "scaling": [KARPATHY, f"{VASWANI}, section 3.2.1"],
    "heads": [RASCHKA, f"{VASWANI}, section 3.2.2"],
    "masks": [KARPATHY, RASCHKA, f"{VASWANI}, section 3.2.3"],
    "positions": [KARPATHY, f"{VASWANI}, section 3.5"],
    "normalization": [KARPATHY, "BatchNorm (arXiv:1502.03167), LayerNorm (arXiv:1607.06450)"],
    "block": [KARPATHY, "ResNet (arXiv:1512.03385), pre-LN (arXiv:2002.04745)"],
    "model": [KARPATHY, "GPT-2 (Radford et al. 2019), section 2.3"],
    "training": [KARPATHY, "Adam (arXiv:1412.6980)"],
    "dropout": [RASCHKA, "Srivastava et al., JMLR 15 (2014)"],
    "counting": ["Chen and Goodman 1998, TR-10-98", "Kneser and Ney 1995"],
    "recipe": ["the papers named in each part"],
}
# lessons whose module has another name, since module names are unique in gpt/
MODULES = {"dropout": "dropout_by_hand", "model": "textbook", "training": "small_models"}
