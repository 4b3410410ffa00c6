"""Train a run by a `gpt train` command, so that several runs can train at once.

Like any other run, such a run can be resumed by `gpt train --resume RUN` after a kill.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from gpt.config.schema import Config
from gpt.config.yaml import as_flow
from gpt.errors import Interrupted, TrainingError

POLL_COMMAND_S = 0.1  # seconds between two calls of `should_stop`
STOP_COMMAND_S = 300  # seconds to wait for a stopped command to save its run
SWEEP_PROCESS = "GPT_SWEEP_PROCESS"  # environment variable of a command: its sweep's process id


def train_by_command(
    config: Config,
    run: Path,
    *,
    resume: bool,
    standard_input: Path | None,
    should_stop: Callable[[], bool],
) -> None:
    """Train or resume a run by a `gpt train` command, and wait for it.

    If this process is killed, the command saves the run and ends.

    Args:
        config: the settings of a new run.
        run: the folder of the run.
        resume: continue the run in that folder instead of starting a new one.
        standard_input: a file with the text, if the text came from standard input.
        should_stop: called several times a second; returns whether to stop.

    Raises:
        Interrupted: `should_stop` returned True. The command has saved the run.
        TrainingError: the command failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        config_file, messages = Path(folder, "config.yaml"), Path(folder, "messages")
        config_file.write_text(as_flow(config.model_dump(exclude_unset=True)), "utf-8")
        new = ["--config", str(config_file), "--run-dir", str(run), "--overwrite"]
        with (standard_input or Path(os.devnull)).open("rb") as stdin, messages.open("wb") as err:
            process = subprocess.Popen(
                # -P: modules of the working folder are not imported
                [sys.executable, "-P", "-m", "gpt", "train", "--json"]
                + (["--resume", str(run)] if resume else new),
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(sys.path), SWEEP_PROCESS: str(os.getpid())},
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=err,
                # a Ctrl-C is for the sweep, which stops this process
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        try:
            while process.poll() is None:
                if should_stop():
                    process.terminate()
                    process.wait(STOP_COMMAND_S)
                    raise Interrupted("stopped")
                time.sleep(POLL_COMMAND_S)
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            raise TrainingError(_message(process.returncode, messages))


def sweep_has_ended() -> bool:
    """Return whether this process was started by a sweep whose own process has ended."""
    sweep = os.environ.get(SWEEP_PROCESS)
    if sweep is None:
        return False
    try:  # a killed process is a zombie until its own parent waits for it
        return psutil.Process(int(sweep)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _message(code: int, messages: Path) -> str:
    if code < 0:
        return f"its process was ended by signal {-code}, perhaps because memory was full"
    lines = messages.read_text("utf-8", errors="replace").strip()
    _, found, message = f"\n{lines}".rpartition("\ngpt: ")
    return message if found else f"exit code {code}: {lines[-300:]}"
