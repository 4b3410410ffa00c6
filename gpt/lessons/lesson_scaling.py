"""The lesson `scaling`. From: Karpathy, "Let's build GPT"; arXiv:1706.03762, section 3.2.1."""

# A score is a dot product: a sum of hs products. The more terms a sum has, the larger it becomes.
# **Variance** is the mean squared distance from the mean. If queries and keys are independent
# random numbers of mean 0 and variance 1, each product has variance 1, and variances of independent
# numbers add up: q . k has variance hs. Why divide the scores by sqrt(hs), not by hs? Dividing
# numbers by c divides their variance by the square of c, so to divide the variance by hs, divide by
# sqrt(hs):
#
# $$Var(x / c) = Var(x) / c^2$$
import torch
from torch import Tensor

from gpt.lessons.render import check, table

torch.manual_seed(1337)
x = torch.randn(4, 8, 32)  # drawn in Karpathy's order: x, three layers, q, k
layers = [torch.nn.Linear(32, 16, bias=False) for _ in range(3)]
hs = 16
q, k = torch.randn(4, 8, hs), torch.randn(4, 8, hs)
raw = q @ k.transpose(-2, -1)  # scores (4, 8, 8)
scaled = raw * hs**-0.5
variances = [q.var(), k.var(), raw.var(), scaled.var()]
table("variance", {"": variances}, ["q", "k", "q.k", "q.k / sqrt(hs)"])
check("Var(q.k / 4) = Var(q.k) / 16", scaled.var(), raw.var() / 16)


def variance_of_products(dimension: int) -> list[Tensor]:
    """Return the variance of 1,000 products q.k, before and after scaling."""
    q, k = torch.randn(2, 1000, dimension)
    products = (q * k).sum(dim=-1)
    return [products.var(), (products / dimension**0.5).var()]


dimensions = [5, 16, 100, 400]
rows = torch.tensor([variance_of_products(d) for d in dimensions]).T
by_dimension = {"q.k": rows[0], "scaled": rows[1]}
table("variance of 1,000 pairs, by dimension", by_dimension, dimensions)

# A common mistake is to divide by hs instead of sqrt(hs). Then the variance is 1 / hs: the larger
# the head, the smaller its scores, and all weights become alike, as in an average.
slip = [(raw / hs).var(), 1 / hs]
table("variance of q.k / hs", {"": slip}, ["measured", "1 / hs"])

# ## The effect of large scores
# Softmax takes exp of the scores, and exp widens differences: the ratio of two weights is exp of
# the difference of their scores. Five scores, times 1, 8 and 32:
scores = torch.tensor([0.1, -0.2, 0.3, -0.2, 0.5])
weights = {f"{n} x scores": (n * scores).softmax(-1) for n in (1, 8, 32)}
table("softmax", weights)


# The weights in the last row are **sharp**, nearly **one-hot**: one weight is 1, the others 0. Then
# each query takes information from one position only: the head is overconfident. Training can
# hardly correct this. The **Jacobian** of softmax is the matrix of the derivatives of all weights
# with respect to the scores: diag(w) - w w^T with the weights w. The gradient that reaches the
# scores, and through them queries and keys, is a product with the Jacobian. For sharp weights the
# Jacobian is almost 0, even if the weights are wrong. The length of the Jacobian is the root of the
# sum of its squared numbers:
def jacobian(scores: Tensor) -> Tensor:
    """Return the matrix of d weights[i] / d scores[j]: row i, column j."""
    w = scores.softmax(dim=-1)
    return torch.diag(w) - torch.outer(w, w)


norms = [jacobian(n * scores).norm() for n in (1, 8, 32)]
table("length of the Jacobian", {"": norms}, weights)
autograd = torch.func.jacrev(lambda s: s.softmax(-1))(scores)
check("the Jacobian by hand = torch's", jacobian(scores), autograd)


# So training with sharp weights is unstable: the key whose score is largest by chance takes all of
# the weight, and the others get almost no gradient. In this example, key 0 has value 1 and
# the other keys have value 0. The weighted sum of the values should become 1, so key 0 should get
# all of the weight, but key 4 begins with the most. After 100 steps against the gradient:
def learn(start: Tensor) -> float:
    """Train the scores for 100 steps; return the weight of key 0."""
    s, value = start.clone().requires_grad_(), torch.eye(5)[0]
    for _ in range(100):
        loss = (s.softmax(-1) @ value - 1) ** 2
        (gradient,) = torch.autograd.grad(loss, s)
        s = (s - gradient).detach().requires_grad_()
    return s.softmax(-1)[0].item()


learned = [learn(n * scores) for n in (1, 8, 32)]
table("weight of key 0 after 100 steps", {"": learned}, weights)


# Training still works for the scores times 8, but has not moved the scores times 32 in 100 steps. A
# new head should begin undecided, and training should make it as sharp as is useful. Scores of
# variance 1 allow that at any head size; those of a new `Head` are smaller (lesson `layers`). The
# order in the code is: scale, mask, softmax.
#
# ## Exercises
# 1. Double the queries. What are the variances of q, of q.k and of the scaled scores?
#
# ```diff
# -q, k = torch.randn(4, 8, hs), torch.randn(4, 8, hs)
# +q, k = 2 * torch.randn(4, 8, hs), torch.randn(4, 8, hs)
# ```
#
# 2. Write softmax.
def my_softmax(scores: Tensor) -> Tensor:
    """Return softmax of scores (..., n) along the last dimension."""


check("my_softmax = torch's", my_softmax(raw), raw.softmax(dim=-1))

# Answers
#
# 1. All three are four times as large: 4.1794, 69.8759 and 4.3672. Dividing by sqrt(hs) corrects
#    for the size of the head, not for large queries. QK norm (lesson `recipe`) corrects for those.
#
# 2. Exponentials, divided by their sum. (Subtract the largest score first, which changes nothing
#    but avoids overflow.)
#
# ```python
#     powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
#     return powers / powers.sum(dim=-1, keepdim=True)
# ```
