"""The members of an ensemble, and the choice of the step: TrainStep or EnsembleStep."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from gpt.config.schema import Config
from gpt.device import computing_with, set_threads_here
from gpt.distributed import Ranks
from gpt.model.ensemble import LanguageModel, members_of
from gpt.model.transformer import GPT
from gpt.runs.format import TrainingState
from gpt.seeds import member_seed
from gpt.text.vocabulary import Ids
from gpt.training.compiled import compile_mode
from gpt.training.schedule import Schedule
from gpt.training.step import MAX_UNREAD_STEPS, StepResult, TrainStep, join_tensors, split_tensors
from gpt.training.workers import supports_threads, threads_each


class EnsembleStep:
    """Updates all members of an ensemble; Trainer uses it like a TrainStep.

    Member m gets, bit for bit, the weights of a single model that is trained with the seed
    `member_seed(seed, m)` and the number of threads that `threads_each` returns.

    If `supports_threads` returns true, the members train at the same time and divide the CPU
    threads; a member can be one step ahead of another. On CUDA, each member has its own stream,
    because the kernels of one small model do not fill a GPU. Otherwise, the members train one after
    another.
    """

    max_unread = MAX_UNREAD_STEPS  # even on a CPU, a call may return before its work is done

    def __init__(
        self, model: LanguageModel, members: list[TrainStep], threads: int, *, side_by_side: bool
    ) -> None:
        self.model, self.members, self.side_by_side = model, members, side_by_side
        self.device, self.precision = members[0].device, members[0].precision
        self.warmup = members[0].warmup
        at_once = min(torch.get_num_threads(), len(members))
        self.pool = ThreadPoolExecutor(at_once, initializer=set_threads_here, initargs=(threads,))
        self.running: list[Future[None]] = []  # the newest call of each member
        self.streams: list[Any] = []  # a CUDA stream for each member; empty without CUDA
        if self.device.type == "cuda":
            self.streams = [torch.cuda.Stream(self.device) for _ in members]  # type: ignore[no-untyped-call]

    def __call__(self, step: int, is_probe: bool = False) -> StepResult:
        """Update each of the K members; return their losses and gradient norms, (K,) each.

        If `self.side_by_side`, return before the updates have ended.
        """
        members = range(len(self.members))
        shape = 2, len(self.members)
        losses, norms = torch.full(shape, torch.nan, dtype=torch.float32, device=self.device)

        def update(m: int) -> None:
            losses[m], norms[m] = self.members[m](step, is_probe)

        if self.streams:
            current = torch.cuda.current_stream(self.device)
            for m, stream in enumerate(self.streams):
                stream.wait_stream(current)
                with torch.cuda.stream(stream):
                    update(m)
            for stream in self.streams:
                current.wait_stream(stream)
        elif self.side_by_side:
            earlier = self.running

            def run(m: int) -> None:
                wait(earlier[m : m + 1])  # the previous call of this member
                update(m)

            started = [self.pool.submit(run, m) for m in members]
            self._finish()  # so that a member is at most one step ahead of another
            self.running = started
        else:
            for m in members:
                update(m)
        return losses, norms

    def probe(self, step: int) -> None:
        """Compute `step` without changing anything, to measure its time."""
        self(step, is_probe=True)
        self._finish()

    def use_schedule(self, schedule: Schedule) -> None:
        """Use `schedule` for all ensemble members, from the next step on."""
        self._finish()
        for member in self.members:
            member.use_schedule(schedule)

    def read(self, results: list[StepResult]) -> list[list[list[float]]]:
        """Wait for `results`; return each as [losses, norms], with one float for each member."""
        self._finish()
        return self.members[0].read(results)

    def _finish(self) -> None:
        """Wait for the updates that `__call__` started, and raise their errors."""
        running, self.running = self.running, []
        wait(running)
        for future in running:
            future.result()

    def state_dict(self) -> TrainingState:
        """Return the training state of all members; tensor `x` of member m is named `m.x`."""
        states = [member.state_dict() for member in self.members]
        tensors = join_tensors([state.tensors for state in states])
        return TrainingState(tensors, {"members": [state.numbers for state in states]})

    def load_state_dict(self, state: TrainingState) -> None:
        """Restore the training state of all members from `state`, a result of `state_dict`."""
        by_member = split_tensors(state.tensors, len(self.members))
        states = map(TrainingState, by_member, state.numbers["members"])
        for member, own in zip(self.members, states, strict=True):
            member.load_state_dict(own)


AnyStep = TrainStep | EnsembleStep


def build_step(
    config: Config, model: LanguageModel, device: torch.device, ranks: Ranks, ids: Ids
) -> AnyStep:
    """Return a TrainStep or EnsembleStep for `model`; see `TrainStep.__init__` for arguments."""
    if compile_mode(config.train.compile, device) != "off":
        torch.compiler.reset()  # torch's limit of 8 compiled variants includes earlier models
    if isinstance(model, GPT):
        return TrainStep(config, model, device, ranks, ids)
    members, threads = [], threads_each(config, device, ranks)
    with computing_with(threads):
        for m, member in enumerate(members_of(model)):
            seed = {"seed": member_seed(config.seed, m)}
            own = config.changed(model={"ensemble": 1}).model_copy(update=seed)
            members.append(TrainStep(own, member, device, ranks, ids))
    side_by_side = supports_threads(config, device, ranks)
    return EnsembleStep(model, members, threads, side_by_side=side_by_side)


def computed_with(train_step: AnyStep) -> dict[str, str | int]:
    """Return the number of threads and the precision, on which the rounding of losses depends."""
    precision = str(train_step.precision).removeprefix("torch.")
    return {"threads": torch.get_num_threads(), "precision": precision}
