"""Samples of a checkpoint: a few are generated side by side in this process, many in several.

Threads of one Python would wait for each other at every one of a character's many small
operations. Processes, each with some of the texts and one thread, do not. They are started as
programs of their own, and speak over their stdin and stdout.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from subprocess import PIPE, Popen
from time import monotonic
from typing import Any

from safetensors.numpy import load, save

from gpt.config.schema import ModelConfig
from gpt.errors import CheckpointError, GPTError
from gpt.runs.format import CheckpointData
from gpt.sampling.engine import bytes_to_read, device_for, open_engine
from gpt.sampling.generate import generate
from gpt.sampling.numpy_engine import NumpyEngine
from gpt.sampling.sampler import SamplingRules
from gpt.sampling.stopping import Chunk
from gpt.text.vocabulary import Vocabulary

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
    checkpoint: CheckpointData, device: str, prompts: list[list[int]], **options: Any
) -> Iterator[Chunk]:
    """Continue each prompt, on `device`; for the options see `generate`.

    Raises:
        CheckpointError: the model's logits are NaN or infinite.
        DeviceError: there is no such device.
        GPTError: a process for some of the samples cannot start, or was ended.
    """
    B, length = len(prompts), options["length"]
    device = device_for(checkpoint, device, B, length)
    if (n := process_count(checkpoint, device, B, length)) > 1:
        return _in_processes(n, checkpoint, prompts, **options)
    return generate(open_engine(checkpoint, device, B), checkpoint.vocabulary, prompts, **options)


def process_count(checkpoint: CheckpointData, device: str, B: int, length: int | None) -> int:
    """In how many processes B samples are generated on `device`, which is not `auto`."""
    if device != "cpu" or bytes_to_read(checkpoint, B, length) <= PARALLEL_BYTES:
        return 1
    return max(1, min(_threads(), B // SAMPLES_EACH))


def _threads() -> int:
    """Return how many threads numpy multiplies matrices with."""
    variable = "KMP_DUPLICATE_LIB_OK"  # threadpoolctl sets it as it is imported
    was_set = variable in os.environ
    from threadpoolctl import ThreadpoolController

    if not was_set:
        os.environ.pop(variable, None)
    pools = ThreadpoolController().select(user_api="blas").info()
    return max((pool["num_threads"] or 1 for pool in pools), default=os.cpu_count() or 1)


def _in_processes(
    n: int, checkpoint: CheckpointData, prompts: list[list[int]], **options: Any
) -> Iterator[Chunk]:
    """The chunks of all samples as n processes report them."""
    rows = range(len(prompts))
    options["indices"] = options.get("indices") or rows
    workers: list[Popen[bytes]] = []
    try:
        for _ in range(n):
            workers.append(_start())
        for i, worker in enumerate(workers):
            assert worker.stdin is not None
            with worker.stdin as pipe:
                pipe.writelines(_job(checkpoint, [*rows[i::n]], prompts, **options))
        working = list(workers)
        while working:
            for worker in list(working):  # all generate at the same pace, and report often
                assert worker.stdout is not None
                report = json.loads(worker.stdout.readline() or '{"error": "it left"}')
                if report is None:
                    working.remove(worker)
                elif "error" in report:
                    raise OSError(report["error"])
                elif "refused" in report:
                    raise CheckpointError(report["refused"])
                else:
                    yield from (Chunk(**chunk) for chunk in report["chunks"])
    except (OSError, ValueError) as error:  # or half a line
        raise GPTError(
            f"a process for some of the samples cannot start, or was ended ({error}), perhaps for "
            f"want of memory; generate fewer samples at once, or set OMP_NUM_THREADS=1 to use one "
            f"process"
        ) from error
    finally:
        for worker in workers:
            with suppress(BrokenPipeError), worker:
                worker.kill()


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


def _job(
    checkpoint: CheckpointData,
    rows: list[int],
    prompts: list[list[int]],
    indices: Sequence[int],
    rules: SamplingRules | None = None,
    **options: Any,
) -> tuple[bytes, bytes]:
    """What a process for the samples in these rows is sent: a line of JSON, and the weights."""
    job = {
        "config": checkpoint.config.model.model_dump(),
        "vocabulary": checkpoint.vocabulary.to_json(),
        "rows": rows,
        "prompts": [prompts[row] for row in rows],
        "indices": [indices[row] for row in rows],
        "rules": asdict(rules or SamplingRules()),
        "options": options,
    }
    return f"{json.dumps(job)}\n".encode(), save(checkpoint.weights)


def work() -> None:
    """The program of a process: a line of JSON for each report, the last one null or an error."""
    try:
        try:
            for report in _work(json.loads(sys.stdin.buffer.readline()), sys.stdin.buffer.read()):
                print(json.dumps(report), flush=True)
        except BrokenPipeError:
            raise
        except Exception as error:
            kind = "refused" if isinstance(error, CheckpointError) else "error"
            print(json.dumps({kind: str(error) or type(error).__name__}), flush=True)
    except BrokenPipeError:  # the parent is gone
        os._exit(1)


def _work(job: dict[str, Any], weights: bytes) -> Iterator[dict[str, Any] | None]:
    config, rows = ModelConfig.model_validate(job["config"]), job["rows"]
    chunks = generate(
        NumpyEngine(config, load(weights), len(rows)),
        Vocabulary.from_json(job["vocabulary"]),
        job["prompts"],
        rules=SamplingRules(**job["rules"]),
        indices=job["indices"],
        **job["options"],
    )
    for report in _reports(chunks):
        yield {"chunks": [asdict(chunk) | {"sample": rows[chunk.sample]} for chunk in report]}
    yield None


def _reports(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """The chunks, as many at a time as come within REPORT_SECONDS."""
    report, reported = [], monotonic()
    for chunk in chunks:
        report.append(chunk)
        if monotonic() - reported > REPORT_SECONDS:
            yield report
            report, reported = [], monotonic()
    yield report
