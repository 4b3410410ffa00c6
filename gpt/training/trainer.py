"""The training loop: step, evaluate, log, save; until there is a reason to stop."""

import logging
import math
import shlex
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpt.config.schema import Config
from gpt.config.yaml import to_yaml
from gpt.device import computing_with, select_device
from gpt.distributed.ddp import check_equal, select_own_device, select_own_threads
from gpt.distributed.launch import remember
from gpt.distributed.ranks import SINGLE, Ranks
from gpt.errors import Interrupted, TrainingError, Unreadable, UsageError, command, counted
from gpt.evaluation.attention_weights import attend
from gpt.evaluation.baselines import measure_baselines
from gpt.evaluation.loss import Stopped, evaluate_each, scored_val, val_units
from gpt.files import write_atomically
from gpt.model.ensemble import LanguageModel, members_of
from gpt.model.transformer import count_parameters
from gpt.runs.folder import check_free, make_folder, make_numbered
from gpt.runs.format import CheckpointData, TrainingState
from gpt.runs.lock import check_plain, finish_overwrite, locked, set_aside
from gpt.runs.provenance import note_start
from gpt.runs.read import read_checkpoint
from gpt.runs.weights import load_weights, weights_of
from gpt.runs.write import write_checkpoint
from gpt.sampling.generate import generate_text
from gpt.status import phase
from gpt.text.batches import to_torch
from gpt.text.corpus import Corpus
from gpt.text.standard_input import store_standard_input
from gpt.training.build_step import build_step
from gpt.training.init_from import initial_model
from gpt.training.memory_estimate import check_training_memory
from gpt.training.monitor.monitor import Monitor
from gpt.training.monitor.silent import SilentMonitor
from gpt.training.progress import Progress
from gpt.training.resume import RunState, resume_from, roll_back, schedule_factor
from gpt.training.schedule import Schedule, is_due, learning_rate, window_length, with_plan
from gpt.training.step import Result
from gpt.training.teacher import load_teacher
from gpt.training.time_budget import CHARACTER, EVALUATION, PICTURE, TimeBudget

log = logging.getLogger(__name__)

OVERFIT_EVALUATIONS = 3  # evaluations in a row without a new best before a notice
SKIPPED_STEPS = 3  # skipped steps in a row before a rollback
ROLLBACKS = 3  # largest number of rollbacks
UNREAD_STEPS = 10  # most steps that run ahead of the CPU on an accelerator
EVALUATION_SHARE_TO_WARN = 0.5  # fraction of the run's time
ATTENTION_CHARACTERS = 32  # characters of the val split whose attention is drawn


class Diverged(Exception):
    """The loss is NaN or infinite; the message says where."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. Losses are in nats per id: a character, or with bytes a byte."""

    run: str
    text: str
    config: str  # the path of the resolved config
    seed: int
    parameters: int
    reason: str
    step: int
    val_loss: float
    val_loss_per_character: float  # in nats, as the next
    best_val_loss: float
    best_val_loss_per_character: float
    bits_per_byte: float  # of UTF-8: the best val loss, to compare runs of any vocabulary by
    best_step: int
    trigram_bits_per_character: float | None  # see Baselines, as the next
    xz_bits_per_character: float
    elapsed_s: float  # of training, over all resumes
    seconds: float  # of this call


def train(
    config: Config,
    corpus: Corpus,
    run: Path,
    *,
    typed: Path | None = None,
    resume: bool = False,
    adds_minutes: bool = False,
    overwrite: bool = False,
    numbered: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[dict[str, Any]], object] | None = None,
    clock: Callable[[], float] | None = None,
    ranks: Ranks = SINGLE,
) -> Outcome:
    """Train a model on a corpus in a run folder, from the start or from its last checkpoint.

    The weights after step N depend on the config, the text and the run in `train.init_from`, and
    with `train.minutes` on the plans that `clock` leads to. They do not depend on logging,
    evaluation, checkpoints or resumes. (On CUDA, some kernels add in any order, so two runs agree
    up to rounding. A resume with other `train.steps` has another schedule.)

    A step whose loss or gradient is NaN or infinite is skipped; in an ensemble, by that member.
    After `SKIPPED_STEPS` in a row the run rolls back to its last checkpoint and continues with half
    the learning rates, at most `ROLLBACKS` times.

    All `ranks` call this function with the same arguments. Rank 0
    writes the run and calls `on_event`. The number of ranks changes only the order in which floats
    are added, and the dropout masks.

    Args:
        config: the settings of the run.
        corpus: its text.
        run: the folder of the run.
        typed: the folder as messages and the Outcome name it; default `run`.
        resume: continue from the last checkpoint.
        adds_minutes: the run is finished, and `train.minutes` is the time for further steps.
        overwrite: replace the run in the folder. It is deleted with the first checkpoint of the new
            run, and restored if there is none.
        numbered: use the first free folder of RUN, RUN-2, RUN-3, ...
        should_stop, on_event: see `gpt.api.train`.
        clock: returns the seconds since the command began; default: since this call.
        ranks: the processes that train the model together.

    Raises:
        Interrupted: `should_stop` returned True. If training had begun, the state is saved.
        TrainingError: the loss stays NaN or infinite, or memory or the disk is full.
        UsageError: the folder is in use, or the run to resume has a new text or no steps left.
        CheckpointError, ConfigError, DeviceError: see `initial_model`, `load_teacher`,
            `resume_from`, `select_device`, `compile_model`.
    """
    began = time.perf_counter()
    clock = clock or (lambda: time.perf_counter() - began)
    run, typed = run.absolute(), typed or run
    device = select_own_device(select_device(config.device), ranks)
    ranks.check_batch(config.train.batch_size)
    with computing_with(
        select_own_threads(config.threads, ranks), deterministic=config.deterministic
    ):
        with phase("preparing the training"):
            teacher = load_teacher(config, corpus.vocabulary, device)
            check_training_memory(config, len(corpus.vocabulary), device, teacher, ranks)
            begun_from: dict[str, str | int] = {}
            if resume:
                ranks.broadcast(check_plain, run)
            else:
                model, begun_from = initial_model(config, corpus.vocabulary, device)
                update = build_step(
                    config, model, device, ranks, corpus.train, corpus.vocabulary, teacher
                )
                budget = TimeBudget(config, update, corpus.val, clock, ranks=ranks)
                config = ranks.broadcast(budget.first_plan, config)
                update.follow(Schedule(config))
                if ranks.any(should_stop()):
                    raise Interrupted("stopped before training began; nothing is saved")
                run = ranks.broadcast(_make, run, numbered, overwrite)  # last: nothing can fail now
                typed = typed.with_name(run.name)
        with locked(run) if ranks.rank == 0 else nullcontext(lambda: None) as check_in_place:
            if resume:
                with phase("loading the checkpoint"):
                    state = resume_from(
                        config, corpus, run, device, teacher, ranks, adds_minutes=adds_minutes
                    )
                    config, budget = _budget_to_resume(
                        config, corpus, run, state, clock, ranks, adds_minutes=adds_minutes
                    )
            else:
                ranks.broadcast(set_aside, run)
                state = RunState(0, update, Progress(), None)
            computed: dict[str, str | int] = {
                "device": str(device),
                "precision": str(state.update.precision).removeprefix("torch."),
                "threads": torch.get_num_threads(),
                "ranks": ranks.size,
                **begun_from,
            }
            ranks.broadcast(_note, run, config, corpus, state.step, computed)
            log.info("%s: %s; writing %s", corpus.name, corpus.summary(), typed)
            trainer = Trainer(
                *(config, corpus, run, state, budget, check_in_place, should_stop, on_event, typed),
                ranks,
            )
            remember(run=str(run))
            while True:
                try:
                    outcome = trainer.fit()
                except Diverged as reason:
                    trainer.roll_back(str(reason))
                else:
                    remember(outcome=asdict(outcome))
                    return outcome


def _budget_to_resume(
    config: Config,
    corpus: Corpus,
    run: Path,
    state: RunState,
    clock: Callable[[], float],
    ranks: Ranks,
    *,
    adds_minutes: bool,
) -> tuple[Config, TimeBudget]:
    """Return the config to resume with and its time budget; log what its minutes are for.

    Raises:
        UsageError: there is no time for a step.
    """
    assert state.config is not None
    before, elapsed_s = state.config.train, state.progress.elapsed_s
    minutes = config.train.minutes
    if adds_minutes and minutes is not None:
        train = config.train.model_copy(update={"minutes": elapsed_s / 60 + minutes})
        config = config.model_copy(update={"train": train})
    budget = TimeBudget(config, state.update, corpus.val, clock, elapsed_s, ranks=ranks)
    if minutes is None or config.train.minutes == before.minutes:
        return config, budget
    if not adds_minutes:
        if budget.remaining_s <= 0:
            raise UsageError(
                f"{run}: train.minutes of a run that is not finished is the time of the whole run. "
                f"It has used {elapsed_s / 60:.2g} minutes; expected more than that and the start "
                f"of this command, got {minutes:g}. Use --minutes with a larger number, or leave "
                f"it out"
            )
        log.info(
            "%s is not finished: --minutes %g is the time of the whole run, which has used %.2g",
            *(run, minutes, elapsed_s / 60),
        )
    elif state.step >= before.steps:
        config = ranks.broadcast(budget.extend, state.step, config)
        state.update.follow(Schedule(config))
        state.progress.rewarm_step = None  # the plan has a warmup of its own
        steps, rewarm = config.train.steps, config.train.rewarm_steps
        log.info(
            "%s is finished: training for %g more minutes, about %s; the learning rate goes "
            "from %.2g to %.2g in %s (train.rewarm_steps), then down again",
            *(run, minutes, counted(steps - state.step, "more step")),
            learning_rate(state.step - 1, before) * state.progress.scale,
            learning_rate(min(state.step + rewarm, steps) - 1, config.train) * state.progress.scale,
            counted(rewarm, "step"),
        )
    budget.check_soon(state.step, config)
    return config, budget


def _make(run: Path, numbered: bool, overwrite: bool) -> Path:
    """Make the folder of a new run; return its path."""
    if numbered:
        run = make_numbered(run)
    check_free(run, overwrite=overwrite)
    make_folder(run)
    return run


def _note(
    run: Path, config: Config, corpus: Corpus, step: int, computed: dict[str, str | int]
) -> None:
    """Write the config and the provenance of a run that starts or resumes."""
    write_atomically(run / "config.yaml", [to_yaml(config).encode()])
    store_standard_input(corpus.standard_input, run)
    note_start(run, config, corpus.sha256, step, computed)


class Trainer:
    """The training loop of one run."""

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        run: Path,
        state: RunState,
        budget: TimeBudget,
        check_in_place: Callable[[], None],
        should_stop: Callable[[], bool],
        on_event: Callable[[dict[str, Any]], object] | None,
        typed: Path | None = None,
        ranks: Ranks = SINGLE,
    ) -> None:
        self.ranks = ranks
        self.budget, self.pace, self.clock = budget, budget.pace, budget.pace.clock
        self.began = self.clock()
        self.config, self.corpus = config, corpus
        self.run, self.typed = run.absolute(), typed or run
        self.check_in_place = check_in_place
        self.on_event = on_event if on_event and ranks.rank == 0 else lambda event: None
        self._should_stop, self._stopping = should_stop, False
        self.step, self.update, self.progress = state.step, state.update, state.progress
        self.resumed_at = None if state.config is None else state.step
        self.saved_at_step, self.saved_at = self.resumed_at, self.clock()
        # a kill would bring the old settings back
        self.unsaved = state.config is not None and state.config != config
        self.val, self.units = scored_val(corpus), val_units(corpus)
        self.excerpt = to_torch(corpus.val[: min(config.model.T, ATTENTION_CHARACTERS)])
        self.unread: list[Result] = []  # loss and norm of the last steps
        self.notices: list[str] = []  # for the monitor, once it is open
        self.metrics: dict[str, float] = {}  # of this step
        self.is_best = False  # this step's evaluation
        self.reason_to_stop = ""
        self.furthest_step = self.step  # a rollback leads to before it
        self.best_val_loss = math.inf  # known at the end
        self.timed_steps, self.timed_s = 0, 0.0  # since the pace was last recorded

    @property
    def shown(self) -> Path:
        """The run's folder in messages: as it was given, if that still leads to it from here."""
        return self.typed if self.typed.absolute() == self.run else self.run

    def fit(self) -> Outcome:
        """Train until there is a reason to stop. Raises Interrupted, TrainingError, Diverged."""
        with (Monitor if self.ranks.rank == 0 else SilentMonitor)(
            self.run,
            self.config,
            self.resumed_at,
            clock=self.clock,
            elapsed_before=self.progress.elapsed_s,
            pending=self.progress.pending is not None,
        ) as self.monitor:
            self.start()
            while not self.reason_to_stop:
                self.train_step()
                self.plan()
                self.evaluate()
                self.log()
                self.save()
            return self.finish()

    def start(self) -> None:
        """Evaluate and save step 0, or the step whose evaluation was cut off."""
        self.pace.start()
        for notice in self.notices:
            self.monitor.notice(self.step, notice)
        self.notices.clear()
        if self.resumed_at is None or self.unsaved:
            self.plan()
        if self.unsaved:
            self._save_checkpoint()
        if self.resumed_at is None or self.progress.pending is not None:
            self.metrics, self.unsaved = self.progress.pending or {}, True
            self.evaluate()
            self.log()
            self.save()

    def train_step(self) -> None:
        """Update the weights once, or skip the step if its loss is NaN or infinite."""
        T, began = window_length(self.step, self.config), self.clock()
        self._count_what_followed(T)
        scale = self.progress.scale * schedule_factor(self.step, self.config.train, self.progress)
        self.unread.append(self.update(self.step, scale))
        self.step, self.unsaved, self.is_best = self.step + 1, True, False
        self.progress.val_loss = None
        config = self.config.train
        periods = (config.log_every, config.eval_every, config.checkpoint_every)
        due = [
            self._due(every) for every in periods
        ]  # call all of them: each may communicate with the other ranks
        if not self.update.is_ahead or any(due) or len(self.unread) == UNREAD_STEPS:
            loss, norm = self._read_results()
        self.pace.lap(T)
        self.timed_steps += 1
        self.timed_s += self.clock() - began
        self.monitor.advance()
        self.metrics = {}
        if self._due(self.config.train.log_every):
            characters = self.timed_steps * self.config.train.batch_size * self.config.model.T
            metrics = {
                "train_loss": loss,
                "lr": scale * learning_rate(self.step - 1, self.config.train),
                "grad_norm": norm,
                "chars_per_s": round(characters / self.timed_s, 1),
            }
            self.metrics = {key: value for key, value in metrics.items() if math.isfinite(value)}
            self.timed_steps, self.timed_s = 0, 0.0

    def plan(self) -> None:
        """Replan the remaining steps if the pace changed, and report a plan that starts here."""
        if self.step > self.furthest_step:  # steps that a rollback repeats keep their plans
            self.furthest_step = self.step
            wholes = 1 if self.progress.since_best == 0 else 2  # the best checkpoint is scored, too
            end = self.budget.new_end(self.step, self.config, wholes)
            if end is not None:
                self.config = with_plan(self.config, self.step, end)
                self.update.follow(Schedule(self.config))
                self.monitor.replan(end)
        if steps := dict(self.config.train.plans).get(self.step):
            self.monitor.event(self.step, f"{counted(steps, 'step')} planned")
            if not self.step and (minutes := self.config.train.minutes) is not None:
                log.info(
                    "about %s in %g min; the bar shows when that changes",
                    *(counted(steps, "step"), minutes),
                )
                if (part := self.budget.evaluated_part) > EVALUATION_SHARE_TO_WARN:
                    log.warning(
                        "the evaluation at the end takes about %.0f %% of the time: for more "
                        "steps, set a smaller data.val_fraction, or more minutes",
                        100 * min(part, 1.0),
                    )
            self._emit("plan", steps=steps)

    def evaluate(self) -> None:
        """If an evaluation is due, score the val split, sample, and check for a reason to stop.

        If a stop is requested meanwhile, the evaluation is repeated on resume.
        """
        if not self._due(self.config.train.eval_every) and self.progress.pending is None:
            return
        check_equal(self.update.model, self.step, self.ranks)
        try:
            losses = self._evaluate()
        except Stopped:
            self.progress.pending, self.metrics = self.metrics, {}
            return
        if self.corpus.vocabulary.is_bytes and "val_loss" in losses:
            losses["val_loss_per_character"] = self.units.per_character(losses["val_loss"])
        self.metrics |= losses
        self._warn_of_overfitting()
        self.ranks.broadcast(self._show_model, self.update.model)
        self._emit("evaluation", **losses, is_best=self.is_best)

    def _evaluate(self) -> dict[str, float]:
        """Return the losses of this step, and update the progress.

        With `train.eval_characters`, they are `val_loss_part`, and `val_loss` only at the end.

        Raises:
            Stopped: a stop is requested.
            Diverged: a loss is NaN or infinite.
        """
        part = self.config.train.eval_characters
        if part is None or part >= self.units.ids:
            losses = self._val_losses("val_loss")
        else:
            losses = self._val_losses("val_loss_part", part)
        loss = next(iter(losses.values()))
        if not self.step and self.config.train.init_from is None:  # before training began
            self.progress.pending, self.progress.val_loss = None, losses.get("val_loss")
            return losses
        progress = replace(self.progress, pending=None)
        is_best = progress.evaluated(self.step, loss)
        early = progress.early_stop(self.config.train)
        progress.ended = bool(early)
        reason = early or ("all steps done" if self.step >= self.config.train.steps else "")
        if reason and "val_loss" not in losses:
            losses |= self._val_losses("val_loss")
            best_val_loss = losses["val_loss"] if is_best else self._val_loss_of_best()
        else:
            best_val_loss = progress.best_loss
        progress.val_loss = losses.get("val_loss")
        self.progress, self.is_best, self.reason_to_stop = progress, is_best, reason
        self.best_val_loss = best_val_loss
        return losses

    def log(self) -> None:
        """Record the metrics of this step, if there are any."""
        if not self.metrics:
            return
        self.monitor.record(self.step, self.metrics)
        if "train_loss" in self.metrics:
            self._emit("step", **{k: v for k, v in self.metrics.items() if k[:3] != "val"})

    def save(self) -> None:
        """Write a checkpoint if it is due, the best, the last, or a stop is requested.

        Raises:
            Interrupted: a stop is requested, and the state is saved.
        """
        stop = self.ranks.any(self._stop_requested())
        # a rollback is to lead to before the steps that were skipped
        due = self._due(self.config.train.checkpoint_every) and not self.progress.skipped_in_a_row
        again = self.saved_at_step == self.step  # it was saved without its evaluation
        if self.unsaved and (due or again or self.is_best or self.reason_to_stop or stop):
            self._save_checkpoint()
        if stop and not self.reason_to_stop:
            raise Interrupted(
                f"stopped at step {self.step}, saved; resume with: "
                f"{command('train', '--resume', str(self.shown))}"
            )

    def finish(self) -> Outcome:
        """Show the final scores."""
        return self.ranks.broadcast(self._finish, self.update.model)

    def _finish(self, model: LanguageModel) -> Outcome:
        scores = {
            "val_loss": self.metrics["val_loss"],
            "best_val_loss": self.best_val_loss,
            "bits_per_byte": self.units.bits_per_byte(self.best_val_loss),
        }
        vectors = members_of(model)[0].token_embedding.weight  # (V, C)
        self.monitor.embedding(vectors, self.corpus.vocabulary, self.corpus.ids)
        self.monitor.finish(self.step, scores)
        return Outcome(
            run=str(self.shown),
            text=self.corpus.name,
            config=str(self.shown / "config.yaml"),
            seed=self.config.seed,
            parameters=sum(count_parameters(model).values()),
            val_loss_per_character=self.units.per_character(scores["val_loss"]),
            best_val_loss_per_character=self.units.per_character(self.best_val_loss),
            reason=self.reason_to_stop,
            step=self.step,
            best_step=self.progress.best_step,
            elapsed_s=round(self.progress.elapsed_s, 1),  # as saved: what comes after is drawing
            seconds=round(self.clock() - self.began, 1),
            **scores,
            **asdict(measure_baselines(self.corpus)),
        )

    def roll_back(self, reason: str) -> None:
        """Load the last checkpoint and halve the learning rates.

        Raises:
            TrainingError: that was done `ROLLBACKS` times already.
        """
        scale, diverged_at = self.progress.scale / 2, self.step
        if scale < 2**-ROLLBACKS:
            raise TrainingError(
                f"{reason}; it rolled back {ROLLBACKS} times and halved the learning rates each "
                f"time. The checkpoints of {self.shown} are as they were. Start again with a lower "
                f"train.learning_rate, a longer train.warmup_steps, or train.precision fp32"
            )
        self.unread.clear()
        elapsed_s = self.monitor.elapsed_s
        self.step, self.progress = roll_back(self.run, self.update, self.ranks)
        self.progress.elapsed_s = elapsed_s
        self.progress.scale, self.progress.skipped_in_a_row = scale, 0
        self.resumed_at = self.saved_at_step = self.step
        self.unsaved = self.is_best = False
        self.reason_to_stop = ""
        notice = (
            f"rolled back from step {diverged_at}: {reason}; learning rates x {scale:g} from here"
        )
        log.warning("rolling back to step %d, learning rates x %g: %s", self.step, scale, reason)
        self.notices.append(notice)
        self._emit("notice", text=notice)

    def _due(self, every: int | str) -> bool:
        """Return whether an event with period `every` is due."""
        if isinstance(every, str) and every.endswith(" min"):
            minutes = float(every.removesuffix(" min"))
            due = self.clock() - self.saved_at >= 60 * minutes
            return self.ranks.any(due or self.saved_at_step is None)
        return is_due(self.step, every, self.config.train)

    def _count_what_followed(self, T: int) -> None:
        """Attribute the elapsed time to evaluation or to the step."""
        if self.metrics.keys() & {"val_loss", "val_loss_part"}:
            self.pace.lap(EVALUATION)
        else:
            self.pace.lap(T, 0)

    def _stop_requested(self) -> bool:
        self._stopping = self._stopping or self._should_stop()
        return self._stopping

    def _read_results(self) -> tuple[float, float]:
        """Wait for the unread results, count skipped steps, and return the last loss and norm.

        For an ensemble, these are means over the members.
        """
        results = self.update.read(self.unread)
        self.unread.clear()
        for step, (losses, norms) in enumerate(results, self.step - len(results) + 1):
            self._count_skipped(step, losses, norms)
        return sum(losses) / len(losses), sum(norms) / len(norms)

    def _count_skipped(self, step: int, losses: list[float], norms: list[float]) -> None:
        """Count and report a step that a member skipped. Raises Diverged after a few in a row."""
        results = zip(self.update.members, losses, norms, strict=True)
        failed = [m for m, (member, *result) in enumerate(results) if member.is_failure(*result)]
        if not failed:
            self.progress.skipped_in_a_row = 0
            return
        self.progress.skipped_in_a_row += 1
        m = failed[0]
        whose = f" by member {m + 1} of {len(losses)}" if len(losses) > 1 else ""
        notice = (
            f"step {step} skipped{whose}: the loss is {losses[m]}, the gradient's norm {norms[m]}"
        )
        log.warning("%s", notice)
        self.monitor.notice(step, notice)
        self._emit("notice", text=notice)
        if self.progress.skipped_in_a_row == SKIPPED_STEPS:
            raise Diverged(f"{notice}, the {SKIPPED_STEPS}rd such step in a row")

    def _val_losses(self, name: str, characters: int | None = None) -> dict[str, float]:
        """Return the loss on the val split, or on `characters` of it, by `name`.

        For an ensemble, also return the loss of each member as `NAME_member_1` and so on.
        """
        model, vocabulary = self.update.model, self.corpus.vocabulary
        guesses = not self.step and not any(m.head.weight.any() for m in members_of(model))
        if guesses and vocabulary.unknown_id is None:  # every id is equally likely
            return {name: math.log(len(vocabulary))}
        total = self.units.ids if characters is None else characters
        self.pace.lap(EVALUATION, 0)
        with phase("evaluating"), self.monitor.evaluating(total) as advance:
            loss, *of_members = evaluate_each(
                model,
                self.val,
                vocabulary,
                characters=characters,
                should_stop=self._stop_requested,
                on_progress=advance,
                ranks=self.ranks,
            )
        self.pace.lap(CHARACTER, total)
        if not math.isfinite(loss):
            raise Diverged(f"step {self.step}: the val loss is {loss}")
        return {name: loss} | {
            f"{name}_member_{m}": value for m, value in enumerate(of_members, start=1)
        }

    def _val_loss_of_best(self) -> float:
        """Return the val loss of the best checkpoint, by loading its weights temporarily."""
        model = self.update.model
        model.zero_grad(set_to_none=True)  # makes room for the copy
        weights = {name: weight.clone() for name, weight in model.state_dict().items()}
        try:
            load_weights(model, self.ranks.broadcast(read_checkpoint, self.run, "best"))
            return self._val_losses("val_loss")["val_loss"]
        finally:
            model.load_state_dict(weights)

    def _warn_of_overfitting(self) -> None:
        progress = self.progress
        if progress.since_best != OVERFIT_EVALUATIONS or progress.loss <= progress.best_loss:
            return
        cause = (
            "the model overfits"
            if progress.loss < math.log(len(self.corpus.vocabulary))  # the loss of guessing
            else "training diverges, try a lower train.learning_rate"
        )
        notice = (
            f"val loss has risen since step {progress.best_step} ({progress.best_loss:.4f} "
            f"then, {progress.loss:.4f} now): {cause}; that step stays the best checkpoint"
        )
        log.warning("%s", notice)
        self._emit("notice", text=notice)

    def _show_model(self, model: LanguageModel) -> None:
        """Record a sample, attention maps and, with `train.histograms`, histograms."""
        if length := self.config.train.sample_length:
            text = generate_text(
                model,
                self.corpus.vocabulary,
                length=length,
                rules=self.config.sample,
                seed=self.config.seed,
                step=self.step,
            )
            self.monitor.sample(self.step, text)
            self._emit("sample", text=text)
        excerpt = self.corpus.vocabulary.names_of(self.excerpt.tolist())
        attention = attend(model, self.excerpt)
        self.pace.lap(EVALUATION, 0)
        self.monitor.attention(self.step, attention, excerpt)
        self.pace.lap(PICTURE)  # once a minute
        if self.config.train.histograms:
            self.monitor.histograms(self.step, model)

    def _save_checkpoint(self) -> None:
        if self.unread:
            self._read_results()
        progress, state = self.progress, self.update.state_dict()
        progress.elapsed_s = self.monitor.elapsed_s
        data = CheckpointData(
            step=self.step,
            config=self.config,
            vocabulary=self.corpus.vocabulary,
            weights=weights_of(self.update.model),
            val_loss=progress.val_loss,
            best_step=progress.best_step if progress.best_loss < math.inf else None,
            finished=bool(self.reason_to_stop),
        )
        # JSON has no infinity, which is what losses are before the first evaluation
        known = {key: value for key, value in asdict(progress).items() if value != math.inf}
        numbers = state.numbers | {
            "threads": torch.get_num_threads(),
            "precision": str(self.update.precision).removeprefix("torch."),
            "progress": known,
            "text_sha256": self.corpus.sha256,
        }
        if progress.val_loss is not None:
            numbers["bits_per_byte"] = self.units.bits_per_byte(progress.val_loss)
        if teacher := self.update.teacher:
            numbers["teacher_sha256"] = teacher.sha256
        finite = all(np.isfinite(array).all() for array in data.weights.values())
        if self.ranks.any(not finite):
            raise Diverged(f"step {self.step}: weights are NaN or infinite")
        self.ranks.broadcast(self._write_checkpoint, data, TrainingState(state.tensors, numbers))
        self.unsaved, self.saved_at_step, self.saved_at = False, self.step, self.clock()
        path = str(self.shown / "checkpoints" / f"step-{self.step}")
        self._emit("checkpoint", path=path, is_best=self.is_best)

    def _write_checkpoint(self, data: CheckpointData, state: TrainingState) -> None:
        self.check_in_place()
        if self.reason_to_stop and self.config.train.minutes is not None:
            self._write_plans()
        self.monitor.sync()  # before the checkpoint: a resume drops records of later steps
        try:
            write_checkpoint(self.run, data, state, keep=self.config.train.keep_checkpoints)
        except (OSError, Unreadable) as error:
            reason = getattr(error, "strerror", None) or error
            raise TrainingError(
                f"cannot save step {self.step} in {self.shown} ({reason}); "
                f"{self._advice_on_failed_save()}"
            ) from error
        finish_overwrite(self.run)

    def _write_plans(self) -> None:
        """Write the plans to config.yaml, without minutes, so that it repeats the run exactly."""
        train = self.config.train.model_copy(update={"minutes": None})
        config = self.config.model_copy(update={"train": train})
        write_atomically(self.run / "config.yaml", [to_yaml(config).encode()])

    def _advice_on_failed_save(self) -> str:
        run = str(self.shown)
        if self.saved_at_step is not None:
            resume = command("train", "--resume", run)
            return f"its checkpoints are as they were. When there is room, resume with: {resume}"
        return (
            f"it has no checkpoint yet. When there is room, start it again with --overwrite "
            f"--run-dir {shlex.quote(run)}, or choose another --run-dir"
        )

    def _emit(self, kind: str, **content: Any) -> None:
        self.on_event({"kind": kind, "step": self.step, **content})
