"""Evaluations: the val loss, samples, and the advice at the end of a run."""

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from gpt.evaluation.baselines import trigram_bits_per_character
from gpt.evaluation.loss import evaluate_each, scored_val, val_units
from gpt.model.ensemble import LanguageModel, members_of
from gpt.model.shapes import parameter_count
from gpt.runs.read import read_checkpoint
from gpt.runs.weights import load_weights
from gpt.sampling.generate import generate_text
from gpt.terminal import phase
from gpt.training.run_context import Diverged, Outcome, Progress, RunContext
from gpt.training.time_budget import CHARACTER, SAMPLING, Stopwatch

OVERFIT_GAP = 0.1  # a val loss above the train loss by more than this fraction is overfitting
RISE = 0.01  # a val loss above the best val loss by more than this fraction is overfitting
FALL = 0.02  # a val loss that fell by a larger fraction in the run's second half is still falling
TINY = 1e-9  # nats; avoids a division by 0
MIN_PASSES = 2  # smallest number of passes that let a model learn the train split by heart


class Evaluator:
    """Evaluates a model on the val split, and decides when training ends."""

    def __init__(
        self, context: RunContext, model: LanguageModel, stopwatch: Stopwatch, progress: Progress
    ) -> None:
        self.context, self.model, self.stopwatch = context, model, stopwatch
        self.val, self.units = scored_val(context.corpus), val_units(context.corpus)
        self.untrained_loss = math.log(len(context.corpus.vocabulary))  # all ids equally likely
        self.restart(progress)

    def restart(self, progress: Progress) -> None:
        """Continue from `progress`: at the start, at a resume, or after a rollback."""
        self.progress = progress
        self.is_best = False  # whether this step was evaluated and has the lowest loss so far
        self.reason_to_stop = ""  # why training ends at this step; empty while it continues

    def evaluate(self, step: int, part_done: Fraction) -> dict[str, float]:
        """Compute the val loss; record whether `step` is the best so far and whether training ends.

        `part_done` is the fraction of the run that is done after `step` steps; at 1, training ends.

        Returns:
            Losses by name, in nats per id: `val_loss` on the whole val split, or `val_loss_part`
            if `train.eval_characters` limits evaluations to a part. The evaluation that ends
            training returns both. With an ensemble, each member's loss is included; see `_score`.
            If ids are bytes, `val_loss_per_character` accompanies `val_loss`.

        Raises:
            Stopped: a stop was requested; the attributes of this object are unchanged.
            Diverged: a loss is NaN or infinite.
        """
        train, ids = self.context.config.train, self.units.ids
        part = min(train.eval_characters or ids, ids)
        losses = self._score(step, "val_loss" if part == ids else "val_loss_part", part)
        progress, is_best = replace(self.progress, pending=None), False
        if step or train.init_from is not None:  # else the model is untrained: record no loss
            is_best = progress.add(step, next(iter(losses.values())))
            if part_done <= Fraction(1, 2):
                progress.middle_loss = progress.loss
            early = progress.early_stop(train)
            progress.ended = bool(early)
            reason = early or ("all steps done" if part_done == 1 else "")
            best_val_loss = progress.best_loss if reason else math.inf
            if reason and "val_loss" not in losses:
                losses |= self._score(step, "val_loss", ids)
                best_val_loss = losses["val_loss"] if is_best else self._score_best()
                if not early and losses["val_loss"] < best_val_loss:  # the best on all of val
                    is_best, best_val_loss = True, losses["val_loss"]
                    progress.set_best(step)
            self.reason_to_stop, progress.best_val_loss = reason, best_val_loss
        progress.val_loss = losses.get("val_loss")
        self.progress, self.is_best = progress, is_best
        if self.context.corpus.vocabulary.is_bytes and "val_loss" in losses:
            losses["val_loss_per_character"] = self.units.per_character(losses["val_loss"])
        return losses

    def sample(self, step: int) -> str:
        """Return `train.sample_length` characters that the model generates, seeded by `step`."""
        config = self.context.config
        return generate_text(
            self.model,
            self.context.corpus.vocabulary,
            length=config.train.sample_length,
            rules=config.sample,
            seed=config.seed,
            step=step,
        )

    def passes(self, step: int) -> float:
        """Return the number of passes over the train split in `step` steps."""
        config = self.context.config
        ids = step * config.train.batch_size * config.model.T
        return round(ids / len(self.context.corpus.train), 4)

    def outcome(self, step: int, metrics: Mapping[str, float]) -> Outcome:
        """Return the result of a run, from its last `step` and the `metrics` of that step."""
        context, val_loss = self.context, self.progress.val_loss
        best, train = self.progress.best_val_loss, context.config.train
        assert val_loss is not None
        return Outcome(
            run=context.name,
            text=context.corpus.name,
            seed=context.config.seed,
            parameters=parameter_count(context.config.model, len(context.corpus.vocabulary)),
            reason=self.reason_to_stop,
            step=step,
            passes=self.passes(step),
            advice=advise(
                train_loss=metrics.get("train_loss", val_loss),
                val_loss=val_loss,
                best_val_loss=best,
                fall=1 - self.progress.loss / max(self.progress.middle_loss, TINY),
                passes=self.passes(step),
                untrained_loss=self.untrained_loss,
                best_step=self.progress.best_step,
                is_limited=train.minutes is not None and step == train.max_steps,
            ),
            val_loss=val_loss,
            val_loss_per_character=self.units.per_character(val_loss),
            best_val_loss=best,
            best_val_loss_per_character=self.units.per_character(best),
            bits_per_byte=self.units.bits_per_byte(best),
            best_step=self.progress.best_step,
            elapsed_s=round(self.progress.elapsed_s, 1),  # training up to the last checkpoint
            trigram_bits_per_character=trigram_bits_per_character(context.corpus),
        )

    def _score(self, step: int, name: str, count: int) -> dict[str, float]:
        """Return losses by name, in nats per id, on about `count` ids of the val split.

        The key `name` has the loss of the model. In an ensemble, `{name}_member_1` has the first
        member's loss.
        """
        if step == 0 and not any(m.head.weight.any() for m in members_of(self.model)):
            return {name: self.untrained_loss}  # a head of zeros predicts all ids equally
        self.stopwatch.lap(SAMPLING, 0)
        with phase("evaluating"):
            loss, *others = evaluate_each(
                self.model,
                self.val,
                characters=count,
                should_stop=self.context.should_stop,
                ranks=self.context.ranks,
            )
        self.stopwatch.lap(CHARACTER, count)
        if not math.isfinite(loss):
            raise Diverged(f"step {step}: the val loss is {loss}")
        members = {f"{name}_member_{m}": each for m, each in enumerate(others, start=1)}
        return {name: loss} | members

    def _score_best(self) -> float:
        """Return the best checkpoint's loss on the whole val split; restore the current weights."""
        self.model.zero_grad(set_to_none=True)  # free memory for a copy of the weights
        weights = {name: weight.clone() for name, weight in self.model.state_dict().items()}
        try:
            best = self.context.ranks.broadcast(read_checkpoint, self.context.folder, "best")
            load_weights(self.model, best)
            return self._score(best.step, "val_loss", self.units.ids)["val_loss"]
        finally:
            self.model.load_state_dict(weights)


def advise(
    train_loss: float,
    val_loss: float,
    best_val_loss: float,
    fall: float,
    passes: float,
    untrained_loss: float,
    best_step: int,
    is_limited: bool = False,
) -> str:
    """Return a sentence on what would lower the val loss most, decided when a run has ended.

    `best_val_loss` is the loss at `best_step`. `fall` is the fraction by which the val loss fell in
    the second half of the run; twice the time would lower it about as much again. `is_limited` is
    whether the run ended at `train.max_steps`, a limit against overfitting.
    """
    if best_val_loss >= untrained_loss:
        untrained = f"an untrained model has a val loss of {untrained_loss:.2f}"
        return f"a lower train.learning_rate would help most: {untrained}"
    if best_step == 0:  # only fine-tuning evaluates step 0
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
