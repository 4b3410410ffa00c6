"""The training loop: step, evaluate, log, save; until there is a reason to stop."""

import logging
import math
from threading import current_thread, main_thread

from gpt.config.period import Period
from gpt.errors import Interrupted, resume_command
from gpt.evaluation.loss import Stopped
from gpt.training.advice import overfit_warning
from gpt.training.callbacks import Callback, EventFunction, OnEvent
from gpt.training.checkpointer import Checkpointer
from gpt.training.data_parallel import check_equal
from gpt.training.evaluator import Evaluator
from gpt.training.members import AnyStep
from gpt.training.metrics_file import MetricsFile, delete_records_after
from gpt.training.progress_bar import ProgressBar
from gpt.training.rollback import Diverged, count_skipped, restore_last
from gpt.training.run_context import Outcome, RunContext
from gpt.training.run_state import CurrentStep, StartingPoint
from gpt.training.stopwatch import SAMPLING
from gpt.training.tensorboard import TensorBoard

log = logging.getLogger(__name__)

LOG_EVERY = Period(steps=10)  # between two records of the train loss
CHECK_PART = 0.02  # time between checks of the plan, as a fraction of the command's time
TOLERANCE = 0.03  # a larger error, as a fraction of the remaining steps, changes the plan


class Trainer:
    """Trains one run from `start` to its end. `gpt.api.train` describes `on_event`."""

    def __init__(self, context: RunContext, start: StartingPoint, on_event: OnEvent | None) -> None:
        self.context, self.train, self.on_event = context, context.config.train, on_event
        self.train_step: AnyStep = start.train_step  # a TrainStep or an EnsembleStep
        self.schedule, self.budget = start.schedule, start.budget
        self.stopwatch = self.budget.stopwatch
        self.evaluator = Evaluator(context, self.train_step.model, self.stopwatch)
        # the state of the run: what checkpoints store, and what belongs to the current step only
        self.progress, self.now = start.progress, CurrentStep(start.step)
        # a resume with changed settings saves them at once
        self.now.is_unsaved = start.saved_config not in (None, context.config)
        self.resumed_at = None if start.saved_config is None else start.step
        self.checkpointer = Checkpointer(context, self.train_step, self.schedule, self.resumed_at)
        self.run_began = context.clock() - self.progress.elapsed_s
        self.furthest_step = start.step  # after a rollback, keep the old plans up to this step
        self.next_check_s = self.budget.used_s + CHECK_PART / 2 * self.budget.given_s
        self.callbacks: list[Callback] = []  # `fit` opens and closes these

    def fit(self) -> Outcome:
        """Train to the last step or an early stop; after a divergence, roll back and continue."""
        notice = ""
        while True:
            self.callbacks = self.open_callbacks()
            try:
                self.begin(notice)
                while not self.now.reason_to_stop:
                    self.take_step()
                    self.do_what_is_due()
                return self.context.ranks.broadcast(self.finish)
            except Diverged as error:
                notice = self.roll_back(str(error))
            finally:
                while self.callbacks:  # break reference cycles, so that memory is freed at once
                    self.callbacks.pop().close()

    def begin(self, notice: str) -> None:
        """Save changed settings; evaluate a new run, or repeat an interrupted evaluation."""
        self.stopwatch.start()
        if notice:
            self.notify(self.now.step, notice)
        if self.now.is_unsaved:  # a resume changed settings, or a rollback halved the rates
            self.report_plan()
            self.write_checkpoint()
        pending = self.progress.pending
        if self.resumed_at is None or pending is not None:
            self.now = CurrentStep(self.now.step, metrics=pending or {})
            self.do_what_is_due()

    def take_step(self) -> None:
        """Update the weights once; if metrics are due, set `now.metrics`."""
        step, unread = self.now.step, self.now.unread
        B, T = self.schedule.shape(step)
        with self.stopwatch.step(T, unread):
            unread.append(self.train_step(step))
            self.now = CurrentStep(step + 1, unread)
            self.progress.val_loss = None  # unknown for the new weights
            results = self.read_due_results()
        for callback in self.callbacks:
            callback.on_step(self.now.step)
        if self.is_due(LOG_EVERY) or self.is_due(self.train.eval_every):
            self.now.metrics = results | {
                "lr": self.schedule.lr(step),
                "chars_per_s": self.stopwatch.pace(B * T),
                "passes": self.context.passes(self.now.step),
            }

    def read_due_results(self) -> dict[str, float]:
        """If due, wait for unread results; return the newest step's metrics, or {} if not due."""
        now, periods = self.now, (LOG_EVERY, self.train.eval_every, self.train.checkpoint_every)
        is_needed = self.schedule.plan_at(now.step) or any(map(self.is_due, periods))
        stops = self.context.ranks.size == 1 and self.context.should_stop()  # several ranks `agree`
        if len(now.unread) < self.train_step.max_unread and not (is_needed or stops):
            return {}
        results = self.train_step.read(now.unread)
        now.unread.clear()
        self.progress.skipped_in_a_row = count_skipped(
            self.train_step, results, now.step, self.progress.skipped_in_a_row, self.notify
        )
        losses, norms = results[-1]  # one for each member of an ensemble
        means = {"train_loss": sum(losses) / len(losses), "grad_norm": sum(norms) / len(norms)}
        return {name: mean for name, mean in means.items() if math.isfinite(mean)}

    def is_due(self, every: Period) -> bool:
        """Return whether an event with the period `every` is due; False for a period in minutes."""
        return self.schedule.is_due(self.now.step, every)

    def do_what_is_due(self) -> None:
        """Evaluate, log, plan and save, each only if due. If a stop is requested, save and stop."""
        is_evaluated = self.evaluate()
        if self.now.metrics:
            for callback in self.callbacks:
                callback.on_metrics(self.now.step, self.now.metrics)
        if self.now.unread:  # plans, checkpoints and stops wait until the results are read
            return
        stop, due_by_clock, total = self.agree()
        if total:
            self.schedule.replan(self.now.step, total)
        if self.now.step != self.resumed_at:
            self.report_plan()
        is_due = self.checkpointer.is_due(self.now, self.progress, by_clock=due_by_clock)
        if self.now.is_unsaved and (is_due or stop):
            self.write_checkpoint()
        if stop and not self.now.reason_to_stop:
            resume = resume_command(self.context.name)
            raise Interrupted(f"stopped at step {self.now.step}, saved; resume with: {resume}")
        if is_evaluated:
            self.stopwatch.lap(SAMPLING)  # the sample and the checkpoint

    def evaluate(self) -> bool:
        """If due, compute the val loss and draw a sample; return whether this was done."""
        now = self.now
        if not self.is_due(self.train.eval_every) and self.progress.pending is None:
            return False
        check_equal(self.train_step.model, now.step, self.context.ranks)
        try:
            part_done = self.schedule.part_done(now.step)
            losses, self.progress, now.is_best, now.reason_to_stop = self.evaluator.evaluate(
                now.step, part_done, self.progress
            )
        except Stopped:  # the next resume repeats the evaluation
            self.progress.pending, now.metrics = now.metrics, {}
            return False
        now.metrics = now.metrics | losses
        if warning := overfit_warning(self.progress):
            self.notify(now.step, warning)
        text = self.evaluator.sample(now.step) if self.callbacks else ""
        for callback in self.callbacks:
            if text:
                callback.on_sample(now.step, text)
            callback.on_evaluation(now.step, losses, now.is_best)
        return True

    def agree(self) -> tuple[bool, bool, int]:
        """Return whether to stop, whether to save by the clock, and a new total of steps, or 0.

        These depend on signals and clocks, so the ranks exchange them and return the same values.
        """
        stop = self.context.should_stop()
        due, total = False, 0  # except on rank 0, so that the sums are rank 0's values
        if self.context.ranks.rank == 0:
            due, total = self.checkpointer.is_due_by_clock(), self.new_total()
        sums = self.context.ranks.sum([stop, due, total])
        return sums[0] > 0, sums[1] > 0, int(sums[2])

    def new_total(self) -> int:
        """Return how many steps the whole run has time for; 0 to keep the plan."""
        step, planned, used_s = self.now.step, self.schedule.steps, self.budget.used_s
        is_repeated = step <= self.furthest_step
        self.furthest_step = max(step, self.furthest_step)
        if is_repeated or step >= planned or used_s < self.next_check_s:
            return 0
        self.next_check_s = used_s + CHECK_PART * self.budget.given_s
        self.stopwatch.settle()
        # the end scores all of val, and again with the best checkpoint, unless that is the last
        whole_splits = 1 if self.progress.since_best == 0 else 2
        total = self.budget.total_steps(self.train, self.schedule, step, whole_splits)
        return total if abs(total - planned) > TOLERANCE * (planned - step) else 0

    def report_plan(self) -> None:
        """If a plan of the total number of steps was made at this step, notify the callbacks."""
        if steps := self.schedule.plan_at(self.now.step):
            for callback in self.callbacks:
                callback.on_plan(self.now.step, steps)

    def write_checkpoint(self) -> None:
        """Write a checkpoint of this step, and pass its path to the callbacks."""
        self.progress.elapsed_s = self.elapsed_s()
        for callback in self.callbacks:
            callback.before_checkpoint()
        path = self.checkpointer.save(self.now, self.progress)
        self.now.is_unsaved = False
        for callback in self.callbacks:
            callback.on_checkpoint(self.now.step, path, self.now.is_best)

    def roll_back(self, reason: str) -> str:
        """Load the last checkpoint; halve the learning rates from there on; return a notice."""
        message = f"rolled back from step {self.now.step}: {reason}"
        step, self.progress = restore_last(
            self.context, self.train_step, self.progress.scale, reason
        )
        self.now = CurrentStep(step)
        self.schedule.lr_scale = self.progress.scale
        self.resumed_at = self.checkpointer.saved_at_step = step
        return f"{message}; learning rates x {self.progress.scale:g} from here"

    def finish(self) -> Outcome:
        """Pass the outcome of the run, and the model, to the callbacks; return the outcome."""
        outcome = self.evaluator.outcome(self.now, self.progress)
        for callback in self.callbacks:
            callback.on_end(outcome, self.train_step.model)
        return outcome

    def elapsed_s(self) -> float:
        """Return the seconds of training over all resumes, without the time between resumes."""
        return self.context.clock() - self.run_began

    def notify(self, step: int, text: str) -> None:
        """Log `text` as a warning, and pass it to the callbacks."""
        log.warning("%s", text)
        for callback in self.callbacks:
            callback.on_notice(step, text)

    def open_callbacks(self) -> list[Callback]:
        """Open and return the callbacks on rank 0; return an empty list on other ranks."""
        if self.context.ranks.rank > 0:
            return []
        folder, is_pending, next_step = self.context.folder, self.progress.pending is not None, None
        if self.resumed_at is not None:
            delete_records_after(folder, self.resumed_at, pending=is_pending)
            next_step = self.resumed_at if is_pending else self.resumed_at + 1
        metrics = MetricsFile(folder, self.elapsed_s)
        callbacks: list[Callback] = [metrics, TensorBoard(self.context, next_step)]
        if current_thread() is main_thread():  # bars of several trainings would overlap
            callbacks.append(ProgressBar(self.schedule.steps, self.resumed_at or 0))
        if self.on_event:
            callbacks.append(EventFunction(self.on_event))
        return callbacks
