"""The runs of a sweep, trained one after the other here, or several at once in processes.

A process is a program of its own. It gets its job, and a line when it is to stop, on stdin, and
tells what happens on stdout. When the process that started it is gone, it ends at once, as if it
had been killed with that.
"""

import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Any

import numpy as np

from gpt.config.schema import Config
from gpt.errors import GPTError, Interrupted
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Vocabulary
from gpt.training.monitor.progress import training_bar
from gpt.training.trainer import train

log = logging.getLogger(__name__)

PROGRAM = (
    f"import sys; sys.path[:] = {[*map(str, sys.path)]!r}; from gpt.recipe import workers; "
    f"workers.work()"
)
STOP_WITHIN_S = 0.1  # how often it is asked whether to stop

OnEvent = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Job:
    """A run to train from the start, or to resume."""

    name: str
    run: Path
    config: Config
    corpus: Corpus
    resumes: bool

    def train(self, **options: Any) -> None:
        """Train it; for the options, and what it raises, see `gpt.training.trainer.train`."""
        again = "resume" if self.resumes else "overwrite"  # what a kill left without a checkpoint
        train(self.config, self.corpus, self.run, **options | {again: True})


def train_here(
    jobs: Sequence[Job], should_stop: Callable[[], bool], on_event: OnEvent
) -> dict[str, str]:
    """Train one after the other; by name, what went wrong with those that failed.

    Raises Interrupted if `should_stop` returned True.
    """
    errors = {}
    for number, job in enumerate(jobs, start=1):
        if should_stop():
            raise Interrupted("stopped")
        log.info("run %d of %d: %s", number, len(jobs), job.name)
        named = {"run": job.name}
        try:
            job.train(should_stop=should_stop, on_event=lambda event, n=named: on_event(event | n))
        except Interrupted:
            raise
        except Exception as error:
            errors[job.name] = _told(error)
            log.warning("%s failed: %s", job.name, errors[job.name])
    return errors


def train_in_processes(
    jobs: Sequence[Job], at_once: int, should_stop: Callable[[], bool], on_event: OnEvent
) -> dict[str, str]:
    """The same, so many at once; a bar shows the steps of all."""
    reports: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = queue.SimpleQueue()
    waiting, errors = list(jobs), dict[str, str]()
    working, stopping, interrupted = set[_Worker](), False, False
    with _Steps(jobs) as steps:
        try:
            while working or (waiting and not stopping):
                if not stopping and should_stop():
                    stopping = True
                    for worker in working:
                        worker.stop()
                while waiting and not stopping and len(working) < at_once:
                    job = waiting.pop(0)
                    log.info("run %d of %d: %s", len(jobs) - len(waiting), len(jobs), job.name)
                    working.add(_Worker(job, reports))
                try:
                    worker, report = reports.get(timeout=STOP_WITHIN_S)
                except queue.Empty:
                    continue
                name = worker.job.name
                if report is not None:
                    steps.tell(name, report)
                    if "kind" in report:
                        on_event(report | {"run": name})
                    continue
                working.remove(worker)
                interrupted |= worker.interrupted
                if (error := worker.error()) is not None:
                    errors[name] = error
                    log.warning("%s failed: %s", name, error)
        finally:
            for worker in working:
                worker.process.kill()
    if interrupted or waiting:
        raise Interrupted("stopped")
    return errors


class _Steps:
    """A bar over the steps of several runs, and a line for what is worth one."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.planned = {job.name: job.config.train.steps for job in jobs}
        self.done = dict.fromkeys(self.planned, 0)
        self.bar = training_bar(sum(self.planned.values()), 0)

    def __enter__(self) -> "_Steps":
        return self

    def __exit__(self, *raised: object) -> None:
        self.bar.close()

    def tell(self, name: str, report: dict[str, Any]) -> None:
        """Show an event of a run, or a notice that it logged."""
        if "log" in report:
            log.warning("%s: %s", name, report["log"])
            return
        if report["kind"] == "plan":
            self.planned[name] = report["steps"]
            self.bar.total = sum(self.planned.values())
        self.bar.update(report["step"] - self.done[name])
        self.done[name] = report["step"]
        losses = {key: report[key] for key in ("val_loss", "val_loss_part") if key in report}
        if losses and report["step"]:
            told = ", ".join(f"{key.replace('_', ' ')} {loss:.4f}" for key, loss in losses.items())
            log.info("%s: step %d: %s", name, report["step"], told)


class _Worker:
    """A process that trains a run, and a thread that reads what it tells."""

    def __init__(self, job: Job, reports: "queue.SimpleQueue[Any]") -> None:
        self.job, self.interrupted = job, False
        self._error: str | None = "its process ended"
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `error`)
        self.process = Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._stderr,
            start_new_session=True,  # no Ctrl-C: the one that it works for gets it
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # same on Windows
        )
        self._send(_as_json(job))
        threading.Thread(target=self._read, args=(reports,), daemon=True).start()

    def stop(self) -> None:
        """Let it save its run and end."""
        self._send("stop")

    def error(self) -> str | None:
        """What went wrong, once it has ended; None if nothing did."""
        with self.process, self._stderr as stderr:
            code = self.process.wait()
            stderr.seek(0)
            last = (stderr.read().decode(errors="replace").strip().splitlines() or [""])[-1]
        if self._error is None or self.interrupted:
            return None
        if code < 0:
            return f"its process was ended by signal {-code}, perhaps for want of memory"
        return self._error if code == 0 else f"{self._error} ({last or f'exit code {code}'})"

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended, and that is told
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()

    def _read(self, reports: "queue.SimpleQueue[Any]") -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # half a line of one that was killed
                report = json.loads(line)
                if "ended" in report:
                    self._error, self.interrupted = report["ended"], report["interrupted"]
                else:
                    reports.put((self, report))
        reports.put((self, None))


def _told(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return str(error) if isinstance(error, GPTError) else f"{type(error).__name__}: {first:.300}"


def _as_json(job: Job) -> str:
    corpus = job.corpus
    assert isinstance(corpus.ids, np.memmap)
    named = {key: value for key, value in vars(corpus).items() if key not in ("ids", "vocabulary")}
    named |= {"ids": str(corpus.ids.filename), "vocabulary": corpus.vocabulary.to_json()}
    config = job.config.model_dump()
    return json.dumps(
        {"run": str(job.run), "config": config, "resumes": job.resumes, "corpus": named}
    )


def _from_json(line: str) -> Job:
    told = json.loads(line)
    ids = np.load(told["corpus"]["ids"], mmap_mode="r", allow_pickle=False)
    vocabulary = Vocabulary.from_json(told["corpus"]["vocabulary"])
    corpus = Corpus(**told["corpus"] | {"ids": ids, "vocabulary": vocabulary})
    config, run = Config.model_validate(told["config"]), Path(told["run"])
    return Job(run.name, run, config, corpus, told["resumes"])


def work() -> None:
    """The program of a process: a line of JSON for each event, the last one says how it ended."""
    lines = os.fdopen(os.dup(0), "rb", buffering=0)
    stop = threading.Event()
    reporting = threading.Lock()

    def report(content: dict[str, Any]) -> None:
        with reporting:
            print(json.dumps(content), flush=True)

    def watch() -> None:
        while lines.readline():
            stop.set()
        os._exit(1)  # who started it is gone

    class Notices(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            report({"log": record.getMessage()})

    logging.getLogger("gpt").addHandler(Notices(logging.WARNING))
    error: str | None = None
    interrupted = False
    try:
        job = _from_json(lines.readline().decode())
        threading.Thread(target=watch, daemon=True).start()
        job.train(should_stop=stop.is_set, on_event=report)
    except Interrupted:
        interrupted = True
    except Exception as failure:
        error = _told(failure)
    report({"ended": error, "interrupted": interrupted})
