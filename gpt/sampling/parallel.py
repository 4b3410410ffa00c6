"""Samples of a stored model: a few are written side by side in this process, many in several.

Threads of one Python would wait for each other at every one of a character's many small
operations. Processes, each with a share of the texts and one thread, do not.
"""

import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from subprocess import DEVNULL, Popen
from time import monotonic
from typing import Any

from threadpoolctl import ThreadpoolController

from gpt.errors import GPTError
from gpt.runs.stored import Stored
from gpt.sampling.engine import device_for, open_reader, work
from gpt.sampling.generator import Piece, generate

ENOUGH = 3e11  # bytes of weights to go through that are worth the start of processes
EACH = 16  # texts for each process at least: fewer are faster in one
REPORT_EVERY = 0.02  # seconds: more often than anyone sees
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


def write_samples(
    stored: Stored, device: str, prompts: list[list[int]], **options: Any
) -> Iterator[Piece]:
    """Let a stored model go on with each prompt, on `device`; for the options see `generate`.

    Raises:
        DeviceError: there is no such device.
        GPTError: a process for some of the samples cannot start, or was ended.
    """
    B, length = len(prompts), options["length"]
    device = device_for(stored, device, B, length)
    n = min(_threads(), B // EACH) if work(stored, B, length) > ENOUGH else 1
    if device == "cpu" and n > 1:
        return _in_processes(n, stored, prompts, **options)
    return generate(open_reader(stored, device, B), stored.vocabulary, prompts, **options)


def _threads() -> int:
    """How many numpy multiplies matrices with: as it was told, or as many as there are cores."""
    pools = ThreadpoolController().select(user_api="blas").info()
    return max((pool["num_threads"] or 1 for pool in pools), default=os.cpu_count() or 1)


def _in_processes(
    n: int, stored: Stored, prompts: list[list[int]], **options: Any
) -> Iterator[Piece]:
    """The pieces of all samples as n processes report them."""
    rows = range(len(prompts))
    numbers = options.pop("numbers", None) or rows
    workers: dict[Connection, Popen[bytes]] = {}
    try:
        for _ in range(n):
            ours, theirs = Pipe()
            with theirs:
                workers[ours] = _start(theirs)
        for i, connection in enumerate(workers):
            connection.send(
                (stored, rows[i::n], prompts[i::n], options | {"numbers": numbers[i::n]})
            )
        writing = list(workers)
        while writing:
            for ready in wait(writing):
                assert isinstance(ready, Connection)
                report = ready.recv()
                if isinstance(report, Exception):
                    raise report
                if report is None:
                    writing.remove(ready)
                else:
                    yield from report
    except (EOFError, OSError) as error:
        raise GPTError(
            f"a process for some of the samples cannot start, or was ended ({error or 'it left'}), "
            f"perhaps for want of memory; use fewer --num-samples, or OMP_NUM_THREADS=1 to write "
            f"all of them in one"
        ) from error
    finally:
        for connection, worker in workers.items():
            connection.close()
            worker.kill()
            worker.wait()


def _start(connection: Connection) -> Popen[bytes]:
    """A process that hears of no Ctrl-C: the one that it writes for does."""
    code = (
        f"import sys; sys.path[:] = {[*map(str, sys.path)]!r}; from gpt.sampling import parallel; "
        f"parallel.write_share({connection.fileno()})"
    )
    return Popen(
        [sys.executable, "-c", code],
        stdin=DEVNULL,
        pass_fds=[connection.fileno()],
        env=os.environ | ONE_THREAD,
        start_new_session=True,
    )


def write_share(descriptor: int) -> None:
    """What each process does: report lists of pieces as they are written, last None or an error."""
    with Connection(descriptor) as connection, suppress(EOFError, OSError):  # nobody listens
        try:
            stored, rows, prompts, options = connection.recv()
            reader = open_reader(stored, "cpu", len(rows))
            for report in _reports(generate(reader, stored.vocabulary, prompts, **options)):
                for piece in report:
                    piece.sample = rows[piece.sample]
                connection.send(report)
            connection.send(None)
        except (EOFError, OSError):
            raise
        except Exception as error:
            error.add_note(traceback.format_exc())
            connection.send(error)


def _reports(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """The pieces, as many at a time as come within REPORT_EVERY seconds."""
    report, reported = [], monotonic()
    for piece in pieces:
        report.append(piece)
        if monotonic() - reported > REPORT_EVERY:
            yield report
            report, reported = [], monotonic()
    yield report
