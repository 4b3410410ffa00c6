"""Advise what would lower the val loss of a run most: more text, more time, or neither."""

OVERFIT_GAP = 0.1  # fraction of the train loss; a val loss further above it is overfitting
RISE = 0.01  # fraction of the best val loss; a larger rise since then is overfitting
FALL = 0.005  # fraction of the val loss; a larger fall in the last evaluation is a trend
TINY = 1e-9  # nats; avoids a division by 0
MIN_PASSES = 2  # passes over the train split from which a model can learn it by heart


def advise(
    train_loss: float, loss: float, best_loss: float, earlier_loss: float, passes: float
) -> str:
    """Return a sentence on what would help most, decided from the losses at the end of a run.

    1. Overfitting: the val loss has risen, or is far above the train loss. More text helps.
    2. The val loss was still falling. More time helps.
    3. Otherwise, neither helps much.

    `loss`, `best_loss` and `earlier_loss` are val losses: the newest, the lowest, and that of the
    evaluation before the newest (infinity if there is none).
    """
    seen = f"{passes:,.{1 if passes < 10 else 0}f} passes over the text"
    rise, gap = (loss / max(lower, TINY) - 1 for lower in (best_loss, train_loss))
    fall = 1 - loss / max(earlier_loss, TINY)
    if passes >= MIN_PASSES and (rise > RISE or gap > OVERFIT_GAP):
        why = f"has risen by {rise:.0%}" if rise > RISE else f"is {gap:.0%} above the train loss"
        return f"more text would help most: after {seen}, the val loss {why}"
    if fall > FALL:
        return f"more time would help most: after {seen}, the val loss was still falling"
    larger = "try a larger model.C or model.n_layer"
    return f"neither more time nor more text would help much, after {seen}: {larger}"
