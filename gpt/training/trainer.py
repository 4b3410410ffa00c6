"""The training loop: step, evaluate, log, save; until there is a reason to stop."""

import logging
from threading import current_thread, main_thread

from gpt.errors import Interrupted, command
from gpt.evaluation.loss import Stopped
from gpt.training.callbacks import (
    Callback,
    EventFunction,
    MetricsFile,
    OnEvent,
    ProgressBar,
    delete_records_after,
)
from gpt.training.checkpointer import Checkpointer
from gpt.training.data_parallel import check_equal
from gpt.training.evaluator import Evaluator
from gpt.training.run_context import Diverged, Outcome, RunContext
from gpt.training.run_state import RunState, read_results, restore_last
from gpt.training.step import StepResult
from gpt.training.tensorboard import TensorBoard
from gpt.training.time_budget import MIN_STEP_S, SAMPLING

log = logging.getLogger(__name__)

LOG_EVERY = 10  # steps between two records of the train loss; evaluations record it, too


class Trainer:
    """Trains one run, starting from `state`. `gpt.api.train` describes `on_event`."""

    def __init__(self, context: RunContext, state: RunState, on_event: OnEvent | None) -> None:
        self.context, self.config, self.on_event = context, context.config.train, on_event
        self.step, self.update, self.schedule = state.step, state.update, state.schedule
        self.budget, self.stopwatch = state.budget, state.budget.stopwatch
        self.run_began = context.clock() - state.progress.elapsed_s
        self.resumed_at = None if state.saved_config is None else state.step
        self.is_unsaved = state.saved_config not in (None, context.config)  # settings changed
        self.evaluator = Evaluator(context, self.update.model, self.stopwatch, state.progress)
        self.checkpointer = Checkpointer(context, self.update, self.schedule, self.resumed_at)
        self.callbacks: list[Callback] = []  # `fit` opens and closes these
        self.unread: list[StepResult] = []  # results of the newest steps
        self.metrics: dict[str, float] = {}  # metrics of this step
        self.furthest_step = self.step  # after a rollback, keep the old plans up to this step
        self.timed_characters, self.timed_s = 0, 0.0  # totals since the pace was last logged
        self.rollback_notice = ""  # about the last rollback, if any

    def elapsed_s(self) -> float:
        """Return the seconds of training over all resumes, without the time between resumes."""
        return self.context.clock() - self.run_began

    def fit(self) -> Outcome:
        """Train to the last step or an early stop; after a divergence, roll back and continue."""
        while True:
            self.callbacks = self.open_callbacks()
            try:
                self.start()
                while not self.evaluator.reason_to_stop:
                    self.take_step()
                    self.do_what_is_due()
                return self.context.ranks.broadcast(self.finish)
            except Diverged as error:
                self.roll_back(str(error))
            finally:
                while self.callbacks:  # break reference cycles, so that memory is freed at once
                    self.callbacks.pop().close()

    def open_callbacks(self) -> list[Callback]:
        """Open and return the callbacks on rank 0; return an empty list on other ranks."""
        if self.context.ranks.rank > 0:
            return []
        folder, is_pending = self.context.folder, self.evaluator.progress.pending is not None
        if self.resumed_at is not None:
            delete_records_after(folder, self.resumed_at, pending=is_pending)
        next_step = None if self.resumed_at is None else self.resumed_at + (not is_pending)
        metrics = MetricsFile(folder, self.elapsed_s)
        callbacks: list[Callback] = [metrics, TensorBoard(self.context, next_step)]
        if current_thread() is main_thread():  # bars of several trainings would overlap
            callbacks.append(ProgressBar(self.schedule.steps, self.resumed_at or 0))
        if self.on_event:
            callbacks.append(EventFunction(self.on_event))
        return callbacks

    def start(self) -> None:
        """Save changed settings; evaluate a new run, or repeat an interrupted evaluation."""
        self.stopwatch.start()
        if self.rollback_notice:
            self.notify(self.step, self.rollback_notice)
        if self.is_unsaved:  # a resume changed settings, or a rollback halved the learning rates
            self.report_plan()
            self.write_checkpoint()
        pending = self.evaluator.progress.pending
        if self.resumed_at is None or pending is not None:
            self.metrics = pending or {}
            self.is_unsaved = True
            self.do_what_is_due()

    def take_step(self) -> None:
        """Update the weights once; if metrics are due, set `self.metrics`."""
        T = self.schedule.shape(self.step)[1]
        if not self.unread:
            self.stopwatch.lap(T, 0)  # adds the time since the last lap, but counts no step
        self.unread.append(self.update(self.step))
        self.step += 1
        self.is_unsaved = True
        self.metrics = {}
        self.evaluator.is_best = False
        self.evaluator.progress.val_loss = None  # unknown for the new weights
        count, results = len(self.unread), self.read_due_results()
        if not self.unread:
            self.timed_s += self.stopwatch.lap(T, count)
        self.timed_characters += self.schedule.batch_size * self.schedule.T
        for callback in self.callbacks:
            callback.on_step(self.step)
        if self.is_due(LOG_EVERY) or self.is_due(self.config.eval_every):
            pace = round(self.timed_characters / max(self.timed_s, MIN_STEP_S), 1)
            lr, passes = self.schedule.lr(self.step - 1), self.evaluator.passes(self.step)
            self.metrics = results | {"lr": lr, "chars_per_s": pace, "passes": passes}
            self.timed_characters, self.timed_s = 0, 0.0

    def read_due_results(self) -> dict[str, float]:
        """If due, wait for unread results; return the newest step's metrics, or {} if not due."""
        periods = (LOG_EVERY, self.config.eval_every, self.config.checkpoint_every)
        is_needed = self.schedule.plan_at(self.step) or any(map(self.is_due, periods))
        stops = self.context.ranks.size == 1 and self.context.should_stop()  # else `agree` decides
        if len(self.unread) < self.update.max_unread and not (is_needed or stops):
            return {}
        progress = self.evaluator.progress
        results = read_results(self.update, self.unread, self.step, progress, self.notify)
        self.unread.clear()
        return results

    def is_due(self, every: int | str) -> bool:
        """Return whether an event with the period `every` is due; False for a period in minutes."""
        return "min" not in str(every) and self.schedule.is_due(self.step, every)

    def evaluate(self) -> bool:
        """If an evaluation is due, compute the val loss, and draw a sample; else return False."""
        if not self.is_due(self.config.eval_every) and self.evaluator.progress.pending is None:
            return False
        check_equal(self.update.model, self.step, self.context.ranks)
        try:
            losses = self.evaluator.evaluate(self.step, self.schedule.part_done(self.step))
        except Stopped:  # the next resume repeats the evaluation
            self.evaluator.progress.pending = self.metrics
            self.metrics = {}
            return False
        self.metrics |= losses
        if warning := self.evaluator.progress.overfit_warning():
            self.notify(self.step, warning)
        text = self.evaluator.sample(self.step) if self.callbacks else ""
        for callback in self.callbacks:
            if text:
                callback.on_sample(self.step, text)
            callback.on_evaluation(self.step, losses, self.evaluator.is_best)
        return True

    def do_what_is_due(self) -> None:
        """Evaluate, log, plan and save, each only if due. If a stop is requested, save and stop."""
        is_evaluated = self.evaluate()
        if self.metrics:
            for callback in self.callbacks:
                callback.on_metrics(self.step, self.metrics)
        if self.unread:  # plans, checkpoints and stops wait until the results are read
            return
        stop, due_by_clock, total = self.agree()
        self.replan(total)
        self.save(due_by_clock, stop)
        if stop and not self.evaluator.reason_to_stop:
            resume = command("train", "--resume", self.context.name)
            raise Interrupted(f"stopped at step {self.step}, saved; resume with: {resume}")
        if is_evaluated:
            self.stopwatch.lap(SAMPLING)

    def agree(self) -> tuple[bool, bool, int]:
        """Return decisions that depend on signals or clocks, the same on all ranks.

        The decisions are: whether to stop, whether a checkpoint is due by the clock, and the new
        number of steps of the whole run, which is 0 if the plan does not change.
        """
        stop, due, total = self.context.should_stop(), False, 0
        if self.context.ranks.rank == 0:
            due = self.checkpointer.is_due_by_clock()
            if self.step > self.furthest_step:
                # at the end, the best checkpoint is scored, too, unless the last step is the best
                whole_splits = 1 if self.evaluator.progress.since_best == 0 else 2
                total = self.budget.new_total(self.schedule, self.step, whole_splits) or 0
        # `due` and `total` are 0 except on rank 0, so their sums are rank 0's values
        stops, dues, total = map(int, self.context.ranks.sum([stop, due, total]))
        return stops > 0, dues > 0, total

    def save(self, due_by_clock: bool, stop: bool) -> None:
        """Save a checkpoint if one is due or outdated, at a `stop`, or at the best or last step."""
        is_stable = not self.evaluator.progress.skipped_in_a_row  # no checkpoint is due otherwise
        is_due = is_stable and (due_by_clock or self.is_due(self.config.checkpoint_every))
        is_outdated = self.checkpointer.saved_at_step == self.step  # saved without this evaluation
        is_last_or_best = self.evaluator.reason_to_stop or self.evaluator.is_best
        if self.is_unsaved and (is_due or is_outdated or is_last_or_best or stop):
            self.write_checkpoint()

    def replan(self, total: int) -> None:
        """If `total` > 0, plan `total` steps for the whole run. Report this step's plan, if any."""
        self.furthest_step = max(self.furthest_step, self.step)
        if total:
            self.schedule.replan(self.step, total)
        if self.step != self.resumed_at:
            self.report_plan()

    def report_plan(self) -> None:
        """If a plan of the total number of steps was made at this step, notify the callbacks."""
        if steps := self.schedule.plan_at(self.step):
            for callback in self.callbacks:
                callback.on_plan(self.step, steps)

    def write_checkpoint(self) -> None:
        """Write a checkpoint of this step, and pass its path to the callbacks."""
        progress, is_finished = self.evaluator.progress, bool(self.evaluator.reason_to_stop)
        progress.elapsed_s = self.elapsed_s()
        for callback in self.callbacks:
            callback.before_checkpoint()
        path = self.checkpointer.save(self.step, progress, is_finished)
        self.is_unsaved = False
        for callback in self.callbacks:
            callback.on_checkpoint(self.step, path, self.evaluator.is_best)

    def finish(self) -> Outcome:
        """Pass the outcome of the run, and the model, to the callbacks; return the outcome."""
        outcome = self.evaluator.outcome(self.step, self.metrics)
        for callback in self.callbacks:
            callback.on_end(outcome, self.update.model)
        return outcome

    def notify(self, step: int, text: str) -> None:
        """Log `text` as a warning, and pass it to the callbacks."""
        log.warning("%s", text)
        for callback in self.callbacks:
            callback.on_notice(step, text)

    def roll_back(self, reason: str) -> None:
        """Load the last checkpoint, and halve the learning rates from there on."""
        message = f"rolled back from step {self.step}: {reason}"
        self.step, progress = restore_last(self.context, self.update, self.schedule, reason)
        self.evaluator.restart(progress)
        self.resumed_at = self.checkpointer.saved_at_step = self.step
        self.unread = []
        self.is_unsaved = True
        self.rollback_notice = f"{message}; learning rates x {progress.scale:g} from here"
