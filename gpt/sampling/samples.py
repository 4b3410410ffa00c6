"""Samples of a stored model: a few are written side by side in this process, many in several.

Threads of one Python would wait for each other at every one of a character's many small
operations. Processes, each with a share of the texts and one thread, do not.
"""

import multiprocessing
import signal
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from time import monotonic
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from gpt.errors import GPTError
from gpt.sampling.generator import Piece, generate
from gpt.sampling.reader import device_for, open_reader, work
from gpt.stored import Stored

ENOUGH = 3e11  # bytes of weights to go through that are worth the start of processes
EACH = 16  # texts for each process at least: fewer are faster in one
APART = 0.02  # seconds between two reports of a process: more often than anyone sees


def write_samples(
    stored: Stored, device: str, prompts: list[list[int]], **options: Any
) -> Iterator[Piece]:
    """Let a stored model go on with each prompt, on `device`; for the options see `generate`.

    Raises:
        DeviceError: there is no such device.
        GPTError: a process that wrote some of the samples was ended.
    """
    B, length = len(prompts), options["length"]
    device = device_for(stored, device, B, length)
    n = min(_threads(), B // EACH) if work(stored, B, length) > ENOUGH else 1
    if device == "cpu" and n > 1:
        return _in_processes(n, stored, prompts, **options)
    return generate(open_reader(stored, device, B), stored.vocabulary, prompts, **options)


def _threads() -> int:
    """How many numpy multiplies matrices with: as many as there are cores, or as it was told."""
    blas = ThreadpoolController().select(user_api="blas")
    return max((pool["num_threads"] or 1 for pool in blas.info()), default=1)


def _in_processes(
    n: int,
    stored: Stored,
    prompts: list[list[int]],
    *,
    numbers: Sequence[int] | None = None,
    **options: Any,
) -> Iterator[Piece]:
    """The pieces of all samples, as n processes report them."""
    numbers = range(len(prompts)) if numbers is None else numbers
    context = multiprocessing.get_context("spawn")  # a fork may copy a lock that a thread holds
    workers: dict[Connection, SpawnProcess] = {}
    try:
        for _ in range(n):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_write_share, args=(theirs,), daemon=True)
            with theirs, _deaf_to_ctrl_c():
                worker.start()
            workers[ours] = worker
        for connection, rows in zip(workers, np.array_split(range(len(prompts)), n), strict=True):
            share = [(row, prompts[row], numbers[row]) for row in rows.tolist()]
            with _not_ended():
                connection.send((stored, share, options))
        writing = list(workers)
        while writing:
            ready = wait(writing)
            for connection in [one for one in writing if one in ready]:
                with _not_ended():
                    report = connection.recv()
                if isinstance(report, Exception):
                    raise report
                if report is None:
                    writing.remove(connection)
                else:
                    yield from report
    finally:
        for connection, worker in workers.items():
            connection.close()
            worker.kill()
            worker.join()


def _write_share(connection: Connection) -> None:
    """What each process does: report lists of pieces as they are written, last None or an error."""
    with suppress(EOFError, OSError):  # nobody listens any more
        stored, share, options = connection.recv()
        rows, prompts, numbers = zip(*share, strict=True)
        try:
            with ThreadpoolController().limit(limits=1):
                reader = open_reader(stored, "cpu", len(rows))
                pieces = generate(
                    reader, stored.vocabulary, list(prompts), numbers=numbers, **options
                )
                for report in _reports(pieces):
                    for piece in report:
                        piece.sample = rows[piece.sample]
                    connection.send(report)
            connection.send(None)
        except Exception as error:
            error.add_note(traceback.format_exc())
            connection.send(error)


def _reports(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """The pieces, as many at a time as come within APART seconds."""
    report, reported = [], monotonic()
    for piece in pieces:
        report.append(piece)
        if monotonic() - reported > APART:
            yield report
            report, reported = [], monotonic()
    yield report


@contextmanager
def _not_ended() -> Iterator[None]:
    """Raises GPTError if the process at the other end of a connection is gone."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise GPTError(
            "a process that wrote some of the samples was ended, perhaps for want of memory; use "
            "fewer --num-samples, or OMP_NUM_THREADS=1 to write all of them in one"
        ) from error


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started meanwhile never hear of a Ctrl-C: the one that they write for will."""
    resource_tracker.ensure_running()  # else started with them, which would undo the blocking
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
