"""One update of each member of an ensemble."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import torch

from gpt.device import set_threads_here
from gpt.model.ensemble import LanguageModel
from gpt.runs.format import Tensors, TrainingState
from gpt.training.schedule import Schedule
from gpt.training.step import Result, TrainStep


class EnsembleStep:
    """A TrainStep for each member, with the interface of a TrainStep.

    The members' batches and random draws differ by their seeds. Member m has, bit for bit, the
    weights of a run without an ensemble whose seed is `member_seed(seed, m)` and which computes
    with `threads_each` threads.

    With `side_by_side`, as on a CPU, the members train at the same time, with the threads divided
    among them; more members than threads take turns. A member waits for another only if that is
    more than a step behind, or if results are read. Otherwise one member trains after the other.
    """

    is_ahead = True  # see TrainStep

    def __init__(
        self,
        model: LanguageModel,
        members: list[TrainStep],
        threads: int,
        threads_each: int,
        *,
        side_by_side: bool,
    ) -> None:
        self.model, self.members, self.side_by_side = model, members, side_by_side
        self.device, self.precision = members[0].device, members[0].precision
        self.teacher = members[0].teacher
        self.pool = ThreadPoolExecutor(
            min(threads, len(members)), initializer=set_threads_here, initargs=(threads_each,)
        )
        self.running: deque[list[Future[None]]] = deque()  # for each step, a future of each member

    def __call__(self, step: int) -> Result:
        """Update each member; return their losses and gradient norms, (K,), valid once `read`.

        A member whose loss or norm is NaN or infinite skips its own update. See TrainStep.
        """
        if not self.side_by_side:
            results = [member(step) for member in self.members]
            losses, norms = map(torch.stack, zip(*results, strict=True))
            return losses, norms
        losses, norms = torch.full((2, len(self.members)), torch.nan, dtype=torch.float32)

        def update(m: int) -> None:
            losses[m], norms[m] = self.members[m](step)

        self._start([partial(update, m) for m in range(len(self.members))])
        self._wait(unfinished_steps=1)
        return losses, norms

    def probe(self, step: int) -> None:
        """Compute the gradients of each member and discard them; see TrainStep."""
        if self.side_by_side:
            self._start([partial(member.probe, step) for member in self.members])
            self._wait()
        else:
            for member in self.members:
                member.probe(step)

    def follow(self, schedule: Schedule) -> None:
        """Use `schedule` from the next step on; see TrainStep."""
        self._wait()
        for member in self.members:
            member.follow(schedule)

    def read(self, results: list[Result]) -> list[list[list[float]]]:
        """Wait for results; return for each the losses and the norms of the members."""
        self._wait()
        return self.members[0].read(results)

    def _start(self, work: list[Callable[[], None]]) -> None:
        """Run the work of each member in the pool, after what this member does already."""

        def run(each: Callable[[], None], before: list[Future[None]]) -> None:
            wait(before)
            each()

        earlier = self.running[-1] if self.running else []
        self.running.append(
            [self.pool.submit(run, each, earlier[m : m + 1]) for m, each in enumerate(work)]
        )

    def _wait(self, unfinished_steps: int = 0) -> None:
        """Wait until at most `unfinished_steps` are running. Raises what a member raised."""
        while len(self.running) > unfinished_steps:
            oldest = self.running.popleft()
            wait(oldest)
            for future in oldest:
                future.result()

    def state_dict(self) -> TrainingState:
        """Return the members' states; the names of member m's tensors start with `m.`."""
        states = [member.state_dict() for member in self.members]
        tensors = {
            f"{m}.{name}": array
            for m, state in enumerate(states)
            for name, array in state.tensors.items()
        }
        return TrainingState(tensors, {"members": [state.numbers for state in states]})

    def load_state_dict(self, state: TrainingState) -> None:
        """Copy the result of `state_dict` into the members; see TrainStep."""
        by_member: list[Tensors] = [{} for _ in self.members]
        for name, array in state.tensors.items():
            m, _, rest = name.partition(".")
            by_member[int(m)][rest] = array
        for member, tensors, numbers in zip(
            self.members, by_member, state.numbers["members"], strict=True
        ):
            member.load_state_dict(TrainingState(tensors, numbers))


Update = TrainStep | EnsembleStep
