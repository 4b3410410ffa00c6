"""Random command lines: each must end with the exit code 0, 1, 2 or a signal's, and one message.

The commands and flags are taken from the program, and the values of a flag from its metavar, so
that new flags are tried, too.
"""

import json
import os
import random
import resource
import shutil
import sys
import warnings
from pathlib import Path

import typer

from faults.commands import Command, Ended
from faults.tally import Tally
from faults.work import Work, tiny
from gpt.cli.main import COMMANDS, app
from gpt.config.schema import SETTINGS
from gpt.config.yaml import to_yaml
from gpt.lessons import LESSONS
from gpt.terminal import visible

EXIT_CODES = (0, 1, 2, 129, 130, 143)
CTRL_C_S = (2.0, 20.0)  # seconds after which a command that still runs gets a Ctrl-C
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


def _junk(draws: random.Random) -> str:
    """Draw bytes or characters; leave out what would lead out of the folder."""
    length, codes = draws.randrange(20), range(draws.choice((0x80, 0x300, sys.maxunicode)))
    content = draws.randbytes(length)
    if draws.random() < 0.5:
        content = "".join(map(chr, draws.choices(codes, k=length))).encode("utf-8", "ignore")
    return os.fsdecode(content.replace(b"\0", b"").replace(b"..", b"").lstrip(b"/"))


def command_line(draws: random.Random, work: Work) -> Command:
    """Draw a command with some of its flags in any order; none, some or all values are wrong."""
    name = draws.choice(COMMANDS)
    found = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined]
    parameters = [p for p in found.params if p.opts[0] != "--debug"]
    chosen = draws.sample(parameters, draws.randint(0, min(4, len(parameters))))
    chosen += [p for p in parameters if p.required and p not in chosen and draws.random() < 0.9]
    wrong, words = draws.choice((0.0, 0.3, 0.3, 1.0)), list[list[str]]()
    for parameter in chosen:
        flag, metavar = parameter.opts[0], parameter.metavar or parameter.name.upper()
        for _ in range(draws.choice((1, 1, 2)) if getattr(parameter, "multiple", False) else 1):
            value = draws.choice(RIGHT.get(metavar, metavar.split("|")))
            if draws.random() < wrong:
                value = _wrong_value(metavar, draws)
            if getattr(parameter, "is_flag", False):
                words.append([flag])
            elif flag.startswith("-"):
                words.append(draws.choice([[flag, value], [f"{flag}={value}"]]))
            else:
                words.append([value])
    if draws.random() < 0.05:
        words.append([draws.choice(["--help", "--", "-", "--no-such-flag", _junk(draws)])])
    if name == "train" and not {p.opts[0] for p in chosen} & {"--config", "--resume"}:
        words.append(["--config", "tiny.yaml"])  # trains in moments
    draws.shuffle(words)
    stdin = draws.choice([*TYPED, draws.randbytes(draws.randrange(50))])
    arguments = [name, *(word for some in words for word in some)]
    return Command(arguments, work.folder, work.folder / "here", stdin, _limit)


def _wrong_value(metavar: str, draws: random.Random) -> str:
    anything = draws.choice((PATHS, WORDS, PROMPTS, NUMBERS, (_junk(draws),)))
    if "=" in metavar and draws.random() < 0.9:
        key = draws.choice([*SETTINGS])
        return f"{key}={draws.choice(draws.choice((NUMBERS, YAML, anything)))}"
    if metavar in NUMERIC and draws.random() < 0.5:
        return draws.choice(NUMBERS)
    return draws.choice(anything)


def fuzzed_command_lines(work: Work, count: int, seed: int) -> Tally:
    """Run `count` command lines, each in a new copy of a folder."""
    tally, draws = Tally("command lines"), random.Random(seed)
    _train_template(work)
    for _ in range(count):
        command = command_line(draws, work)
        _make_folder(work.folder / "template", command.here)
        ended = command.run(CTRL_C_S)
        tally.tries += 1
        tally.outcomes[f"{command.arguments[0]}: exit code {ended.code}"] += 1
        if problem := _problem(command, ended):
            tally.crashes.append(f"{command}: {problem}")
    return tally


def _limit() -> None:
    """Limit the memory of this process; make warnings errors, as in the tests."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM_BYTES, hard))
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", ResourceWarning)  # Ctrl-C may leave a file open


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


def _problem(command: Command, ended: Ended) -> str:
    """Return what is wrong with how a command ended, or nothing."""
    code, err = ended.code, ended.err
    if code not in EXIT_CODES:
        return f"exit code {code}: {err}"
    if "Traceback" in err or UNEXPECTED in err:
        return f"an unexpected error: {err}"
    if len(ended.messages) != int(code != 0) and code < 128:
        return f"exit code {code}, {len(ended.messages)} messages: {err}"
    if visible(err) != err:
        return f"control characters: {err!r}"
    asks_for_help = {"--help", "--help-all"} & {*command.arguments}
    if code == 0 and "--json" in command.arguments and not asks_for_help:
        try:
            json.loads(ended.out)
        except ValueError:
            return f"expected one JSON object, got {ended.out!r}"
    return ""
