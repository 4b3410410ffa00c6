"""One update of each member of an ensemble."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Lock

import torch

from gpt.config.schema import Config
from gpt.device import computing_with, set_threads_here
from gpt.model.ensemble import Ensemble, LanguageModel, members_of
from gpt.model.transformer import GPT
from gpt.runs.format import Tensors, TrainingState
from gpt.seeds import member_seed
from gpt.text.vocabulary import Ids, Vocabulary
from gpt.training.gradients import takes_threads, threads_each
from gpt.training.step import Result, TrainStep
from gpt.training.teacher import Teacher


class EnsembleStep:
    """A TrainStep for each member: their batches, and all that is random, differ by their seeds.

    On a CPU the members train side by side, with the threads divided among them; if there are
    more members than threads, they take turns. There are no gradients to add up, so a member waits
    for another only where that is more than a step behind, or a result is read. Elsewhere, and
    with dropout or a compiler (see `make_gradients`), one member trains after the other.

    Member m has, bit for bit, the weights of the run without an ensemble whose seed is
    `member_seed(seed, m)` and which computes with `threads_each` threads.
    """

    is_ahead = True  # see TrainStep

    def __init__(
        self,
        model: Ensemble,
        ids: Ids,
        config: Config,
        device: torch.device,
        vocabulary: Vocabulary | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        self.model, self.device, self.teacher = model, device, teacher
        self.side_by_side = takes_threads(config, device)
        threads = torch.get_num_threads()
        each = threads_each(threads, config, device)
        with computing_with(each):
            self.members = [
                TrainStep(member, ids, member_config(config, m), device, vocabulary, teacher)
                for m, member in enumerate(members_of(model))
            ]
        self.precision = self.members[0].precision
        self.turns = Turns(len(self.members), threads, each)
        self.running: deque[list[Future[None]]] = deque()  # steps, a future for each member

    def __call__(self, step: int, scale: float = 1.0) -> Result:
        """Returns each member's loss and gradient norm, (K,), which are computed once `read`.

        See TrainStep. A member whose loss or norm is NaN or infinite skips its own update.
        """
        if not self.side_by_side:
            results = [member(step, scale) for member in self.members]
            losses, norms = map(torch.stack, zip(*results, strict=True))
            return losses, norms
        losses, norms = torch.full((2, len(self.members)), torch.nan, dtype=torch.float32)

        def update(m: int) -> None:
            losses[m], norms[m] = self.members[m](step, scale)

        members = range(len(self.members))
        self.running.append([self.turns.submit(m, partial(update, m)) for m in members])
        self._wait(steps_left=1)
        return losses, norms

    def replan(self, config: Config) -> None:
        """See TrainStep."""
        self._wait(steps_left=0)
        for m, member in enumerate(self.members):
            member.replan(member_config(config, m))

    def probe(self, step: int) -> None:
        """See TrainStep."""
        if not self.side_by_side:
            for member in self.members:
                member.probe(step)
            return
        work = [partial(member.probe, step) for member in self.members]
        self.running.append([self.turns.submit(m, probe) for m, probe in enumerate(work)])
        self._wait(steps_left=0)

    def read(self, results: list[Result]) -> list[list[list[float]]]:
        """See TrainStep."""
        self._wait(steps_left=0)
        return self.members[0].read(results)

    def _wait(self, steps_left: int) -> None:
        while len(self.running) > steps_left:
            oldest = self.running.popleft()
            wait(oldest)
            for future in oldest:
                future.result()

    def state_bytes(self) -> int:
        """See TrainStep."""
        return sum(member.state_bytes() for member in self.members)

    def state_dict(self) -> TrainingState:
        """That of each member; the names of its tensors begin with its number."""
        states = [member.state_dict() for member in self.members]
        tensors = {
            f"{m}.{name}": array
            for m, state in enumerate(states)
            for name, array in state.tensors.items()
        }
        return TrainingState(tensors, {"members": [state.numbers for state in states]})

    def load_state_dict(self, state: TrainingState) -> None:
        """See TrainStep."""
        of_members: list[Tensors] = [{} for _ in self.members]
        for name, array in state.tensors.items():
            m, _, rest = name.partition(".")
            of_members[int(m)][rest] = array
        for member, tensors, numbers in zip(
            self.members, of_members, state.numbers["members"], strict=True
        ):
            member.load_state_dict(TrainingState(tensors, numbers))


class Turns:
    """Queues of work on a few threads: each queue's in its order, and the queues in turn.

    Each thread computes with `threads_each` of torch's.
    """

    def __init__(self, queues: int, threads: int, threads_each: int) -> None:
        self.queues: list[deque[tuple[Future[None], Callable[[], None]]]]
        self.queues = [deque() for _ in range(queues)]  # the first of each is being done
        self.lock = Lock()
        self.pool = ThreadPoolExecutor(
            min(threads, queues), initializer=set_threads_here, initargs=(threads_each,)
        )

    def submit(self, queue: int, work: Callable[[], None]) -> Future[None]:
        """Do this work after what is in its queue. The future raises what the work raises."""
        future = Future[None]()
        with self.lock:
            self.queues[queue].append((future, work))
            if len(self.queues[queue]) == 1:
                self.pool.submit(self._do_first, queue)
        return future

    def _do_first(self, queue: int) -> None:
        future, work = self.queues[queue][0]
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        with self.lock:
            self.queues[queue].popleft()
            if self.queues[queue]:
                self.pool.submit(self._do_first, queue)


Update = TrainStep | EnsembleStep


def make_step(
    model: LanguageModel,
    ids: Ids,
    config: Config,
    device: torch.device,
    vocabulary: Vocabulary | None = None,
    teacher: Teacher | None = None,
) -> Update:
    """What updates the model; see TrainStep and EnsembleStep."""
    if isinstance(model, GPT):
        return TrainStep(model, ids, config, device, vocabulary, teacher)
    return EnsembleStep(model, ids, config, device, vocabulary, teacher)


def member_config(config: Config, member: int) -> Config:
    """The config of the run whose model is that member, counted from 0."""
    model = config.model.model_copy(update={"ensemble": 1})
    seed = member_seed(config.seed, member)
    return config.model_copy(update={"seed": seed, "model": model})
