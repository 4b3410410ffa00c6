"""The training loop: step, log, evaluate, save; stop when told to, or when enough is enough."""

import logging
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from gpt import STARTED
from gpt.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_training_state,
    mend_links,
    save_checkpoint,
)
from gpt.config import Config, to_yaml
from gpt.device import generator, select_device
from gpt.errors import CheckpointError, Interrupted, TrainingError, UsageError
from gpt.files import write_atomically
from gpt.inspection.attention import attend
from gpt.model.transformer import GPT
from gpt.run import check_resumable, make_folder
from gpt.sampling.decoding import Decoding
from gpt.sampling.reader import generate_text
from gpt.text.batches import to_torch
from gpt.text.corpus import Corpus
from gpt.training.evaluation import evaluate
from gpt.training.interrupt import StopRequest
from gpt.training.monitor import Monitor
from gpt.training.optimizer import learning_rate
from gpt.training.step import TrainStep

log = logging.getLogger(__name__)

RISEN_FOR = 3  # evaluations in a row without a new best, before a run says that it overfits
EXCERPT = 32  # characters of val whose attention is drawn


@dataclass
class Progress:
    """What is remembered from evaluation to evaluation."""

    val_loss: float = math.inf
    best_val_loss: float = math.inf
    best_step: int = 0
    since_best: int = 0  # evaluations in a row

    def note(self, step: int, val_loss: float) -> bool:
        """Take in an evaluation; whether it is the best so far."""
        self.val_loss, is_best = val_loss, val_loss < self.best_val_loss
        if is_best:
            self.best_val_loss, self.best_step, self.since_best = val_loss, step, 0
        else:
            self.since_best += 1
        return is_best


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
    config: Config, corpus: Corpus, run: Path, *, resume: bool = False, overwrite: bool = False
) -> Outcome:
    """Train a model on a corpus in a run folder, from the start or from its last checkpoint.

    The weights after step N follow from the config and the text alone: how often one logs,
    evaluates, saves or resumes changes nothing. (On CUDA, some kernels add in any order, and two
    runs agree to rounding only; a resume with other `train.steps` has another schedule.)

    Raises:
        Interrupted: after SIGINT or SIGTERM, once the state is saved.
        TrainingError: the loss is no longer a number.
        UsageError: the folder is in use, or the run to resume has a new text or no steps left.
        CheckpointError, DeviceError: see `load_checkpoint`, `select_device`, `compile_model`.
    """
    device = select_device(config.device)
    if not resume:
        draws = generator(config.seed, "init", 0)
        model = GPT(config.model, len(corpus.vocabulary), draws).to(device)
        step = TrainStep(model, corpus.train, config, device)
        make_folder(run, overwrite=overwrite)  # once nothing else can refuse to start
        loop = _Loop(config, corpus, run, step, Progress())
    else:
        checkpoint, state = load_checkpoint(run, "last", device), load_training_state(run)
        try:
            progress = Progress(**state["progress"])
            mend_links(run, progress.best_step)
            _check_can_go_on(checkpoint, config, state["text_sha256"], corpus, run)
            step = TrainStep(checkpoint.model, corpus.train, config, device)
            step.load_state_dict(state["step"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{run}/checkpoints/last: its training_state.pt is not of this model ({error}); "
                f"start a new run"
            ) from error
        loop = _Loop(config, corpus, run, step, progress, checkpoint.step)
    write_atomically(run / "config.yaml", to_yaml(config).encode())
    log.info(
        "%s: %s characters, %s distinct; writing %s",
        *(corpus.name, f"{len(corpus.ids):,}", len(corpus.vocabulary), run),
    )
    return loop.go()


def _check_can_go_on(
    checkpoint: Checkpoint, config: Config, text_sha256: str, corpus: Corpus, run: Path
) -> None:
    check_resumable(checkpoint.config, config)
    if text_sha256 != corpus.sha256:
        raise UsageError(
            f"{corpus.name} is not the text that {run} began with, or it has changed since; "
            f"bring the old text back, or start a new run"
        )
    steps = checkpoint.config.train.steps
    if checkpoint.step >= config.train.steps:
        raise UsageError(
            f"{run} is finished: it is at step {checkpoint.step} of {config.train.steps}; "
            f"to go on for longer: --set train.steps={2 * checkpoint.step}"
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
        resumed_at: int | None = None,
    ) -> None:
        self.config, self.corpus, self.run, self.step = config, corpus, run, step
        self.excerpt = to_torch(corpus.val[: min(config.model.T, EXCERPT)])  # what pictures show
        self.progress, self.resumed_at = progress, resumed_at
        self.done = resumed_at or 0  # updates so far

    def go(self) -> Outcome:
        with Monitor(self.run, self.config, self.resumed_at) as self.monitor, StopRequest() as stop:
            if self.resumed_at is None:
                is_best, metrics = self._evaluate()
                self.monitor.record(0, metrics)
                self._save(is_best)
            reason = ""
            while not reason:
                reason = self._advance(stop)
            scores = {
                "val_loss": self.progress.val_loss,
                "best_val_loss": self.progress.best_val_loss,
            }
            vectors = self.step.model.characters.weight  # (V, C)
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

    def _advance(self, stop: StopRequest) -> str:
        """Train until something is due, and do it; the reason to stop, if there is one."""
        config, start, began = self.config.train, self.done, time.perf_counter()
        logs = evaluates = saves = False
        while not (logs or evaluates or saves):
            loss, norm = self.step(self.done)
            self.done += 1
            self.monitor.advance()
            signal_number, last = stop.signal_number, self.done == config.steps
            logs = last or self.done % config.log_every == 0
            evaluates = last or self.done % config.eval_every == 0
            saves = last or self.done % config.checkpoint_every == 0 or signal_number is not None
        metrics = self._measure(loss, norm, start, began)
        if not logs:
            metrics = {}
        is_best, reason = False, "all steps done" if last else ""
        if evaluates:
            is_best, scores = self._evaluate()
            metrics |= scores
            reason = self._enough() or reason
        if metrics:
            self.monitor.record(self.done, metrics)
        if saves or is_best or reason:
            self._save(is_best)
        if signal_number is not None and not reason:
            raise Interrupted(
                signal_number,
                f"stopped at step {self.done}, saved; go on with: gpt train --resume {self.run}",
            )
        return reason

    def _measure(self, loss: Tensor, norm: Tensor, start: int, began: float) -> dict[str, float]:
        """The figures of the last step, and the pace since step `start`."""
        train_loss, grad_norm = loss.item(), norm.item()
        overflows = self.step.scaler.is_enabled()  # fp16: such a step is left out, by design
        if not math.isfinite(train_loss) or not (math.isfinite(grad_norm) or overflows):
            raise TrainingError(
                f"step {self.done}: the loss is {train_loss} and the gradient's norm {grad_norm}, "
                f"expected finite numbers; the checkpoints of {self.run} are as they were. "
                f"Start again with a lower train.learning_rate or train.precision fp32"
            )
        characters = (self.done - start) * self.config.train.batch_size * self.config.model.T
        return {
            "train_loss": train_loss,
            "lr": learning_rate(self.done - 1, self.config.train),
            **({"grad_norm": grad_norm} if math.isfinite(grad_norm) else {}),
            "chars_per_s": round(characters / (time.perf_counter() - began), 1),
        }

    def _evaluate(self) -> tuple[bool, dict[str, float]]:
        """Whether this is the best so far, and the scores; what it shows goes to TensorBoard."""
        model, vocabulary = self.step.model, self.corpus.vocabulary
        # a new model's head is zero: its loss is known without looking
        val_loss = evaluate(model, self.corpus.val) if self.done else math.log(len(vocabulary))
        if not math.isfinite(val_loss):
            raise TrainingError(f"step {self.done}: the val loss is {val_loss}; see {self.run}")
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
        return is_best, {"val_loss": val_loss}

    def _enough(self) -> str:
        """The reason to stop before the last step, if there is one."""
        target, patience = self.config.train.stop_at_val_loss, self.config.train.patience
        if target is not None and self.progress.val_loss <= target:
            return f"val loss {self.progress.val_loss:.4f} is at train.stop_at_val_loss {target}"
        if patience is not None and self.progress.since_best >= patience:
            return f"no better val loss in {patience} evaluations (train.patience)"
        return ""

    def _save(self, is_best: bool) -> None:
        checkpoint = Checkpoint(self.done, self.step.model, self.config, self.corpus.vocabulary)
        state = {
            "step": self.step.state_dict(),
            "progress": asdict(self.progress),
            "text_sha256": self.corpus.sha256,
        }
        self.monitor.sync()  # the records first: those of a later step are dropped on resume
        save_checkpoint(self.run, checkpoint, state, is_best=is_best)
