"""Advice on a run: a warning when it overfits, and what would help most at its end."""

from gpt.training.run_state import Progress

OVERFIT_EVALUATIONS = 3  # warn after this number of evaluations in a row without a new best loss
OVERFIT_GAP = 0.1  # a val loss above the train loss by more than this fraction is overfitting
RISE = 0.01  # a val loss above the best val loss by more than this fraction is overfitting
FALL = 0.02  # a val loss that fell by a larger fraction in the run's second half is still falling
TINY = 1e-9  # nats; avoids a division by 0
MIN_PASSES = 2  # smallest number of passes that let a model learn the train split by heart


def overfit_warning(progress: Progress) -> str:
    """Return a warning after OVERFIT_EVALUATIONS evaluations without a new best, else ""."""
    if progress.since_best != OVERFIT_EVALUATIONS or progress.loss <= progress.best_loss:
        return ""
    return (
        f"the val loss has risen since step {progress.best_step}: the model overfits; the "
        f"checkpoint of step {progress.best_step} remains the best"
    )


def advise(
    progress: Progress, train_loss: float, passes: float, untrained_loss: float, *, is_limited: bool
) -> str:
    """Return a sentence on what would lower the val loss most, decided when a run has ended.

    `is_limited` is whether the run ended at `train.max_steps`, a limit against overfitting.
    """
    val_loss, best_val_loss = progress.val_loss, progress.best_val_loss
    assert val_loss is not None  # the last evaluation scores all of val
    # fraction by which the loss fell in the second half of the run; twice the time would lower it
    # about as much again
    fall = 1 - progress.loss / max(progress.middle_loss, TINY)
    if best_val_loss >= untrained_loss:
        untrained = f"an untrained model has a val loss of {untrained_loss:.2f}"
        return f"a lower train.learning_rate would help most: {untrained}"
    if progress.best_step == 0:  # only fine-tuning evaluates step 0
        return "a lower train.learning_rate would help most: no step has lowered the val loss"
    seen = f"{passes:,.{1 if passes < 10 else 0}f} passes over the text"
    rise, gap = (val_loss / max(lower, TINY) - 1 for lower in (best_val_loss, train_loss))
    if passes >= MIN_PASSES and (rise > RISE or gap > OVERFIT_GAP):
        why = f"has risen by {rise:.0%}" if rise > RISE else f"is {gap:.0%} above the train loss"
        return f"more text would help most: after {seen}, the val loss {why}"
    if passes >= MIN_PASSES and is_limited:
        return f"more text would help most: after {seen}, further ones may overfit"
    if fall > FALL and val_loss <= best_val_loss:
        return f"more time would help most: after {seen}, the val loss was still falling"
    if passes < MIN_PASSES:
        return f"more time would help most: there were only {seen}"
    larger = "try a larger model.C or model.n_layer"
    return f"neither more time nor more text would help much, after {seen}: {larger}"
