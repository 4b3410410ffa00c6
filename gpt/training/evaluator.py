"""Evaluate a model during training: val losses, the best step, early stopping, samples, outcome."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from gpt.config.train_config import TrainConfig
from gpt.evaluation.baselines import trigram_bits_per_character
from gpt.evaluation.loss import evaluate_each, scored_val, val_units
from gpt.model.ensemble import LanguageModel, members_of
from gpt.model.shapes import parameter_count
from gpt.runs.read import read_checkpoint
from gpt.runs.weights import load_weights
from gpt.sampling.generate import generate_text
from gpt.terminal import phase
from gpt.training.advice import advise
from gpt.training.rollback import Diverged
from gpt.training.run_context import Outcome, RunContext
from gpt.training.run_state import CurrentStep, Progress
from gpt.training.stopwatch import CHARACTER, SAMPLING, Stopwatch


class Evaluation(NamedTuple):
    """Result of the evaluation of a step."""

    losses: dict[str, float]  # by name, in nats per id; see `Evaluator.evaluate`
    progress: Progress  # of the run, including this evaluation
    is_best: bool  # whether the step has the lowest loss so far
    reason_to_stop: str  # why training ends at this step; empty while it continues


class Evaluator:
    """Evaluates a model on the val split. It stores nothing of the run; methods return results."""

    def __init__(self, context: RunContext, model: LanguageModel, stopwatch: Stopwatch) -> None:
        self.context, self.model, self.stopwatch = context, model, stopwatch
        self.val, self.units = scored_val(context.corpus), val_units(context.corpus)
        self.untrained_loss = math.log(len(context.corpus.vocabulary))  # all ids equally likely

    def evaluate(self, step: int, part_done: Fraction, progress: Progress) -> Evaluation:
        """Compute the val loss; decide whether `step` is the best so far and whether training ends.

        `part_done` is the fraction of the run that is done after `step` steps; at 1, training ends.
        `progress` is that of the run before this evaluation.

        Returns:
            An Evaluation. Its losses are `val_loss` on the whole val split, or `val_loss_part` if
            `train.eval_characters` limits evaluations to a part. The evaluation that ends training
            returns both. With an ensemble, each member's loss is included; see `_score`. If ids are
            bytes, `val_loss_per_character` accompanies `val_loss`.

        Raises:
            Stopped: a stop was requested.
            Diverged: a loss is NaN or infinite.
        """
        # 1. score val, or a part of it
        train, ids = self.context.config.train, self.units.ids
        part = min(train.eval_characters or ids, ids)
        losses = self._score(step, "val_loss" if part == ids else "val_loss_part", part)
        # 2. compare the loss with earlier ones; decide whether training ends
        is_best, early, reason, best_val_loss = False, "", "", math.inf
        if step or train.init_from is not None:  # else the model is untrained: record no loss
            progress = with_loss(progress, step, next(iter(losses.values())))
            is_best = progress.since_best == 0
            early = early_stop(progress, train)
            reason = early or ("all steps done" if part_done == 1 else "")
        if part_done <= Fraction(1, 2):
            progress = replace(progress, middle_loss=progress.loss)
        # 3. at the end, score all of val, also with the weights of the best checkpoint
        if reason:
            best_val_loss = progress.best_loss
            if "val_loss" not in losses:
                losses |= self._score(step, "val_loss", ids)
                best_val_loss = losses["val_loss"] if is_best else self._score_best()
                if not early and losses["val_loss"] < best_val_loss:  # the best on all of val
                    is_best, best_val_loss = True, losses["val_loss"]
                    progress = with_best(progress, step)
        progress = replace(
            progress,
            val_loss=losses.get("val_loss"),
            best_val_loss=best_val_loss,
            pending=None,
            ended=bool(early),
        )
        if self.context.corpus.vocabulary.is_bytes and "val_loss" in losses:
            losses["val_loss_per_character"] = self.units.per_character(losses["val_loss"])
        return Evaluation(losses, progress, is_best, reason)

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

    def outcome(self, now: CurrentStep, progress: Progress) -> Outcome:
        """Return the outcome of a run that ends with the step `now`."""
        context, train, val_loss = self.context, self.context.config.train, progress.val_loss
        best, passes = progress.best_val_loss, context.passes(now.step)
        assert val_loss is not None
        return Outcome(
            run=context.name,
            text=context.corpus.name,
            seed=context.config.seed,
            parameters=parameter_count(context.config.model, len(context.corpus.vocabulary)),
            reason=now.reason_to_stop,
            step=now.step,
            passes=passes,
            advice=advise(
                progress,
                now.metrics.get("train_loss", val_loss),
                passes,
                self.untrained_loss,
                is_limited=train.minutes is not None and now.step == train.max_steps,
            ),
            val_loss=val_loss,
            val_loss_per_character=self.units.per_character(val_loss),
            best_val_loss=best,
            best_val_loss_per_character=self.units.per_character(best),
            bits_per_byte=self.units.bits_per_byte(best),
            best_step=progress.best_step,
            elapsed_s=round(progress.elapsed_s, 1),  # training up to the last checkpoint
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


def with_loss(progress: Progress, step: int, loss: float) -> Progress:
    """Return `progress` after an evaluation of `step` with this `loss`, as a copy."""
    after = replace(progress, loss=loss, since_best=progress.since_best + 1)
    return with_best(after, step) if loss < progress.best_loss else after


def with_best(progress: Progress, step: int) -> Progress:
    """Return a copy of `progress` in which `step`, which was evaluated last, is the best step."""
    return replace(progress, best_loss=progress.loss, best_step=step, since_best=0)


def early_stop(progress: Progress, train: TrainConfig) -> str:
    """Return why the settings `train` end training early; an empty string if they do not."""
    target, patience = train.stop_at_val_loss, train.patience
    if target is not None and progress.loss <= target:
        part = " on a part of val" if train.eval_characters else ""
        return f"val loss {progress.loss:.4f}{part} has reached train.stop_at_val_loss {target}"
    if patience is not None and progress.since_best >= patience:
        return (
            f"the val loss has not improved since step {progress.best_step}, which is the "
            f"checkpoint that `gpt sample` uses (train.patience {patience})"
        )
    return ""
