"""The runs of a sweep, trained one after the other here, or several at once in processes."""

import json
import logging
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from subprocess import PIPE, Popen
from typing import IO, Any

from gpt.errors import Interrupted
from gpt.recipe.job import PROGRAM, Job, to_json, told
from gpt.training.monitor.progress import training_bar

log = logging.getLogger(__name__)

STOP_WITHIN_S = 0.1  # how often it is asked whether to stop

OnEvent = Callable[[dict[str, Any]], object]


def train_here(
    jobs: Sequence[Job], should_stop: Callable[[], bool], on_event: OnEvent
) -> dict[str, str]:
    """Train one after the other; by name, what went wrong with those that failed.

    Raises Interrupted if `should_stop` returned True; and what `on_event` raises.
    """
    errors = {}
    raised = list[Exception]()

    def tell(event: dict[str, Any]) -> None:
        try:
            on_event(event)
        except Exception as error:  # theirs, not the run's
            raised.append(error)
            raise

    for number, job in enumerate(jobs, start=1):
        if should_stop():
            raise Interrupted("stopped")
        log.info("run %d of %d: %s", number, len(jobs), job.name)
        named = {"run": job.name}
        try:
            job.train(should_stop=should_stop, on_event=lambda event, n=named: tell(event | n))
        except Interrupted:
            raise
        except Exception as error:
            if raised:
                raise
            errors[job.name] = told(error)
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
            listed = ", ".join(
                f"{key.replace('_', ' ')} {loss:.4f}" for key, loss in losses.items()
            )
            log.info("%s: step %d: %s", name, report["step"], listed)


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
        self._send(to_json(job))
        threading.Thread(target=self._read, args=(reports,), daemon=True).start()

    def stop(self) -> None:
        """Let it save its run and end."""
        self._send("stop")

    def error(self) -> str | None:
        """What went wrong, once it has ended; None if nothing did."""
        assert self.process.stdin is not None
        with suppress(OSError):  # of what it did not read
            self.process.stdin.close()
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
