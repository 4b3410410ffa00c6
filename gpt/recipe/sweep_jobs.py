"""Train the runs of a sweep: one after the other in this process, or several at once as commands.

A command is `gpt train`, so its run is an ordinary one, which `gpt train --resume RUN` continues.
"""

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt.config.schema import Config, settled
from gpt.config.yaml import as_flow
from gpt.errors import GPTError, Interrupted
from gpt.runs.format import has_checkpoint
from gpt.runs.recovery import summary_to_resume
from gpt.text.corpus import Corpus
from gpt.training.start import train

log = logging.getLogger(__name__)

JOB_POLL_S = 0.1  # seconds between two looks at the commands
STOP_S = 300  # seconds in which a stopped command must have saved its run; then it is killed

OnEvent = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class SweepJob:
    """A run to train from the start, or to resume."""

    name: str
    run: Path
    config: Config
    corpus: Corpus


class CallerError(Exception):
    """Wraps an error of the caller's `on_event`, which is not an error of a run."""


def train_in_turn(
    jobs: Sequence[SweepJob], should_stop: Callable[[], bool], on_event: OnEvent
) -> dict[str, str]:
    """Train runs one after the other in this process.

    Args:
        jobs: the runs.
        should_stop: see `gpt.api.train`.
        on_event: called with each event of `gpt.api.train`, and the name of its `run`.

    Returns:
        The messages of the runs that failed, by name.

    Raises:
        Interrupted: `should_stop` returned True. What was trained is saved.
    """
    errors = {}
    for number, job in enumerate(jobs, start=1):
        if should_stop():
            raise Interrupted("stopped")
        log.info("run %d of %d: %s", number, len(jobs), job.name)

        def report(event: dict[str, Any], name: str = job.name) -> None:
            try:
                on_event(event | {"run": name})
            except Exception as error:
                raise CallerError from error

        resume = has_checkpoint(job.run)
        try:
            train(
                summary_to_resume(job.run).config if resume else job.config,  # its own plans
                job.corpus,
                job.run,
                "resume" if resume else "overwrite",  # a kill may have left an empty folder
                should_stop=should_stop,
                on_event=report,
            )
        except Interrupted:
            raise
        except CallerError as error:
            raise error.__cause__ or error from None
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            is_ours = isinstance(error, GPTError)
            errors[job.name] = str(error) if is_ours else f"{type(error).__name__}: {first:.300}"
            log.warning("%s failed: %s", job.name, errors[job.name])
    return errors


def train_at_once(
    jobs: Sequence[SweepJob],
    at_once: int,
    should_stop: Callable[[], bool],
    on_event: OnEvent,
) -> dict[str, str]:
    """Train runs by `gpt train` commands, of which `at_once` work at the same time.

    Args:
        jobs: the runs.
        at_once: the largest number of commands at a time.
        should_stop: called several times a second.
        on_event: called with the name of the `run` and `kind`: "begun", "ended" or "failed".

    Returns:
        The messages of the runs that failed, by name.

    Raises:
        Interrupted: `should_stop` returned True. The commands have saved their runs.
    """
    waiting, errors = [*jobs], dict[str, str]()
    running = list[TrainCommand]()
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                if should_stop():
                    raise Interrupted("stopped")
                while waiting and len(running) < at_once:
                    job = waiting.pop(0)
                    running.append(TrainCommand(job, Path(folder)))
                    log.info("run %d of %d: %s", len(jobs) - len(waiting), len(jobs), job.name)
                    on_event({"kind": "begun", "run": job.name})
                time.sleep(JOB_POLL_S)
                for command in [each for each in running if each.process.poll() is not None]:
                    running.remove(command)
                    if error := command.error():
                        errors[command.name] = error
                        log.warning("%s failed: %s", command.name, error)
                    else:
                        count = len(jobs) - len(waiting) - len(running)
                        log.info("%s: finished (%d of %d)", command.name, count, len(jobs))
                    on_event({"kind": "failed" if error else "ended", "run": command.name})
        finally:
            _stop(running)
    return errors


class TrainCommand:
    """A `gpt train` process that trains or resumes one run."""

    def __init__(self, job: SweepJob, folder: Path) -> None:
        """Start the process; its config and messages are files in `folder`."""
        self.name = job.name
        self.messages, config = folder / f"{job.name}.log", folder / f"{job.name}.yaml"
        config.write_text(as_flow(settled(job.config)), "utf-8")
        new = ["--config", str(config), "--run-dir", str(job.run), "--overwrite"]
        what = ["--resume", str(job.run)] if has_checkpoint(job.run) else new
        text = job.corpus.standard_input or Path(os.devnull)
        with text.open("rb") as stdin, self.messages.open("wb") as stderr:
            self.process = subprocess.Popen(
                # -P: modules of the working folder are not imported
                [sys.executable, "-P", "-m", "gpt", "train", *what, "--json"],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                # a Ctrl-C is for the sweep, which stops this process
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )

    def error(self) -> str | None:
        """Return the message of a process that failed; None if it did not."""
        code = self.process.returncode
        if code == 0:
            return None
        if code < 0:
            return f"its process was ended by signal {-code}, perhaps for want of memory"
        lines = self.messages.read_text("utf-8", errors="replace").strip()
        _, found, message = f"\n{lines}".rpartition("\ngpt: ")
        return message if found else f"exit code {code}: {lines[-300:]}"


def _stop(commands: Sequence[TrainCommand]) -> None:
    """Stop `commands`, which save their runs; kill those that take longer than STOP_S."""
    try:
        for command in commands:
            command.process.terminate()
        deadline = time.monotonic() + STOP_S
        for command in commands:
            command.process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        log.warning("killed what did not stop within %d s: %s", STOP_S, error.cmd)
    finally:
        for command in commands:
            command.process.kill()
            command.process.wait()
