"""A run of a sweep, and the program of a process that trains one.

It gets its job, and a line when it is to stop, on stdin, and tells what happens on stdout. When
the process that started it is gone, it ends at once, as if it had been killed with that.
"""

import json
import logging
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpt.config.schema import Config, settled
from gpt.errors import GPTError, Interrupted
from gpt.runs.format import has_checkpoint
from gpt.runs.lock import is_running, locked
from gpt.runs.recovery import recover, summary_to_resume
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Vocabulary
from gpt.training.trainer import train

PROGRAM = (
    f"import sys; sys.path[:] = {[*map(str, sys.path)]!r}; from gpt.recipe import job; job.work()"
)
ORPHANED_S = 10  # that a process may outlive the sweep that started it, if that was killed


@dataclass(frozen=True)
class Job:
    """A run to train from the start, or to resume."""

    name: str
    run: Path
    config: Config
    corpus: Corpus

    def train(self, **options: Any) -> None:
        """Train it, or what is left of it, by the plans that it made.

        For the options, and what it raises, see `gpt.training.trainer.train`.
        """
        gives_up = time.monotonic() + ORPHANED_S
        while is_running(self.run) and time.monotonic() < gives_up:
            time.sleep(0.05)
        if has_checkpoint(self.run):
            data = summary_to_resume(self.run)
            if data.finished:  # a kill came before the index named its last checkpoint
                with locked(self.run):
                    data, _ = recover(self.run)
            if not data.finished:
                train(data.config, self.corpus, self.run, resume=True, **options)
        else:  # a kill may have left a folder
            train(self.config, self.corpus, self.run, overwrite=True, **options)


def told(error: Exception) -> str:
    """What went wrong, in a line."""
    first = (str(error).splitlines() or [""])[0]
    return str(error) if isinstance(error, GPTError) else f"{type(error).__name__}: {first:.300}"


def to_json(job: Job) -> str:
    """In a line; the ids of its text are named by their file."""
    corpus = job.corpus
    assert isinstance(corpus.ids, np.memmap)
    named = {key: value for key, value in vars(corpus).items() if key not in ("ids", "vocabulary")}
    named |= {"ids": str(corpus.ids.filename), "vocabulary": corpus.vocabulary.to_json()}
    named["standard_input"] = corpus.standard_input and str(corpus.standard_input)
    config = settled(job.config)
    return json.dumps({"run": str(job.run), "config": config, "corpus": named})


def from_json(line: str) -> Job:
    """The job of such a line."""
    content = json.loads(line)
    ids = np.load(content["corpus"]["ids"], mmap_mode="r", allow_pickle=False)
    vocabulary = Vocabulary.from_json(content["corpus"]["vocabulary"])
    stdin = content["corpus"]["standard_input"]
    read = {"ids": ids, "vocabulary": vocabulary, "standard_input": stdin and Path(stdin)}
    corpus = Corpus(**content["corpus"] | read)
    config, run = Config.model_validate(content["config"]), Path(content["run"])
    return Job(run.name, run, config, corpus)


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
        job = from_json(lines.readline().decode())
        threading.Thread(target=watch, daemon=True).start()
        job.train(should_stop=stop.is_set, on_event=report)
    except Interrupted:
        interrupted = True
    except Exception as failure:
        error = told(failure)
    report({"ended": error, "interrupted": interrupted})
