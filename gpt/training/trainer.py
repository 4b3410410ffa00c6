"""The training loop: step, evaluate, log, save; until there is a reason to stop."""

import logging
from threading import current_thread, main_thread

from gpt.distributed.ddp import check_equal
from gpt.errors import Interrupted, command
from gpt.evaluation.loss import Stopped
from gpt.training.callbacks.bar import ProgressBar
from gpt.training.callbacks.callback import Callback, EventFunction, OnEvent
from gpt.training.callbacks.jsonl import MetricsFile, delete_records_after
from gpt.training.callbacks.tensorboard import TensorBoard
from gpt.training.checkpointer import Checkpointer
from gpt.training.divergence import read_results, restore_last
from gpt.training.evaluator import Evaluator
from gpt.training.run_context import Outcome, RunContext
from gpt.training.run_state import RunState
from gpt.training.step import StepResult
from gpt.training.stopwatch import MILESTONE

log = logging.getLogger(__name__)

MAX_UNREAD_STEPS = 10  # largest number of steps whose results are not read yet


class Trainer:
    """Trains one run, starting from `state`. `gpt.api.train` describes `on_event`."""

    def __init__(self, context: RunContext, state: RunState, on_event: OnEvent | None) -> None:
        self.context, self.config, self.on_event = context, context.config.train, on_event
        self.step, self.update, self.schedule = state.step, state.update, state.schedule
        self.budget, self.stopwatch = state.budget, state.budget.stopwatch
        self.clock, self.began = context.clock, context.clock()
        self.started = self.began - state.progress.elapsed_s
        self.resumed_at = None if state.saved_config is None else state.step
        self.is_unsaved = state.saved_config not in (None, context.config)
        self.evaluator = Evaluator(context, self.update.model, self.stopwatch, state.progress)
        self.checkpointer = Checkpointer(context, self.update, self.schedule, self.resumed_at)
        self.callbacks: list[Callback] = []  # open while `fit` runs
        self.unread: list[StepResult] = []  # results of the last steps
        self.metrics: dict[str, float] = {}  # metrics of this step
        self.furthest_step = self.step  # after a rollback, keep the old plans up to here
        self.timed_characters, self.timed_s = 0, 0.0  # since the pace was last logged

    @property
    def elapsed_s(self) -> float:
        """Seconds of training so far, over all resumes."""
        return self.clock() - self.started

    def fit(self, notice: str = "") -> Outcome:
        """Log `notice` about a rollback, if any, and train to the last step or an early stop."""
        self.callbacks = self.open_callbacks()
        try:
            self.start(notice)
            while not self.evaluator.reason_to_stop:
                self.take_step()
                self.evaluate()
                self.log()
                self.save()
            return self.context.ranks.broadcast(self.finish)
        finally:
            while self.callbacks:  # break reference cycles, so that memory is freed at once
                self.callbacks.pop().close()

    def open_callbacks(self) -> list[Callback]:
        """Open and return the callbacks on rank 0; return an empty list on other ranks."""
        if self.context.ranks.rank > 0:
            return []
        at, pending = self.resumed_at, self.evaluator.progress.pending is not None
        path = self.context.folder / "metrics.jsonl"
        if at is not None:
            delete_records_after(path, at, pending=pending)
        metrics = MetricsFile(path, lambda: self.elapsed_s)
        next_step = None if at is None else at + (not pending)
        callbacks: list[Callback] = [metrics, TensorBoard(self.context, next_step)]
        if current_thread() is main_thread():  # bars of several trainings would overlap
            callbacks.append(ProgressBar(self.schedule.steps, at or 0))
        return [*callbacks, EventFunction(self.on_event)] if self.on_event else callbacks

    def start(self, notice: str) -> None:
        """Evaluate and save step 0 of a new run, or repeat an evaluation that was interrupted.

        If a resume or a rollback changed the settings or the schedule, first save a checkpoint.
        """
        self.stopwatch.start()
        if notice:
            self.notify(self.step, notice)
        if self.is_unsaved:  # so that a killed run resumes with these settings and learning rates
            self.report_plan()
            self.write_checkpoint()
        pending = self.evaluator.progress.pending
        if self.resumed_at is None or pending is not None:
            self.metrics, self.is_unsaved = pending or {}, True
            self.evaluate()
            self.log()
            self.save()

    def take_step(self) -> None:
        """Update the weights once, and wait for the loss only if it is needed at this step."""
        T, began = self.schedule.shape(self.step)[1], self.clock()
        was_evaluated = bool(self.metrics.keys() & {"val_loss", "val_loss_part"})
        was_milestone = was_evaluated and self.is_due(self.schedule.milestone_every)
        self.stopwatch.lap(*((MILESTONE, 1) if was_milestone else (T, 0)))
        self.unread.append(self.update(self.step))
        self.step, self.is_unsaved, self.metrics = self.step + 1, True, {}
        progress = self.evaluator.progress
        self.evaluator.is_best, progress.val_loss = False, None
        periods = (self.config.log_every, self.config.eval_every, self.config.checkpoint_every)
        needed = self.step in dict(self.schedule.plans) or any(map(self.is_due, periods))
        results: dict[str, float] = {}
        if needed or not self.update.is_asynchronous or len(self.unread) >= MAX_UNREAD_STEPS:
            results = read_results(self.update, self.unread, self.step, progress, self.notify)
            self.unread.clear()
        self.stopwatch.lap(T)
        self.timed_characters += self.schedule.batch_size * self.schedule.T
        self.timed_s += self.clock() - began
        for callback in self.callbacks:
            callback.on_step(self.step)
        if self.is_due(self.config.log_every):
            pace = round(self.timed_characters / self.timed_s, 1)
            lr, passes = self.schedule.lr(self.step - 1), self.evaluator.passes(self.step)
            self.metrics = results | {"lr": lr, "chars_per_s": pace, "passes": passes}
            self.timed_characters, self.timed_s = 0, 0.0

    def is_due(self, every: int | str) -> bool:
        """Return whether an event with the period `every` is due; False for a period in minutes."""
        return "min" not in str(every) and self.schedule.is_due(self.step, every)

    def evaluate(self) -> None:
        """If an evaluation is due, compute the val loss; at a milestone, also draw a sample.

        If a stop is requested meanwhile, the next resume repeats the evaluation.
        """
        if not self.is_due(self.config.eval_every) and self.evaluator.progress.pending is None:
            return
        check_equal(self.update.model, self.step, self.context.ranks)
        is_milestone = self.is_due(self.schedule.milestone_every)
        try:
            losses = self.evaluator.evaluate(
                self.step, is_milestone=is_milestone, is_last=self.step >= self.schedule.steps
            )
        except Stopped:
            self.evaluator.progress.pending = self.metrics  # for the repeated evaluation
            self.metrics = {}
            return
        self.metrics |= losses
        if self.callbacks:
            evaluation = self.evaluator.describe(self.step, losses, is_milestone)
            for callback in self.callbacks:
                callback.on_evaluation(self.step, evaluation)

    def log(self) -> None:
        """Pass the metrics of this step to the callbacks, if there are any metrics."""
        if self.metrics:
            for callback in self.callbacks:
                callback.on_metrics(self.step, self.metrics)

    def save(self) -> None:
        """Save a checkpoint if one is due, or this step is the best or the last.

        If a stop is requested, save a checkpoint and raise Interrupted.
        """
        if self.unread:  # stops and checkpoints by the clock wait until the results are read
            return
        stop, due, end = self.ask()
        self.follow(end)
        reason, skipped = self.evaluator.reason_to_stop, self.evaluator.progress.skipped_in_a_row
        # while steps are being skipped, keep the checkpoint from before them: see `roll_back`
        due = (due or self.is_due(self.config.checkpoint_every)) and not skipped
        again = self.checkpointer.saved_at_step == self.step  # saved before its evaluation
        if self.is_unsaved and (due or again or self.evaluator.is_best or reason or stop):
            self.write_checkpoint()
        if stop and not reason:
            resume = command("train", "--resume", self.context.name)
            raise Interrupted(f"stopped at step {self.step}, saved; resume with: {resume}")

    def ask(self) -> tuple[bool, bool, int]:
        """Ask all ranks whether to stop, and rank 0 for what its clock decides.

        One all-reduce makes the answers equal on all ranks.

        Returns:
            Whether to stop; whether a checkpoint is due by the clock; and the number of steps of a
            new plan, or 0 to keep the plan.
        """
        stop, due, end = self.context.should_stop(), False, 0
        if self.context.ranks.rank == 0:
            due = self.checkpointer.is_due_by_clock()
            if self.step > self.furthest_step:
                # at the end the best checkpoint is scored, too, unless it is the last
                whole_splits = 1 if self.evaluator.progress.since_best == 0 else 2
                end = self.budget.new_end(self.schedule, self.step, whole_splits) or 0
        # the sums of `due` and `end` are the values of rank 0: they are 0 on other ranks
        stops, dues, end = map(int, self.context.ranks.sum([stop, due, end]))
        return stops > 0, dues > 0, end

    def follow(self, end: int) -> None:
        """Plan `end` steps for the whole run, unless it is 0; report the plan of this step."""
        self.furthest_step = max(self.furthest_step, self.step)
        if end:
            self.schedule.replan(self.step, end)
            self.update.follow(self.schedule)
        if self.step != self.resumed_at:
            self.report_plan()

    def report_plan(self) -> None:
        """If the planned number of steps of the run changed at this step, notify the callbacks."""
        if steps := dict(self.schedule.plans).get(self.step):
            for callback in self.callbacks:
                callback.on_plan(self.step, steps)

    def write_checkpoint(self) -> None:
        """Write a checkpoint of this step, and pass its path to the callbacks."""
        evaluator = self.evaluator
        evaluator.progress.elapsed_s = self.elapsed_s
        for callback in self.callbacks:
            callback.before_checkpoint()
        self.checkpointer.save(self.step, evaluator.progress, bool(evaluator.reason_to_stop))
        self.is_unsaved = False
        path = f"{self.context.name}/checkpoints/step-{self.step}"
        for callback in self.callbacks:
            callback.on_checkpoint(self.step, path, evaluator.is_best)

    def finish(self) -> Outcome:
        """Pass the outcome of the run and the model to the callbacks; return the outcome."""
        outcome = self.evaluator.outcome(self.step, self.clock() - self.began, self.metrics)
        for callback in self.callbacks:
            callback.on_end(outcome, self.update.model)
        return outcome

    def notify(self, step: int, text: str) -> None:
        """Log `text` as a warning, and pass it to the callbacks."""
        log.warning("%s", text)
        for callback in self.callbacks:
            callback.on_notice(step, text)

    def roll_back(self, reason: str) -> str:
        """Load the last checkpoint and halve the learning rates; return a message for the user."""
        diverged_at = self.step
        self.step, progress = restore_last(self.context, self.update, self.schedule, reason)
        self.evaluator.restart(progress)
        self.resumed_at = self.checkpointer.saved_at_step = self.step
        self.unread, self.is_unsaved = [], True
        rates = f"learning rates x {progress.scale:g} from here"
        return f"rolled back from step {diverged_at}: {reason}; {rates}"
