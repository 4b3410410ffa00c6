"""The law: val loss from a model's size, the characters it sees, and passes over the text.

A text is known by the val loss of a pilot, a small model trained for a moment (difficulty.py), and
the law says by how much another run ends below it, or above:

    loss = pilot loss + excess(run) - excess(pilot)
    excess = slope (A (N / N0)^-a + B (D / D0)^-b) + overfit + hidden - averaged

with N the parameters of the blocks' matrices and D the characters seen, as in Hoffmann et al.
(arXiv:2203.15556), N0 and D0 the pilot's. Characters seen again count less and less, as in
Muennighoff et al. (arXiv:2305.16264, section 3.1), and in the end do harm: `overfit`, which is at
most MOST_OVERFIT of the pilot's loss. The coefficients are fitted by scripts/law/fit.py;
scripts/experiments.md says how well.
"""

import math
from dataclasses import dataclass

from gpt.recipe.difficulty import PILOT, Difficulty
from gpt.recipe.settings import Choice


@dataclass(frozen=True)
class Coefficients:
    """Of the law; scripts/law/fit.py prints them."""

    depth: float = 0.03522  # nats that e times the layers gain
    width: float = 0.05753  # nats that e times the channels gain
    capacity: float = 1.529
    seen: float = 0.7399
    more_seen: float = 0.2576
    overfit: float = 0.0009195
    overfit_passes: float = 1.99
    overfit_size: float = 0.7698
    overfit_text: float = 0.6656
    regularised: float = 12.28
    hidden: float = 1.154  # nats for token dropout
    more_hidden: float = 1.413
    vocabulary: float = 0.1334
    learning: float = 0.8868
    ensemble: float = 0.09226  # nats that infinitely many members gain
    ensemble_overfit: float = 0.2563  # part of the overfit that they average away


COEFFICIENTS = Coefficients()
SHORTEST_TEXT = 18_000  # characters of train, of those that the law was fitted on
LEAST_GAIN = 0.1  # of the pilot: that of one which overfits says nothing
MOST_OVERFIT = 0.5  # of the pilot's loss: on a text of a page it makes many passes
LOWEST = 0.25  # of the pilot's loss: the runs that the law was fitted on end above 0.67
UNCERTAINTY = 0.03  # of the loss: standard deviation of the residuals


def predict(choice: Choice, text: Difficulty, fitted: Coefficients = COEFFICIENTS) -> float:
    """Val loss in nats per character of a run by this choice, at its end: not negative."""
    of_pilot = excess(PILOT, text, fitted, MOST_OVERFIT * text.pilot_loss)
    loss = text.pilot_loss + excess(choice, text, fitted) - of_pilot
    lowest = LOWEST * text.pilot_loss  # what is taken off beyond counts less and less
    if loss > lowest or not lowest:  # 0 of a text of one character, repeated
        return max(loss, 0.0)
    return lowest * math.exp(loss / lowest - 1)


def excess(
    choice: Choice, text: Difficulty, fitted: Coefficients, most_overfit: float = math.inf
) -> float:
    """Nats per character above what no model could do without: the text's own entropy."""
    U, passes = text.train_ids, choice.characters / text.train_ids
    depth, width = choice.n_layer / PILOT.n_layer, choice.C / PILOT.C
    seen = choice.characters / PILOT.characters
    slope = 1 + fitted.vocabulary * math.log(text.V / 64)
    slope += fitted.learning * (max(text.pilot_gain, LEAST_GAIN) - 0.35)
    gained = fitted.depth * math.log(depth) + fitted.width * math.log(width)
    gained *= 1 + fitted.capacity * (1 - seen**-fitted.more_seen)
    learnt = fitted.seen * seen**-fitted.more_seen - gained
    parameters = 12 * choice.n_layer * choice.C**2 + 5 * text.V * choice.C
    memorised = (parameters / 1e5) ** fitted.overfit_size * (1e5 / U) ** fitted.overfit_text
    memorised *= fitted.overfit * passes**fitted.overfit_passes
    overfit = memorised * math.exp(-fitted.regularised * choice.token_dropout)
    overfit = min(overfit, most_overfit)
    averaged = fitted.ensemble + fitted.ensemble_overfit * overfit
    hidden = fitted.hidden * choice.token_dropout**fitted.more_hidden
    return float(slope * learnt + overfit + hidden - averaged * (1 - 1 / choice.members))
