"""The law: val loss from a model's size, the characters it sees, and passes over the text.

A text is known by the val loss of a pilot, a small model trained for a moment (difficulty.py), and
the law says by how much another run ends below it, or above:

    loss = pilot loss + excess(run) - excess(pilot)
    excess = slope (A (N / N0)^-a + B (D / D0)^-b) + overfit + hidden - averaged

with N the parameters of the blocks' matrices and D the characters seen, as in Hoffmann et al.
(arXiv:2203.15556), N0 and D0 the pilot's. Characters seen again count less and less, as in
Muennighoff et al. (arXiv:2305.16264, section 3.1), and in the end do harm: `overfit`. The
coefficients are fitted by scripts/law/fit.py; scripts/experiments.md says how well.
"""

import math
from dataclasses import dataclass

from gpt.recipe.difficulty import PILOT, Difficulty
from gpt.recipe.settings import Choice


@dataclass(frozen=True)
class Coefficients:
    """Of the law; scripts/law/fit.py prints them."""

    size: float = 0.4363
    depth: float = 0.1253
    width: float = 0.2202
    seen: float = 0.6615
    more_seen: float = 0.3073
    repeats: float = 81.29  # passes after which seeing a character again teaches little
    overfit: float = 0.0002031
    overfit_passes: float = 1.859
    overfit_size: float = 0.6281
    overfit_text: float = 1.886
    regularised: float = 11.02
    hidden: float = 0.3778  # nats for token dropout
    vocabulary: float = 0.1702
    ensemble: float = 0.09644  # nats that infinitely many members gain


COEFFICIENTS = Coefficients()
UNCERTAINTY = 0.02  # of the loss: standard deviation of the residuals


def block_parameters(choice: Choice) -> float:
    """N: the numbers in the blocks' matrices, about."""
    return 12.0 * choice.n_layer * choice.C**2


def predict(choice: Choice, text: Difficulty, fitted: Coefficients = COEFFICIENTS) -> float:
    """Val loss in nats per character of a run by this choice, at its end."""
    return text.pilot_loss + excess(choice, text, fitted) - excess(PILOT, text, fitted)


def excess(choice: Choice, text: Difficulty, fitted: Coefficients) -> float:
    """Nats per character above what no model could do without: the text's own entropy."""
    U, passes = text.train_ids, choice.characters / text.train_ids
    depth, width = choice.n_layer / PILOT.n_layer, choice.C / PILOT.C
    again = 1 - math.exp(-max(0.0, passes - 1) / fitted.repeats)
    seen = U * (min(1.0, passes) + fitted.repeats * again) / PILOT.characters
    slope = 1 + fitted.vocabulary * math.log(text.V / 64)
    learnt = fitted.size * depth**-fitted.depth * width**-fitted.width
    learnt += fitted.seen * seen**-fitted.more_seen
    memorised = (depth * width**2) ** fitted.overfit_size * (1e5 / U) ** fitted.overfit_text
    memorised *= fitted.overfit * passes**fitted.overfit_passes
    overfit = memorised * math.exp(-fitted.regularised * choice.token_dropout)
    averaged = fitted.ensemble * (1 - 1 / choice.members)
    return float(slope * learnt + overfit + fitted.hidden * choice.token_dropout - averaged)
