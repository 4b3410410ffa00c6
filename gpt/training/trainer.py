"""The training loop: step, log, evaluate, save; stop when told to, or when enough is enough."""

import logging
import math
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
from pydantic import ConfigDict, Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from gpt import STARTED
from gpt.config.schema import Config, TrainConfig
from gpt.config.yaml import to_yaml
from gpt.device import generator, repeat_exactly, select_device
from gpt.errors import CheckpointError, Interrupted, TrainingError, UsageError
from gpt.evaluation.attention import attend
from gpt.evaluation.loss import Stopped, evaluate
from gpt.files import write_atomically
from gpt.model.transformer import GPT
from gpt.runs.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_training_state,
    mend_best,
    save_checkpoint,
)
from gpt.runs.folder import (
    check_free,
    check_plain,
    check_resumable,
    empty,
    locked,
    make_numbered,
    note_start,
)
from gpt.runs.stored import go_back_to_whole
from gpt.sampling.engine import generate_text
from gpt.sampling.sampler import Decoding
from gpt.text.batches import to_torch
from gpt.text.corpus import Corpus
from gpt.training.monitor.monitor import Monitor
from gpt.training.optimizer import learning_rate
from gpt.training.signals import StopRequest
from gpt.training.step import TrainStep, is_finite

log = logging.getLogger(__name__)

RISEN_FOR = 3  # evaluations in a row without a new best, before a run says that it overfits
BAD_STEPS = 3  # in a row, before a run goes back
GO_BACKS = 3  # times that it does
Metric = Annotated[str, Field(pattern="^(train_loss|lr|grad_norm|chars_per_s)$")]
EXCERPT = 32  # characters of val whose attention is drawn


@dataclass(config=ConfigDict(strict=True, extra="forbid"))  # it comes from a file
class Progress:
    """What is remembered from evaluation to evaluation."""

    val_loss: float = math.inf
    best_val_loss: float = math.inf
    best_step: NonNegativeInt = 0
    since_best: NonNegativeInt = 0  # evaluations in a row
    pending: dict[Metric, float] | None = None  # of a step whose evaluation was cut off
    ended: bool = False  # it was enough, by a target or by patience
    bad_in_a_row: NonNegativeInt = 0  # steps not taken
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the learning rates; half each time back

    def note(self, step: int, val_loss: float) -> bool:
        """Take in an evaluation; whether it is the best so far."""
        self.val_loss, is_best = val_loss, val_loss < self.best_val_loss
        if is_best:
            self.best_val_loss, self.best_step, self.since_best = val_loss, step, 0
        else:
            self.since_best += 1
        return is_best

    def enough(self, config: TrainConfig) -> str:
        """The reason to stop before the last step, if there is one."""
        target, patience = config.stop_at_val_loss, config.patience
        if target is not None and self.val_loss <= target:
            return f"val loss {self.val_loss:.4f} is at train.stop_at_val_loss {target}"
        if patience is not None and self.since_best >= patience:
            return f"no better val loss in {patience} evaluations (train.patience)"
        return ""


class Diverged(Exception):
    """The loss is no number any more; what to tell of it."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    run: str
    reason: str
    step: int
    val_loss: float
    best_val_loss: float
    best_step: int
    elapsed_s: float


def train(
    config: Config,
    corpus: Corpus,
    run: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    numbered: bool = False,
) -> Outcome:
    """Train a model on a corpus in a run folder, from the start or from its last checkpoint.

    If it is to be `numbered`, the folder is RUN, or the first of RUN-2, RUN-3, ... that is free.

    The weights after step N follow from the config and the text alone: how often one logs,
    evaluates, saves or resumes changes nothing. (On CUDA, some kernels add in any order, and two
    runs agree to rounding only; a resume with other `train.steps` has another schedule.)

    A step whose loss or gradient is no finite number is not taken. After a few in a row the run
    goes back to its last checkpoint and on from there with half the learning rates; at most
    `GO_BACKS` times.

    Raises:
        Interrupted: after SIGINT, SIGTERM or SIGHUP, once the state is saved.
        TrainingError: the loss is no number even so, or memory or the disk has no room.
        UsageError: the folder is in use, or the run to resume has a new text or no steps left.
        CheckpointError, DeviceError: see `load_checkpoint`, `select_device`, `compile_model`.
    """
    device = select_device(config.device)
    if config.deterministic:
        repeat_exactly()
    if resume:
        check_plain(run)
    else:
        draws = generator(config.seed, "init", 0)
        model = GPT(config.model, len(corpus.vocabulary), draws).to(device)
        step = TrainStep(model, corpus.train, config, device)
        if numbered:  # once nothing else can refuse to start
            run = make_numbered(run)
        check_free(run, overwrite=overwrite)
        run.mkdir(parents=True, exist_ok=True)
    with locked(run) as check_in_place, StopRequest() as stop:
        if resume:
            loop = _resumed(config, corpus, run, device, stop, check_in_place)
        else:
            empty(run)
            loop = _Loop(config, corpus, run, step, Progress(), stop, check_in_place)
        write_atomically(run / "config.yaml", [to_yaml(config).encode()])
        computed: dict[str, str | int] = {
            "device": str(device),
            "precision": str(loop.step.precision).removeprefix("torch."),
            "threads": torch.get_num_threads(),
        }
        note_start(run, config, corpus.sha256, loop.done, computed)
        log.info(
            "%s: %s characters, %s distinct; writing %s",
            *(corpus.name, f"{len(corpus.ids):,}", len(corpus.vocabulary), run),
        )
        while True:
            try:
                return loop.go()
            except Diverged as reason:
                loop = _gone_back(loop, str(reason), device)


def _resumed(
    config: Config,
    corpus: Corpus,
    run: Path,
    device: torch.device,
    stop: StopRequest,
    check_in_place: Callable[[], None],
) -> "_Loop":
    """A loop that goes on from the last checkpoint that is whole."""
    go_back_to_whole(run)
    checkpoint, state = load_checkpoint(run, "last", device), load_training_state(run)
    try:
        progress = Progress(**state["progress"])
        mend_best(run, progress.best_step)
        _check_can_go_on(checkpoint, config, progress, state["text_sha256"], corpus, run)
        step = TrainStep(checkpoint.model, corpus.train, config, device)
        step.load_state_dict(state["step"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{run}/checkpoints/last: its training_state.pt is not of this model ({error}); "
            f"start a new run"
        ) from error
    loop = _Loop(config, corpus, run, step, progress, stop, check_in_place, checkpoint.step)
    loop.changed = config != checkpoint.config
    return loop


def _gone_back(loop: "_Loop", reason: str, device: torch.device) -> "_Loop":
    """A loop from the last checkpoint on, with half the learning rates. Raises TrainingError."""
    scale, left = loop.progress.scale / 2, loop.done
    if scale < 2**-GO_BACKS:
        raise TrainingError(
            f"{reason}; it went back {GO_BACKS} times and halved the learning rates each time. "
            f"The checkpoints of {loop.run} are as they were. Start again with a lower "
            f"train.learning_rate and train.muon_learning_rate, a longer train.warmup_steps, or "
            f"train.precision fp32"
        )
    loop = _resumed(loop.config, loop.corpus, loop.run, device, loop.stop, loop.check_in_place)
    loop.progress.scale, loop.progress.bad_in_a_row = scale, 0
    loop.event = f"went back from step {left}: {reason}; learning rates x {scale:g} from here"
    log.warning("going back to step %d with learning rates x %g: %s", loop.done, scale, reason)
    return loop


def _check_can_go_on(
    checkpoint: Checkpoint,
    config: Config,
    progress: Progress,
    text_sha256: str,
    corpus: Corpus,
    run: Path,
) -> None:
    check_resumable(checkpoint.config, config)
    if text_sha256 != corpus.sha256:
        raise UsageError(
            f"{corpus.name} is not the text that {run} began with, or it has changed since; "
            f"bring the old text back, or start a new run"
        )
    steps = checkpoint.config.train.steps
    if checkpoint.step >= config.train.steps and progress.pending is None:
        raise UsageError(
            f"{run} is finished: it is at step {checkpoint.step} of {config.train.steps}; "
            f"to go on for longer: --set train.steps={2 * checkpoint.step}"
        )
    if progress.ended and (reason := progress.enough(config.train)):
        raise UsageError(
            f"{run} is finished: at step {checkpoint.step}, {reason}; to go on for longer: "
            f"--set train.stop_at_val_loss=null --set train.patience=null"
        )
    if steps != config.train.steps:
        log.warning(
            "train.steps changes from %d to %d: from here the learning rate follows the longer or "
            "shorter decay, so this is not the run that would have had it from the start",
            *(steps, config.train.steps),
        )


class _Loop:
    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        run: Path,
        step: TrainStep,
        progress: Progress,
        stop: StopRequest,
        check_in_place: Callable[[], None],
        resumed_at: int | None = None,
    ) -> None:
        self.config, self.corpus, self.run, self.step = config, corpus, run, step
        self.excerpt = to_torch(corpus.val[: min(config.model.T, EXCERPT)])  # what pictures show
        self.progress, self.stop, self.resumed_at = progress, stop, resumed_at
        self.check_in_place = check_in_place
        self.done = resumed_at or 0  # updates so far
        self.event = ""  # to be told before anything else
        self.changed = False  # whether it goes on with other settings than it was saved with
        self.saved, self.saved_at = resumed_at, time.perf_counter()

    def go(self) -> Outcome:
        with Monitor(self.run, self.config, self.resumed_at) as self.monitor:
            if self.event:
                self.monitor.event(self.done, self.event)
            if self.changed:  # a kill would bring the old ones back
                self._save(is_best=False)
            reason = ""
            if self.resumed_at is None:
                self._save(self._score({}))
            elif self.progress.pending is not None:
                reason = self._finish_step(self.progress.pending, saves=True)
            while not reason:
                reason = self._advance()
            scores = {
                "val_loss": self.progress.val_loss,
                "best_val_loss": self.progress.best_val_loss,
            }
            vectors = self.step.model.token_embedding.weight  # (V, C)
            self.monitor.embedding(vectors, self.corpus.vocabulary.characters)
            self.monitor.finish(scores)
        return Outcome(
            run=str(self.run),
            reason=reason,
            step=self.done,
            best_step=self.progress.best_step,
            elapsed_s=round(time.perf_counter() - STARTED, 1),
            **scores,
        )

    def _due(self, every: int | str) -> bool:
        """Whether it is time for what happens every so many steps, or so many minutes."""
        if isinstance(every, str):
            minutes = float(every.removesuffix(" min"))
            return time.perf_counter() - self.saved_at >= 60 * minutes
        return self.done % every == 0 or self.done >= self.config.train.steps

    def _advance(self) -> str:
        """Train until something is due, and do it; the reason to stop, if there is one."""
        config, start, began = self.config.train, self.done, time.perf_counter()
        logs = evaluates = saves = False
        while not (logs or evaluates or saves):
            loss, norm = self.step(self.done, self.progress.scale)
            self.done += 1
            self.monitor.advance()
            self._note_whether_taken(loss, norm)
            logs, evaluates = self._due(config.log_every), self._due(config.eval_every)
            # what a run goes back to is to be from before the steps that were not taken
            saves = self._due(config.checkpoint_every) and not self.progress.bad_in_a_row
            if self.stop.signal_number is not None:
                break
        metrics = {}
        if logs:
            characters = (self.done - start) * config.batch_size * self.config.model.T
            metrics = {
                "train_loss": loss,
                "lr": self.progress.scale * learning_rate(self.done - 1, config),
                "grad_norm": norm,
                "chars_per_s": round(characters / (time.perf_counter() - began), 1),
            }
            metrics = {key: value for key, value in metrics.items() if math.isfinite(value)}
        if evaluates:
            return self._finish_step(metrics, saves)
        if metrics:
            self.monitor.record(self.done, metrics)
        if saves:
            self._save(is_best=False)
        self._leave_if_told()
        return ""

    def _finish_step(self, metrics: dict[str, float], saves: bool) -> str:
        """Evaluate, record, save; the reason to stop, if there is one.

        If a signal comes meanwhile, the step is saved without, and evaluated on resuming.
        """
        try:
            is_best = self._score(metrics)
        except Stopped:
            self.progress.pending = metrics
            self._save(is_best=False)
            self._leave_if_told()
        self.progress.pending = None
        last = self.done >= self.config.train.steps
        enough = self.progress.enough(self.config.train)
        self.progress.ended = bool(enough)
        reason = enough or ("all steps done" if last else "")
        if saves or is_best or reason:
            self._save(is_best)
        if not reason:
            self._leave_if_told()
        return reason

    def _leave_if_told(self) -> None:
        """Raises Interrupted, once the step is saved, if a signal has come: just now, perhaps."""
        if (signal_number := self.stop.signal_number) is not None:
            if self.saved != self.done:
                self._save(is_best=False)
            raise Interrupted(
                signal_number,
                f"stopped at step {self.done}, saved; go on with: "
                f"gpt train --resume {shlex.quote(str(self.run))}",
            )

    def _note_whether_taken(self, loss: float, norm: float) -> None:
        """Count and tell of a step that was not taken. Raises Diverged after a few in a row."""
        if is_finite(loss, norm, scaled=self.step.scaler.is_enabled()):
            self.progress.bad_in_a_row = 0
            return
        self.progress.bad_in_a_row += 1
        told = f"step {self.done} not taken: the loss is {loss}, the gradient's norm {norm}"
        log.warning("%s", told)
        self.monitor.event(self.done, told)
        if self.progress.bad_in_a_row == BAD_STEPS:
            raise Diverged(f"{told}, the {BAD_STEPS}rd such step in a row")

    def _score(self, metrics: dict[str, float]) -> bool:
        """Evaluate, and record it with these metrics; whether this is the best so far.

        Raises Stopped if a signal comes before the val loss is known.
        """
        model, vocabulary = self.step.model, self.corpus.vocabulary
        # a new model's head is zero: its loss is known without looking
        val_loss = math.log(len(vocabulary))
        if self.done:
            val_loss = evaluate(model, self.corpus.val, lambda: self.stop.signal_number is not None)
        if not math.isfinite(val_loss):
            raise Diverged(f"step {self.done}: the val loss is {val_loss}")
        is_best = self.progress.note(self.done, val_loss)
        risen = val_loss > self.progress.best_val_loss
        if self.progress.since_best == RISEN_FOR and risen:
            log.warning(
                "val loss has risen since step %d (%.4f then, %.4f now): %s; "
                "checkpoints/best keeps that step",
                *(self.progress.best_step, self.progress.best_val_loss, val_loss),
                "the model has begun to learn the text by heart"
                if val_loss < math.log(len(vocabulary))  # the loss of guessing
                else "training diverges, try a lower train.learning_rate",
            )
        if length := self.config.train.sample_length:
            decoding = Decoding.of(self.config.sample)
            seed, step = self.config.seed, self.done
            text = generate_text(
                model, vocabulary, length=length, decoding=decoding, seed=seed, step=step
            )
            self.monitor.sample(step, text)
        self.monitor.attention(self.done, attend(model, self.excerpt).weights)
        if self.config.train.histograms:
            self.monitor.histograms(self.done, model)
        self.monitor.record(self.done, metrics | {"val_loss": val_loss})
        return is_best

    def _save(self, is_best: bool) -> None:
        checkpoint = Checkpoint(self.done, self.step.model, self.config, self.corpus.vocabulary)
        state = {
            "step": self.step.state_dict(),
            "progress": asdict(self.progress),
            "text_sha256": self.corpus.sha256,
        }
        if not all(bool(w.isfinite().all()) for w in self.step.model.state_dict().values()):
            raise Diverged(f"step {self.done}: the weights are no finite numbers")
        self.check_in_place()
        self.monitor.sync()  # the records first: those of a later step are dropped on resume
        try:
            save_checkpoint(self.run, checkpoint, state, is_best=is_best)
        except OSError as error:
            raise TrainingError(
                f"cannot save step {self.done} in {self.run} ({error.strerror or error}); its "
                f"checkpoints are as they were. When there is room, go on with: "
                f"gpt train --resume {shlex.quote(str(self.run))}"
            ) from error
        self.saved, self.saved_at = self.done, time.perf_counter()
