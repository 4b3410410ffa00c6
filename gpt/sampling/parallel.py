"""Samples of a checkpoint: a few are generated side by side in this process, many in several.

Threads of one Python would wait for each other at every one of a character's many small
operations. Processes, each with some of the texts and one thread, do not. They are started as
programs of their own, and speak over their stdin and stdout.
"""

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator
from subprocess import PIPE, Popen
from time import monotonic
from typing import IO, Any, cast

from threadpoolctl import ThreadpoolController

from gpt.errors import GPTError
from gpt.runs.stored import Stored
from gpt.sampling.engine import bytes_to_read, device_for, open_engine
from gpt.sampling.generate import generate
from gpt.sampling.stopping import Chunk

PARALLEL_BYTES = 3e11  # of weights to read, which are worth the start of processes
SAMPLES_EACH = 16  # for each process at least: fewer are faster in one
REPORT_SECONDS = 0.02  # more often than anyone sees
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
PROGRAM = (
    f"import sys; sys.path[:] = {[*map(str, sys.path)]!r}; from gpt.sampling import parallel; "
    f"parallel.work()"
)


def generate_samples(
    checkpoint: Stored, device: str, prompts: list[list[int]], **options: Any
) -> Iterator[Chunk]:
    """Continue each prompt, on `device`; for the options see `generate`.

    Raises:
        CheckpointError: the model's logits are NaN or infinite.
        DeviceError: there is no such device.
        GPTError: a process for some of the samples cannot start, or was ended.
    """
    B, length = len(prompts), options["length"]
    device = device_for(checkpoint, device, B, length)
    large = bytes_to_read(checkpoint, B, length) > PARALLEL_BYTES
    n = min(_threads(), B // SAMPLES_EACH) if large else 1
    if device == "cpu" and n > 1:
        return _in_processes(n, checkpoint, prompts, **options)
    return generate(open_engine(checkpoint, device, B), checkpoint.vocabulary, prompts, **options)


def _threads() -> int:
    """How many threads numpy multiplies matrices with."""
    pools = ThreadpoolController().select(user_api="blas").info()
    return max((pool["num_threads"] or 1 for pool in pools), default=os.cpu_count() or 1)


def _in_processes(
    n: int, checkpoint: Stored, prompts: list[list[int]], **options: Any
) -> Iterator[Chunk]:
    """The chunks of all samples as n processes report them."""
    rows = range(len(prompts))
    indices = options.pop("indices", None) or rows
    workers: list[Popen[bytes]] = []
    try:
        for _ in range(n):
            workers.append(_start())
        for i, worker in enumerate(workers):
            job = checkpoint, rows[i::n], prompts[i::n], options | {"indices": indices[i::n]}
            _send(job, cast(IO[bytes], worker.stdin))
        working = list(workers)
        while working:
            for worker in list(working):  # all generate at the same pace, and report often
                report = pickle.load(cast(IO[bytes], worker.stdout))
                if isinstance(report, Exception):
                    raise report
                if report is None:
                    working.remove(worker)
                else:
                    yield from report
    except (EOFError, OSError, pickle.UnpicklingError) as error:
        raise GPTError(
            f"a process for some of the samples cannot start, or was ended ({error or 'it left'}), "
            f"perhaps for want of memory; use fewer --num-samples, or OMP_NUM_THREADS=1 to use "
            f"one process"
        ) from error
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _start() -> Popen[bytes]:
    """A process that gets no Ctrl-C: the one that it works for does."""
    return Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=PIPE,
        stdout=PIPE,
        env=os.environ | ONE_THREAD,
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
    )


def work() -> None:
    """The program of a process: report chunks as they are generated, then None or an error."""
    to_parent = sys.stdout.buffer
    try:
        checkpoint, rows, prompts, options = pickle.load(sys.stdin.buffer)
        try:
            engine = open_engine(checkpoint, "cpu", len(rows))
            for report in _reports(generate(engine, checkpoint.vocabulary, prompts, **options)):
                for chunk in report:
                    chunk.sample = rows[chunk.sample]
                _send(report, to_parent)
            _send(None, to_parent)
        except (EOFError, OSError):
            raise
        except Exception as error:
            error.add_note(traceback.format_exc())
            _send(error, to_parent)
    except (EOFError, OSError, pickle.UnpicklingError):  # the parent is gone
        os._exit(1)


def _send(message: object, pipe: IO[bytes]) -> None:
    pickle.dump(message, pipe)
    pipe.flush()


def _reports(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """The chunks, as many at a time as come within REPORT_SECONDS."""
    report, reported = [], monotonic()
    for chunk in chunks:
        report.append(chunk)
        if monotonic() - reported > REPORT_SECONDS:
            yield report
            report, reported = [], monotonic()
    yield report
