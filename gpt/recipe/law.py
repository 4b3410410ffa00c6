"""The law: val loss from a model's size, the characters it sees, and passes over the text.

A text is known by the val loss of a pilot, a small model trained for a moment (difficulty.py), and
the law says by how much a run that sees as much or more ends below it, or above:

    loss = pilot loss + excess(run) - excess(pilot)
    excess = slope (A (N / N0)^-a + B (D / D0)^-b) + overfit + hidden - averaged + repeated

with N the layers, and the channels, and D the characters seen, as in Hoffmann et al.
(arXiv:2203.15556); but A grows with D, as a large model gains little in a short run. Characters
seen again count less and less, as in Muennighoff et al. (arXiv:2305.16264, section 3.1), to a large
model sooner, and in the end do harm: `overfit`, which of the pilot is at most MOST_OVERFIT of its
loss. A text has a slope
of its own, by which the losses of all runs on it fall; it follows from how much the pilot gained on
the way. Where a text repeats itself (repetition.py), the ids that a model can copy are apart: what
they cost falls at once when its heads have found how to, to about the same on each text. The
coefficients are fitted by scripts/law/fit.py; scripts/experiments.md says how well.
"""

import math
from dataclasses import dataclass

from gpt.recipe.difficulty import LAYERS, MOST_CHARACTERS, MOST_PASSES, C, Difficulty
from gpt.recipe.settings import Choice


@dataclass(frozen=True)
class Coefficients:
    """Of the law; scripts/law/fit.py prints them."""

    depth: float = 0.05543  # nats that layers and channels gain, while they are few
    width: float = 0.1157
    saturates: float = 0.5363
    capacity: float = 2.273
    seen: float = 1.748
    more_seen: float = 0.07959
    overfit: float = 0.004297
    overfit_passes: float = 1.623
    overfit_size: float = 0.6117
    overfit_text: float = 0.462
    regularised: float = 6.878
    regularised_power: float = 0.7106
    hidden: float = 0.5606  # nats, if token dropout hid everything
    learning: float = 0.6131
    gap: float = 0.4046
    again_size: float = 0.3863
    ensemble: float = 0.06745  # nats that infinitely many members gain
    shared: float = 0.313  # of what overfits: that of all members, which none averages away
    copied: float = 0.421  # nats of a repeated id, once a model copies it
    more_copied: float = 0.1173
    found_longer: float = 0.74


COEFFICIENTS = Coefficients()
SHORTEST_TEXT = 18_000  # characters of train, of those that the law was fitted on
SMALLEST_C = 48
USUAL_GAIN, USUAL_GAP = 0.3, 0.1  # of the texts that it was fitted on
MOST_LOST = 0.5  # by small models: at 1, more characters would not help any more
LEAST_GAIN = 0.1  # of the pilot: that of one which overfits says nothing
MOST_GAP = 1.0  # of the pilot: that between different scripts is larger
LEAST_SLOPE = 0.3
SEEN = 100_000  # characters: D0
AGAIN = 15  # passes that seeing the text for ever is worth to the pilot, as in arXiv:2305.16264
FOUND_WIDER = 8  # power of the width; runs say no more than that it is large
MOST_OVERFIT = 0.5  # of the pilot's loss: on a text of a page it makes many passes
LOWEST = 0.25  # of the pilot's loss: the runs that the law was fitted on end above 0.49
# the runs and texts that the law was fitted on; pilot losses are in nats per id
PILOT_LOSSES = (1.2, 5.5)
LONGEST_RUN, LARGEST_PASSES, LARGEST_C, LARGEST_DEPTH = 10_000_000, 56, 256, 8
LARGEST_FALL = 0.49  # of a run's val loss, as a part of the pilot's
# where nothing is predicted: logs, tables and repeated lines were predicted at half of their loss
LEAST_LOSS = 1.0
MOST_REPEATED = 0.4  # of the ids, see `repeated_part`; 0.38 in the fit
LARGEST_GAP = 2.5  # of the pilot, in nats; 2.15 in the fit
UNCERTAINTY = 0.03  # of the loss: standard deviation of the residuals, rounded up
EACH_OUTSIDE = 0.5  # of it is added for each factor e that a run is outside of the fit
LEAST_UNCERTAINTY = 0.01  # nats: predictions are shown to two decimals
SHORT_PILOT = 0.25  # power: of a pilot four times shorter than usual it is 1.4 times as large
UNFOUND = 0.3  # of what the pilot had not found to copy: the same


def predict(choice: Choice, text: Difficulty, fitted: Coefficients = COEFFICIENTS) -> float:
    """Val loss in nats per id of a run by this choice, at its end: not negative."""
    if text.V == 1:
        return 0.0
    pilot = Choice(LAYERS, C, text.pilot_characters)
    of_pilot = excess(pilot, text, fitted, MOST_OVERFIT * text.pilot_loss)
    loss = text.pilot_loss + excess(choice, text, fitted) - of_pilot
    loss += of_repeated(choice, text, fitted) - text.pilot_repeated
    lowest = LOWEST * text.pilot_loss  # what is taken off beyond counts less and less
    if loss > lowest or not lowest:
        return max(loss, 0.0)
    return lowest * math.exp(loss / lowest - 1)


def excess(
    choice: Choice, text: Difficulty, fitted: Coefficients, most_overfit: float = math.inf
) -> float:
    """Nats per id above what no model could do without: the text's own entropy."""
    U, passes = text.train_ids, choice.characters / text.train_ids
    depth, width = choice.n_layer / LAYERS, choice.C / C
    again = AGAIN * (depth * width**2) ** -fitted.again_size
    seen = U * again * -math.expm1(-passes / again) / SEEN
    a = fitted.saturates
    gained = (fitted.depth * (1 - depth**-a) + fitted.width * (1 - width**-a)) / a
    gained = max(gained, -MOST_LOST * fitted.seen / fitted.capacity)
    gained *= 1 + fitted.capacity * (1 - seen**-fitted.more_seen)
    learnt = fitted.seen * seen**-fitted.more_seen - gained
    parameters = 12 * choice.n_layer * choice.C**2 + 5 * text.V * choice.C
    memorised = (parameters / 1e5) ** fitted.overfit_size * (1e5 / U) ** fitted.overfit_text
    memorised *= fitted.overfit * passes**fitted.overfit_passes
    dropout = choice.token_dropout
    overfit = memorised * math.exp(-fitted.regularised * dropout**fitted.regularised_power)
    overfit = min(overfit, most_overfit)
    overfit *= fitted.shared + (1 - fitted.shared) / choice.members
    averaged = fitted.ensemble * (1 - 1 / choice.members)
    hidden = fitted.hidden * dropout
    return float(slope(text, fitted) * learnt + overfit + hidden - averaged)


def of_repeated(choice: Choice, text: Difficulty, fitted: Coefficients = COEFFICIENTS) -> float:
    """Nats per id that repeated ids add to the loss: what is left of the pilot's, and `copied`.

    A model copies them once its heads have found how to: a longer run has, and a wider model in as
    long a run.
    """
    longer, wider = choice.characters / text.pilot_characters, choice.C / C
    copied = min(fitted.copied * text.repeated_part, text.pilot_repeated)
    better = min(1.0, (longer * wider) ** -fitted.more_copied)
    found = longer**fitted.found_longer * wider**FOUND_WIDER
    unfound = 1 / max(found, 1.0) if longer >= 1 else 1.0
    return float(copied * better + (text.pilot_repeated - copied) * unfound)


def why_unknown(choice: Choice, text: Difficulty, unit: str = "character") -> str | None:
    """Return why the law does not apply to a run, or None if it does.

    Args:
        choice: the run.
        text: what the pilot learnt of its text.
        unit: the name of an id, "character" or "byte".
    """
    if text.train_ids < SHORTEST_TEXT:
        return f"the text is too short ({SHORTEST_TEXT:,} training {unit}s needed)"
    if choice.characters < text.pilot_characters:
        return f"the run is too short ({text.pilot_characters:,} {unit}s needed)"
    if choice.C < SMALLEST_C:
        return f"the model is too small (C {SMALLEST_C} needed)"
    if text.repeated_part > MOST_REPEATED:
        return f"the text repeats itself too much ({text.repeated_part:.0%} of it)"
    if text.pilot_loss < LEAST_LOSS:
        return f"the text is too regular (a small test model has val loss {text.pilot_loss:.2f})"
    if text.pilot_gap > LARGEST_GAP:
        return "val differs too much from train"
    if max(text.pilot_gain, text.pilot_gap) < LEAST_GAIN:
        return "a small test model learnt too little from the text"
    return None


def uncertainty(
    val_loss: float, choice: Choice, text: Difficulty, fitted: Coefficients = COEFFICIENTS
) -> float:
    """Return the standard deviation, in nats per id, of what runs reached around a prediction.

    It is larger where the pilot was short (few minutes, or a slow machine), where its heads have
    not yet found how to copy, which is luck, and the further a run is from those of the fit.

    Args:
        val_loss: what is predicted.
        choice: the run.
        text: what the pilot learnt of its text.
        fitted: the coefficients of the law.
    """
    shorter = min(MOST_CHARACTERS, MOST_PASSES * text.train_ids) / text.pilot_characters
    relative = UNCERTAINTY * max(1.0, shorter) ** SHORT_PILOT
    relative *= 1 + EACH_OUTSIDE * outside(val_loss, choice, text)
    unfound = text.pilot_repeated - fitted.copied * text.repeated_part
    return max(LEAST_UNCERTAINTY, math.hypot(relative * val_loss, UNFOUND * max(unfound, 0.0)))


def outside(val_loss: float, choice: Choice, text: Difficulty) -> float:
    """Return how far a run is from those that the law was fitted on; 0 if it is among them.

    It is the sum of the logarithms of the factors by which the run exceeds their range.
    """
    lowest, highest = PILOT_LOSSES
    factors = (
        lowest / max(text.pilot_loss, LEAST_UNCERTAINTY),
        text.pilot_loss / highest,
        choice.characters / LONGEST_RUN,
        choice.characters / text.train_ids / LARGEST_PASSES,
        choice.C / LARGEST_C,
        choice.n_layer / LARGEST_DEPTH,
        LARGEST_FALL * text.pilot_loss / max(val_loss, LEAST_UNCERTAINTY),
    )
    return sum(math.log(max(1.0, factor)) for factor in factors)


def slope(text: Difficulty, fitted: Coefficients) -> float:
    """How fast the losses of all runs on a text fall: 1 of one whose pilot is usual.

    It is 0 of one that learnt nothing, as of ids drawn at random.
    """
    gain = max(text.pilot_gain, LEAST_GAIN)
    gap = min(max(text.pilot_gap, -MOST_GAP), MOST_GAP)
    faster = fitted.learning * (gain - USUAL_GAIN) + fitted.gap * (gap - USUAL_GAP)
    learnt = max(text.pilot_gain, text.pilot_gap)  # of val, or of train
    return max(1 + faster, LEAST_SLOPE) * min(max(learnt / LEAST_GAIN, 0.0), 1.0)
