"""Update the weights of a model, or of each member of an ensemble."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from gpt.config.schema import Config
from gpt.device import computing_with, forget_compiled_code, set_threads_here
from gpt.distributed.ranks import Ranks
from gpt.model.ensemble import LanguageModel, members_of
from gpt.model.transformer import GPT
from gpt.runs.format import TrainingState
from gpt.seeds import member_seed
from gpt.text.vocabulary import Ids, Vocabulary
from gpt.training.gradients import takes_threads, threads_each
from gpt.training.schedule import Schedule
from gpt.training.step import Result, TrainStep, join_tensors, split_tensors
from gpt.training.teacher import Teacher


class EnsembleStep:
    """Updates all members of an ensemble; has the same interface as TrainStep.

    Each member has its own TrainStep and its own seed, which sets its batches and random draws.
    Member m gets, bit for bit, the weights of a run without an ensemble that has the seed
    `member_seed(seed, m)` and the number of threads that `threads_each` returns.

    On a CPU, the members train in parallel and divide the threads among them. If there are more
    members than threads, members wait for a free thread. No member gets more than one step ahead of
    another, and `read` waits for all members before it returns losses. On other devices, or with a
    setting such as dropout (see `takes_threads`), the members train one after another.
    """

    is_ahead = True  # a call may return before its work is done; see TrainStep

    def __init__(
        self,
        config: Config,
        model: LanguageModel,
        device: torch.device,
        ranks: Ranks,
        ids: Ids,
        vocabulary: Vocabulary | None,
        teacher: Teacher | None,
    ) -> None:
        threads = torch.get_num_threads()
        each = threads_each(threads, config, device, ranks)
        config_of_one = config.model.model_copy(update={"ensemble": 1})
        self.members: list[TrainStep] = []
        with computing_with(each):
            for m, member in enumerate(members_of(model)):
                update = {"seed": member_seed(config.seed, m), "model": config_of_one}
                own = config.model_copy(update=update)
                self.members.append(TrainStep(own, member, device, ranks, ids, vocabulary, teacher))
        self.model, self.device, self.teacher = model, device, teacher
        self.precision = self.members[0].precision
        self.side_by_side = takes_threads(config, device, ranks)
        self.pool = ThreadPoolExecutor(
            min(threads, len(self.members)), initializer=set_threads_here, initargs=(each,)
        )
        self.running: list[Future[None]] = []  # the newest work of each member

    def __call__(self, step: int) -> Result:
        """Update each member; return tensors (members,) of the losses and of the gradient norms.

        A member whose loss or norm is NaN or infinite skips its own update.
        """
        losses, norms = torch.full(
            (2, len(self.members)), torch.nan, dtype=torch.float32, device=self.device
        )

        def update(m: int) -> None:
            losses[m], norms[m] = self.members[m](step)

        self._for_each_member(update)
        return losses, norms

    def probe(self, step: int) -> None:
        """Compute each member's gradients for `step` and discard them, to measure the time."""
        self._for_each_member(lambda m: self.members[m].probe(step))
        self._finish()

    def follow(self, schedule: Schedule) -> None:
        """Use `schedule` for all ensemble members, from the next step on."""
        self._finish()
        for member in self.members:
            member.follow(schedule)

    def read(self, results: list[Result]) -> list[list[list[float]]]:
        """Wait until `results` are computed; return a pair [losses, norms] for each result.

        `losses` and `norms` are lists with one number for each ensemble member.
        """
        self._finish()
        return self.members[0].read(results)

    def _for_each_member(self, work: Callable[[int], None]) -> None:
        """Call `work(m)` for the index m of each ensemble member.

        If the members train in threads, this method can return before the calls have ended.
        """
        members = range(len(self.members))
        if not self.side_by_side:
            for m in members:
                work(m)
            return
        earlier = self.running

        def run(m: int) -> None:
            wait(earlier[m : m + 1])
            work(m)

        started = [self.pool.submit(run, m) for m in members]
        self._finish()
        self.running = started

    def _finish(self) -> None:
        """Wait until all ensemble members are done; raise an exception that a member raised."""
        running, self.running = self.running, []
        wait(running)
        for future in running:
            future.result()

    def state_dict(self) -> TrainingState:
        """Return the optimizer states of all members; the name `x` in member 0 becomes `0.x`."""
        states = [member.state_dict() for member in self.members]
        tensors = join_tensors([state.tensors for state in states])
        return TrainingState(tensors, {"members": [state.numbers for state in states]})

    def load_state_dict(self, state: TrainingState) -> None:
        """Restore the training state of all ensemble members from `state`, made by `state_dict`."""
        by_member = split_tensors(state.tensors, len(self.members))
        for member, tensors, numbers in zip(
            self.members, by_member, state.numbers["members"], strict=True
        ):
            member.load_state_dict(TrainingState(tensors, numbers))


Update = TrainStep | EnsembleStep


def build_step(
    config: Config,
    model: LanguageModel,
    device: torch.device,
    ranks: Ranks,
    ids: Ids,
    vocabulary: Vocabulary | None = None,
    teacher: Teacher | None = None,
) -> Update:
    """Return an object that makes training steps: a TrainStep or, for ensembles, an EnsembleStep.

    `ids` is the train split, and `teacher` the model to distill, if any. If `vocabulary` is given,
    the cost of characters that share an id is added to the loss (see TrainStep).
    """
    forget_compiled_code(config.train.compile, device)
    if isinstance(model, GPT):
        return TrainStep(config, model, device, ranks, ids, vocabulary, teacher)
    return EnsembleStep(config, model, device, ranks, ids, vocabulary, teacher)
