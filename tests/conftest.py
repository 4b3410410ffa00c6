"""What the tests share: small texts, small settings, the command line in this process."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from gpt.config.schema import Config
from gpt.config.yaml import to_yaml
from gpt.reading.sources import open_source
from gpt.runs.read import read_checkpoint
from gpt.text.corpus import Corpus, load_corpus
from tests import program

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
PANGRAM = "the quick brown fox jumps over the lazy dog; sphinx of black quartz, judge my vow.\n"

COMMAND = (sys.executable, program.__file__)  # the command `gpt`, as a program of its own
# runs the command behind it with the signals of a terminal, whatever nohup or a shell took away
IN_A_TERMINAL = (
    sys.executable,
    "-c",
    "import os, signal, sys\n"
    "for name in ('SIGHUP', 'SIGINT', 'SIGTERM'):\n"
    "    signal.signal(getattr(signal, name), signal.SIG_DFL)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])",
)
HANGS_S = 600  # seconds after which a process counts as hung, even on a busy machine

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as gpt/__main__.py does, before torch is loaded

hypothesis.settings.register_profile("shared machine", deadline=None, max_examples=30)
hypothesis.settings.load_profile("shared machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--auto-precision",
        choices=("bf16", "fp32"),
        help="what `precision: auto` means on the CPU; by default, what this CPU does best",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Signals mean what they do in a terminal, also where the tests run in the background.

    Except SIGHUP: `nohup pytest` is to outlive its terminal. SIGTERM ends the tests as Ctrl-C does,
    and with them what they started.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if precision := config.getoption("--auto-precision"):
        os.environ[program.AUTO_PRECISION] = precision
    program.set_auto_precision()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    torch.set_num_threads(1)  # the models here are too small to share among cores
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the programs that a test starts
    return tmp_path


@pytest.fixture(scope="session", autouse=True)
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., None]]:
    """Leave out what takes long; return what draws the attention of a run.

    No test waits for the disk: what is killed needs no sync. No status line appears where the
    machine is slow; tests of them set the delay to 0. Fixtures of a module share a cache.
    """
    from gpt.training.tensorboard import TensorBoard

    draw = TensorBoard.on_end
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("os.fsync", lambda descriptor: None)
        patch.setattr("gpt.terminal.DELAY_S", float(HANGS_S))
        patch.setattr(TensorBoard, "on_end", lambda *arguments: None)
        yield draw


@pytest.fixture(autouse=True)
def pictures(
    request: pytest.FixtureRequest, quick: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draw the attention of runs in tests that are marked so. It takes longer than the runs."""
    if "pictures" in request.keywords:
        drawing = "gpt.training.tensorboard.TensorBoard.on_end"
        monkeypatch.setattr(drawing, quick)


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """Sets how many threads torch computes with, for this test."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program as from a terminal; it ends, with all that it started, when the test does."""
    started = []

    def start(*command: object, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*IN_A_TERMINAL, *map(str, command)], text=True, start_new_session=True, **options
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process, suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "pangram.txt"
    path.write_text(PANGRAM * 29, encoding="utf-8")
    return path


@pytest.fixture
def corpus(text_file: Path) -> Corpus:
    return load_corpus(open_source(str(text_file)))


@pytest.fixture
def config_file(text_file: Path) -> Path:
    path = Path("small.yaml")
    path.write_text(to_yaml(small(data__source=str(text_file), sample__length=17)))
    return path


@pytest.fixture
def quick_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose configs by a few timed steps."""
    monkeypatch.setattr("gpt.recipe.choose.PROBE_S", 0.01)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size` bytes: writing more raises OSError."""
    import resource  # Unix only

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@contextmanager
def before_forward(hook: Callable[[Any, Any], object]) -> Iterator[None]:
    """Call `hook` with each model and its ids, before the model computes."""
    import torch

    from gpt.model.transformer import GPT

    def call(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, GPT):
            hook(module, inputs[0])

    handle = torch.nn.modules.module.register_module_forward_pre_hook(call)
    try:
        yield
    finally:
        handle.remove()


def stop_at(step: int) -> dict[str, Any]:
    """Return the options of a training that stop it after a step."""
    seen: list[int] = []
    return {
        "on_event": lambda event: seen.append(event["step"]),
        "should_stop": lambda: step in seen,
    }


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Poll until `condition()` is true. Fail after `HANGS_S`, or when `process` ends before."""
    deadline = time.monotonic() + HANGS_S
    while not condition():
        if process is not None:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.01)


def records(run: Path | str) -> int:
    """Count the complete lines of a run's metrics.jsonl; 0 if there is none."""
    metrics = Path(run) / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def small(**changes: Any) -> Config:
    """A config that trains in moments; changes are given as train__steps=3."""
    tree: dict[str, Any] = {
        "device": "cpu",
        "model": {"T": 13, "C": 24, "n_layer": 2, "n_head": 3, "head_size": 10, "value_size": 7},
        "train": {
            "steps": 11,
            "batch_size": 6,
            "warmup_steps": 2,
            "eval_every": 4,
            "checkpoint_every": 4,
            "sample_length": 5,
        },
    }
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    return Config.model_validate(tree)


@pytest.fixture
def gpt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run `gpt ARGUMENTS...` in this process: exit code, stdout, stderr."""
    from gpt.cli.main import main

    # main() gives the package's log a handler for notices: it is to leave with the test
    monkeypatch.setattr(logging.getLogger("gpt"), "handlers", [])
    # the minutes of a command count from the start of its process, here that of all tests
    monkeypatch.setattr("psutil.Process.create_time", lambda process: time.time())

    def run(*arguments: object, program: object = "gpt") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [str(program), *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        out, err = capsys.readouterr()
        return int(exit_info.value.code or 0), out, err

    return run


def load(run: Path | str, which: str = "last") -> Any:
    """The model of a run's checkpoint, on the CPU."""
    import torch

    from gpt.runs.weights import load_model

    return load_model(read_checkpoint(Path(run), which), torch.device("cpu"))


def trained(folder: Path, text: str = PANGRAM * 29, **changes: Any) -> Path:
    """Train a small model on `text` in `folder`, and return the folder of its run."""
    from gpt import api

    folder.mkdir(exist_ok=True)
    path = folder / "text.txt"
    path.write_text(text, "utf-8")
    return Path(api.train(small(**changes), text=str(path), run_dir=folder / "run").run)


def saved_weights(run: Path | str, which: str = "last") -> dict[str, bytes]:
    """Return the weights of a checkpoint, to be compared bit for bit."""
    weights = read_checkpoint(Path(run), which).weights
    return {name: array.tobytes() for name, array in weights.items()}


def drawn(*shape: int, seed: int = 0, std: float = 1.0) -> Any:
    """Return a tensor of random normal numbers."""
    import torch

    return std * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rehash(folder: Path) -> None:
    """Let a checkpoint's manifest fit its files, as a stranger can."""
    from gpt.runs.format import FILES, MANIFEST
    from gpt.runs.write import manifest_of

    content = manifest_of({name: (folder / name).read_bytes() for name in FILES})
    (folder / MANIFEST).write_bytes(content)


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """The records of a run without what differs from clock to clock."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k not in ("elapsed_s", "chars_per_s")}
        for line in lines
    ]
