"""The law: val loss from a model's size, the characters it sees, and passes over the text.

A text is described by the val loss of a pilot, a small model trained briefly (difficulty.py). The
law predicts by how much the val loss of another run is lower or higher:

    loss = pilot loss + excess(run) - excess(pilot)
    excess = slope (A (L / L0)^-a + E (C / C0)^-a + B (D / D0)^-b)
             + overfit + hidden - averaged + repeated

L is the number of layers, C of channels, and D of characters seen. Hoffmann et al.
(arXiv:2203.15556) have one term for L and C, the number of parameters. L0 and C0 are those of the
pilot, and D0 is REFERENCE_CHARACTERS. Unlike in that paper, A and E grow with D, because a large
model gains little in a short run.

- `slope` is how fast losses fall on a text, estimated from the pilot's progress. It is 1 on a
  typical text, and 0 on random ids.
- `overfit` is the harm of many passes over the text. Each further pass also adds less to D, as in
  Muennighoff et al. (arXiv:2305.16264, section 3.1), especially for a large model. The
  `overfit` of the pilot is at most MAX_OVERFIT times its loss.
- `hidden` is the cost of token dropout, and `averaged` the gain of averaging ensemble members.
- `repeated` is the loss of ids that a model can copy (repetition.py). It drops to about the same
  value on each text once attention heads have learnt to copy.

scripts/law/fit.py fits A, B, a, b and more; scripts/experiments.md reports the accuracy. In this
module, `choice` is the run, `text` has the results of the pilot, and losses are in nats per id.
"""

import math
from dataclasses import dataclass

from gpt.recipe.difficulty import (
    MAX_PILOT_CHARACTERS,
    MAX_PILOT_PASSES,
    PILOT_C,
    PILOT_LAYERS,
    Difficulty,
)
from gpt.recipe.settings import Choice


@dataclass(frozen=True)
class Coefficients:
    """Coefficients of the formula at the top of this file."""

    depth: float = 0.05543  # depth, width: nats per relative increase, at the pilot's size
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
    hidden: float = 0.5606  # nats at a token dropout of 1
    learning: float = 0.6131
    gap: float = 0.4046
    revisit_size: float = 0.3863
    ensemble: float = 0.06745  # nats gained by infinitely many members
    shared: float = 0.313  # fraction of `overfit` that averaging members does not remove
    copied: float = 0.421  # nats of a repeated id, once a model copies it
    more_copied: float = 0.1173
    copying_length: float = 0.74


COEFFICIENTS = Coefficients()
USUAL_GAIN, USUAL_GAP = 0.3, 0.1  # nats per id: `pilot_gain`, `pilot_gap` on prose
MAX_LOST = 0.5  # a small model gains at most this fraction less from more characters
MIN_GAIN = 0.1  # nats; a pilot that gains less says nothing about the slope
MAX_GAP = 1.0  # nats; larger gaps, as between different scripts, are cut to this
MIN_SLOPE = 0.3
REFERENCE_CHARACTERS = 100_000  # D0
MAX_USEFUL_PASSES = 15  # passes over new text that endless passes are worth (arXiv:2305.16264)
COPYING_WIDTH_POWER = 8  # the fit shows only that it is large
MAX_OVERFIT = 0.5  # fraction of the pilot's loss; the pilot makes many passes over a short text
DAMPED_BELOW = 0.25  # predictions below this fraction of the pilot's loss are damped, to stay > 0
# the ranges of the fit; pilot losses are in nats per id
MIN_TEXT = 18_000  # ids of the train split
MIN_C = 48
PILOT_LOSSES = (1.2, 5.5)
FITTED_CHARACTERS, FITTED_PASSES, FITTED_C, FITTED_LAYERS = 10_000_000, 56, 256, 8
MIN_LOSS_RATIO = 0.49  # smallest ratio of a run's val loss to the pilot's
# beyond the ranges of the fit
MAX_OUTSIDE = 2  # a prediction beyond this multiple of a range is an extrapolation
CHARACTERS_PER_PARAMETER = 20  # in a compute-optimal run (arXiv:2203.15556, table 3)
MAX_OPTIMAL_PASSES = 8  # passes over the text of such a run
EXTRAPOLATED_UNCERTAINTY = 2  # factor of the uncertainty of an extrapolation
# limits of the law: for logs, tables and repeated lines, it predicted half of the measured loss
MIN_PILOT_LOSS = 1.0  # nats per id
MAX_REPEATED = 0.4  # fraction of the ids, see `repeated_part`; 0.38 in the fit
MAX_PILOT_GAP = 2.5  # nats; 2.15 in the fit
UNCERTAINTY = 0.03  # standard deviation of the residuals as a fraction of the loss, rounded up
OUTSIDE_UNCERTAINTY = 0.5  # relative increase for each factor e outside of the fit
MIN_UNCERTAINTY = 0.01  # nats: predictions are shown to two decimals
SHORT_PILOT_POWER = 0.25  # a pilot four times shorter makes the uncertainty 1.4 times larger
COPYING_UNCERTAINTY = 0.3  # the same, as a fraction of the loss that copying could still save


def predict(choice: Choice, text: Difficulty, fitted: Coefficients = COEFFICIENTS) -> float:
    """Return the predicted val loss of the run, at least 0, with the coefficients `fitted`."""
    if text.V == 1:
        return 0.0
    pilot = Choice(PILOT_LAYERS, PILOT_C, text.pilot_characters)
    excess_of_pilot = _excess(pilot, text, fitted, MAX_OVERFIT * text.pilot_loss)
    loss = text.pilot_loss + _excess(choice, text, fitted) - excess_of_pilot
    loss += loss_of_repeats(choice, text, fitted) - text.pilot_repeated
    lowest = DAMPED_BELOW * text.pilot_loss
    if loss > lowest or not lowest:
        return max(loss, 0.0)
    return lowest * math.exp(loss / lowest - 1)


def _excess(
    choice: Choice, text: Difficulty, fitted: Coefficients, max_overfit: float = math.inf
) -> float:
    """Return `excess` without its term `repeated`. Its term `overfit` is at most `max_overfit`."""
    U, passes = text.train_ids, choice.characters / text.train_ids
    depth, width = choice.n_layer / PILOT_LAYERS, choice.C / PILOT_C
    # 1. what the model learns from the characters that it sees; repeated ones count less
    useful = MAX_USEFUL_PASSES * (depth * width**2) ** -fitted.revisit_size
    seen = U * useful * -math.expm1(-passes / useful) / REFERENCE_CHARACTERS
    a = fitted.saturates
    gained = (fitted.depth * (1 - depth**-a) + fitted.width * (1 - width**-a)) / a
    gained = max(gained, -MAX_LOST * fitted.seen / fitted.capacity)
    gained *= 1 + fitted.capacity * (1 - seen**-fitted.more_seen)
    learnt = fitted.seen * seen**-fitted.more_seen - gained
    # 2. times how fast losses fall on this text
    gain = max(text.pilot_gain, MIN_GAIN)
    gap = min(max(text.pilot_gap, -MAX_GAP), MAX_GAP)
    slope = 1 + (fitted.learning * (gain - USUAL_GAIN) + fitted.gap * (gap - USUAL_GAP))
    progress = max(text.pilot_gain, text.pilot_gap)  # the gain on val, or on train
    slope = max(slope, MIN_SLOPE) * min(max(progress / MIN_GAIN, 0.0), 1.0)
    # 3. overfitting, which token dropout and averaging members reduce
    memorised = (choice.parameters(text.V) / 1e5) ** fitted.overfit_size
    memorised *= (1e5 / U) ** fitted.overfit_text
    memorised *= fitted.overfit * passes**fitted.overfit_passes
    dropout = choice.token_dropout
    overfit = memorised * math.exp(-fitted.regularised * dropout**fitted.regularised_power)
    overfit = min(overfit, max_overfit)
    overfit *= fitted.shared + (1 - fitted.shared) / choice.members
    averaged = fitted.ensemble * (1 - 1 / choice.members)
    return float(slope * learnt + overfit + fitted.hidden * dropout - averaged)


def loss_of_repeats(choice: Choice, text: Difficulty, fitted: Coefficients = COEFFICIENTS) -> float:
    """Return `repeated`, the part of the predicted val loss that comes from repeated ids.

    In a long run or in a wide model, heads learn to copy these ids. The loss of each then falls to
    about `fitted.copied`.
    """
    longer, wider = choice.characters / text.pilot_characters, choice.C / PILOT_C
    copied = min(fitted.copied * text.repeated_part, text.pilot_repeated)
    better = min(1.0, (longer * wider) ** -fitted.more_copied)
    found = longer**fitted.copying_length * wider**COPYING_WIDTH_POWER
    unfound = 1 / max(found, 1.0) if longer >= 1 else 1.0
    return float(copied * better + (text.pilot_repeated - copied) * unfound)


def why_unknown(choice: Choice, text: Difficulty, unit: str = "character") -> str | None:
    """Return why the val loss cannot be predicted, else None. `unit` is what an id stands for."""
    needed, part, learnt = text.pilot_characters, text.repeated_part, text.pilot_gain
    model = "a small test model"
    regular = f"the text is too regular ({model} has val loss {text.pilot_loss:.2f})"
    reasons = {
        f"the text is too short ({MIN_TEXT:,} training {unit}s needed)": text.train_ids < MIN_TEXT,
        f"the run is too short ({needed:,} {unit}s needed)": choice.characters < needed,
        f"the model is too small (C {MIN_C} needed)": choice.C < MIN_C,
        f"the text repeats itself too much ({part:.0%} of it)": part > MAX_REPEATED,
        regular: text.pilot_loss < MIN_PILOT_LOSS,
        "val differs too much from train": text.pilot_gap > MAX_PILOT_GAP,
        f"{model} learnt too little from the text": max(learnt, text.pilot_gap) < MIN_GAIN,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def is_trusted(choice: Choice, text: Difficulty) -> bool:
    """Return whether the predicted val loss of the run may be compared with those of other runs.

    A run is trusted if it is at most MAX_OUTSIDE times as long and as large as the runs of the fit.
    A run is also trusted if it is no longer than a compute-optimal run; then each member of an
    ensemble must see the whole text, because one larger model learns more from a part of it. If
    every run were trusted, the law would choose small models that see far too many characters.
    """
    U, characters = text.train_ids, choice.characters
    optimal = min(CHARACTERS_PER_PARAMETER * choice.parameters(text.V), MAX_OPTIMAL_PASSES * U)
    repeats = choice.members == 1 or characters >= U
    return max(_outside(choice, text)) <= MAX_OUTSIDE or (characters <= optimal and repeats)


def is_extrapolated(val_loss: float, choice: Choice, text: Difficulty) -> bool:
    """Return whether `choice` or `val_loss` is far outside the ranges of the fit."""
    is_lower = val_loss < MIN_LOSS_RATIO * text.pilot_loss
    return is_lower or max(_outside(choice, text)) > MAX_OUTSIDE


def _outside(choice: Choice, text: Difficulty) -> tuple[float, ...]:
    return (
        choice.characters / FITTED_CHARACTERS,
        choice.characters / text.train_ids / FITTED_PASSES,
        choice.C / FITTED_C,
        choice.n_layer / FITTED_LAYERS,
    )


def uncertainty(val_loss: float, choice: Choice, text: Difficulty) -> float:
    """Return the standard deviation of the prediction `val_loss`.

    The deviation is larger if the pilot was trained briefly or has not learnt to copy, and if the
    run or the text is unlike those that the law was fitted to.
    """
    lowest, highest = PILOT_LOSSES
    factors = (  # by which the text and the run exceed each range
        lowest / max(text.pilot_loss, MIN_UNCERTAINTY),
        text.pilot_loss / highest,
        *_outside(choice, text),
        MIN_LOSS_RATIO * text.pilot_loss / max(val_loss, MIN_UNCERTAINTY),
    )
    outside = sum(math.log(max(1.0, factor)) for factor in factors)
    shorter = min(MAX_PILOT_CHARACTERS, MAX_PILOT_PASSES * text.train_ids) / text.pilot_characters
    relative = UNCERTAINTY * max(1.0, shorter) ** SHORT_PILOT_POWER
    relative *= 1 + OUTSIDE_UNCERTAINTY * outside
    if is_extrapolated(val_loss, choice, text):
        relative *= EXTRAPOLATED_UNCERTAINTY
    unfound = text.pilot_repeated - COEFFICIENTS.copied * text.repeated_part
    copying = COPYING_UNCERTAINTY * max(unfound, 0.0)
    return max(MIN_UNCERTAINTY, math.hypot(relative * val_loss, copying))
