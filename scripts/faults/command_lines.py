"""Random command lines: each must end with the exit code 0, 1, 2 or a signal's, and one message.

The commands and flags are taken from the program, and the values of a flag from its metavar, so
that new flags are tried, too.
"""

import contextlib
import gc
import json
import logging
import os
import random
import resource
import shlex
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import typer
from hypothesis import strategies as st

from faults.tally import Tally
from faults.work import PROCESSES, Work, ended, tiny
from gpt.cli.main import COMMANDS, app, main
from gpt.config.schema import SETTINGS
from gpt.config.yaml import to_yaml
from gpt.errors import GPTError
from gpt.lessons import LESSONS
from gpt.text.display import visible

EXIT_CODES = (0, 1, 2, 129, 130, 143)
CTRL_C_S = 2.0  # seconds until a command that still runs gets a Ctrl-C
HANGS_S = 60  # seconds until a command is said to hang
LINES_PER_PROCESS = 100  # a command line may kill its process
ROOM_BYTES = 6 << 30  # addresses that such a process may still allocate
UNEXPECTED = "(--debug shows where)"  # end of the message of an unexpected error

PATHS = (  # `_make_folder` makes some of them
    *("text.txt", "binary", "empty", "folder", "missing", "no/such/folder", "fifo", "link", "loop"),
    *("dangling", "unreadable", "unreadable-folder", "tiny.yaml", "list.yaml", "text.txt/below"),
    *("/dev/null", "/dev/full", "/dev/null/x", "/dev/zero", "/proc/kmsg", "/proc/self/mem"),
    *("out.png", "out.html", "link.png", "fifo.html", "dangling.html", "no/such/x.png", "folder/"),
    *("runs", "small", "runs/small", "runs/small/checkpoints/step-2", "runs/new", "text.txt/"),
    *("broken", "runs/broken", "unsaved", ".", "..", "", "-", "--", "~", "x" * 300, "x/" * 3000),
)
WORDS = ("best", "last", "step-2", "cpu", "cuda:7", "mps", "auto", "quickstart", *LESSONS)
PROMPTS = ("the quick brown fox", "t", "", "\n", "THE", "é", "the\x1b[31m", "the " * 5000)
NUMBERS = (
    *("0", "1", "2", "3", "-1", "0.5", "1.5", "-0", "1e-9", "1e9", "1e400", "-inf", "nan", ""),
    *(str(2**31), str(2**63), str(2**64), str(10**30), "9" * 5000, "0x10", "1_000", "٣", " 1 "),
)
YAML = (
    *("null", "true", "no", "[]", "{}", "[1, 2]", "{a: 1}", "'", "*x", "&x", "!!python/name:os"),
    *("auto", "fp16", "bf16", "adamw", "1 min", "0 min", "keep", "rotary", "[" * 5000, "x: y: z"),
)
NUMERIC = ("N", "K", "X")
RIGHT = {  # valid values by metavar
    **dict.fromkeys(("N", "K"), ("0", "1", "2", "17")),
    "X": ("0.5", "1", "0"),
    **dict.fromkeys(("RUN", "[RUN]"), ("small", "runs/small")),
    "TEXT": ("the quick", "text.txt"),
    "FILE": ("out.png", "out.html", "text.txt", "tiny.yaml"),
    "DIR": ("runs/new", "folder"),
    "DEVICE": ("cpu", "auto"),
    "LESSON": tuple(LESSONS),
    "SECTION.KEY=VALUE": (
        *("train.steps=3", "model.T=7", "sample.length=3", "train.precision=bf16"),
        "train.steps=2,3",
    ),
}
TYPED = (b"", b"the\n", b"/help\n/seed x\n/length 3\nthe\n/continue\n/quit\n", b"\xff\n", b"\0" * 9)


class HangsError(BaseException):
    """A command ignored Ctrl-C."""


@dataclass(frozen=True)
class CommandLine:
    """Arguments and standard input of `gpt`."""

    arguments: list[str]
    stdin: bytes

    def __str__(self) -> str:
        return f"gpt {shlex.join(self.arguments)} < {self.stdin!r}"


def _argument(content: bytes) -> str:
    """Decode an argument; remove paths that lead out of the folder."""
    return os.fsdecode(content.replace(b"\0", b"").replace(b"..", b"").lstrip(b"/"))


JUNK = st.binary(max_size=20).map(_argument) | st.text(max_size=20).map(
    lambda text: _argument(text.encode("utf-8", "ignore"))
)


def some_junk(count: int, seed: int) -> list[str]:
    """Draw `count` random arguments."""
    found: list[str] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(JUNK)
    def collect(value: str) -> None:
        found.append(value)

    collect()
    gc.callbacks.clear()  # a Ctrl-C in hypothesis' callback would end in a traceback
    return found


def command_line(draws: random.Random, junk: list[str]) -> CommandLine:
    """Draw a command with some of its flags in any order; none, some or all values are wrong."""
    name = draws.choice(COMMANDS)
    parameters = typer.main.get_command(app).get_command(None, name).params  # type: ignore[attr-defined]
    chosen = draws.sample(parameters, draws.randint(0, min(4, len(parameters))))
    chosen += [p for p in parameters if p.required and p not in chosen and draws.random() < 0.9]
    wrong, words = draws.choice((0.0, 0.3, 0.3, 1.0)), list[list[str]]()
    for parameter in chosen:
        flag, metavar = parameter.opts[0], parameter.metavar or parameter.name.upper()
        for _ in range(draws.choice((1, 1, 2)) if getattr(parameter, "multiple", False) else 1):
            value = draws.choice(RIGHT.get(metavar, metavar.split("|")))
            if draws.random() < wrong:
                value = _wrong_value(metavar, draws, junk)
            if getattr(parameter, "is_flag", False):
                words.append([flag])
            elif flag.startswith("-"):
                words.append(draws.choice([[flag, value], [f"{flag}={value}"]]))
            else:
                words.append([value])
    if draws.random() < 0.05:
        words.append([draws.choice(["--help", "--", "-", "--no-such-flag", draws.choice(junk)])])
    if name == "train" and not {p.opts[0] for p in chosen} & {"--config", "--resume"}:
        words.append(["--config", "tiny.yaml"])  # trains in moments
    draws.shuffle(words)
    stdin = draws.choice([*TYPED, draws.randbytes(draws.randrange(50))])
    return CommandLine([name, *(word for some in words for word in some)], stdin)


def _wrong_value(metavar: str, draws: random.Random, junk: list[str]) -> str:
    anything = draws.choice((PATHS, WORDS, PROMPTS, NUMBERS, junk))
    if "=" in metavar and draws.random() < 0.9:
        key = draws.choice([*SETTINGS])
        return f"{key}={draws.choice(draws.choice((NUMBERS, YAML, anything)))}"
    if metavar in NUMERIC and draws.random() < 0.5:
        return draws.choice(NUMBERS)
    return draws.choice(anything)


def fuzzed_command_lines(work: Work, count: int, seed: int) -> Tally:
    """Run `count` command lines in processes that each run up to 100."""
    tally = Tally("command lines")
    with tally.timed():
        _train_template(work)
        for first in range(0, count, LINES_PER_PROCESS):
            report, last = work.folder / "report.json", work.folder / "command"
            report.unlink(missing_ok=True)
            most = min(LINES_PER_PROCESS, count - first)
            arguments = (work.folder, most, seed + first, report, last)
            process = PROCESSES.Process(target=_run_some, args=arguments)
            process.start()
            code = ended(process, HANGS_S * most)
            tally.tries += most
            if code:
                tally.crashes.append(f"{last.read_text()}: the process ended with {code}")
            else:
                found = json.loads(report.read_text())
                tally.crashes += found["crashes"]
                tally.outcomes.update(found["outcomes"])
    return tally


def _train_template(work: Work) -> None:
    """Write the folder that is copied for each command."""
    template = work.folder / "template"
    (template / "runs").mkdir(parents=True)
    (template / "text.txt").write_text(Path(work.corpus.name).read_text())
    (template / "tiny.yaml").write_text(to_yaml(tiny(2, sample_length=3)))
    for run in ("broken", "unsaved", "small"):  # the last is the newest
        work.train(tiny(2, sample_length=3), template / "runs" / run)
        (template / "runs" / f"{run}.stderr").unlink()
    for path in (template / "runs/broken/checkpoints").glob("step-*/vocabulary.json"):
        path.write_text("[]")
    shutil.rmtree(template / "runs/unsaved/checkpoints")
    (template / "list.yaml").write_text("- 1\n")
    (template / "binary").write_bytes(bytes(range(256)))
    (template / "empty").touch()
    for name in ("folder", "unreadable-folder"):
        (template / name).mkdir()
        (template / name / "text.txt").touch()
    (template / "unreadable").touch()


def _make_folder(template: Path, folder: Path) -> None:
    """Make a new copy, and add links and pipes, which cannot be copied."""
    for path in folder.glob("unreadable*"):
        path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    for link, target in {"link": "text.txt", "loop": "loop", "dangling": "gone"}.items():
        (folder / link).symlink_to(target)
    (folder / "link.png").symlink_to("text.txt")
    (folder / "dangling.html").symlink_to("gone")
    for name in ("fifo", "fifo.html"):
        os.mkfifo(folder / name)
    for path in folder.glob("unreadable*"):
        path.chmod(0)


def _run_some(folder: Path, count: int, seed: int, report: Path, last: Path) -> None:
    """Run `count` command lines in this process, and write how they ended."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM_BYTES, hard))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    tally = Tally("")

    draws, junk = random.Random(seed), some_junk(count, seed)
    for _ in range(count):
        line = command_line(draws, junk)
        _make_folder(folder / "template", folder / "here")
        os.chdir(folder / "here")
        last.write_text(str(line), errors="backslashreplace")
        outcome, problem = run_command_line(line)
        tally.outcomes[outcome] += 1
        if problem:
            tally.crashes.append(f"{line}: {problem}")
    crashes = [crash.encode("utf-8", "backslashreplace").decode() for crash in tally.crashes]
    report.write_text(json.dumps({"outcomes": tally.outcomes, "crashes": crashes}))


def run_command_line(line: CommandLine) -> tuple[str, str]:
    """Run a command line in this process; return how it ended, and the problem, if any."""
    out = TextIOWrapper(BytesIO(), "utf-8")
    err = TextIOWrapper(BytesIO(), "utf-8", errors="backslashreplace")
    code: Any = None
    raised = ""
    with _with_streams(line, out, err), _interrupted_in_time():
        try:
            main()
        except SystemExit as done:
            code = done.code or 0
        except KeyboardInterrupt:
            code = 130
        except BaseException as error:
            expected = isinstance(error, (GPTError, OSError, MemoryError))
            expected |= hasattr(error, "format_message")  # an error of typer
            debugged = expected and "--debug" in line.arguments
            code = 1 if debugged else type(error).__name__
            raised = "" if debugged else "".join(traceback.format_exception(error))
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    outcome = f"{line.arguments[0]}: exit code {code}"
    return outcome, raised or _problem(line, code, *texts)


def _problem(line: CommandLine, code: Any, out: str, err: str) -> str:
    """Return what is wrong with how a command ended, or nothing."""
    messages = [text for text in err.splitlines() if text.startswith("gpt: ")]
    expected = (0, 1) if "--debug" in line.arguments else (int(code != 0),)
    if code not in EXIT_CODES:
        return f"exit code {code}: {err}"
    if "Traceback" in err or UNEXPECTED in err:
        return f"an unexpected error: {err}"
    if len(messages) not in expected and code < 128:
        return f"exit code {code}, {len(messages)} messages: {err}"
    if visible(err) != err:
        return f"control characters: {err!r}"
    if (
        code == 0
        and "--json" in line.arguments
        and not {"--help", "--help-all"} & {*line.arguments}
    ):
        try:
            json.loads(out)
        except ValueError:
            return f"expected one JSON object, got {out!r}"
    return ""


@contextlib.contextmanager
def _with_streams(line: CommandLine, out: TextIOWrapper, err: TextIOWrapper) -> Iterator[None]:
    """Set the arguments and streams of this process; warnings are errors, as in the tests."""
    log = logging.getLogger("gpt")
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr, log.handlers
    sys.argv = ["gpt", *line.arguments]
    sys.stdin, sys.stdout, sys.stderr = TextIOWrapper(BytesIO(line.stdin), "utf-8"), out, err
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ResourceWarning)  # Ctrl-C may leave a file open
            yield
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr, log.handlers = before


@contextlib.contextmanager
def _interrupted_in_time() -> Iterator[None]:
    """Send Ctrl-C after CTRL_C_S; raise HangsError if that does not end the command."""
    rings = 0

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal rings
        rings += 1
        if rings > HANGS_S / CTRL_C_S:
            raise HangsError
        if rings in (1, 10):
            os.kill(os.getpid(), signal.SIGINT)

    before = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, CTRL_C_S, CTRL_C_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
