"""Several ranks train the run that one process trains; torchrun starts them, as a user would."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faults.work import PROCESSES, ended
from torch.distributed import TCPStore

from gpt import api
from gpt.cli.main import main
from gpt.config.yaml import to_yaml
from gpt.distributed import SINGLE, Ranks, joined
from gpt.errors import ConfigError, Interrupted, TrainingError, UsageError
from gpt.model.transformer import GPT
from gpt.runs.format import Tensors
from gpt.runs.read import read_checkpoint
from gpt.text.batches import batch, token_dropout
from gpt.training import workers as training_workers
from gpt.training.data_parallel import check_equal
from gpt.training.members import build_step
from tests import program
from tests.conftest import HANGS_S, PANGRAM, records, saved_weights, small, wait_until

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")


CONFIG = small(  # 7 windows are as uneven for 2 ranks as for 3
    threads=1,
    train__batch_size=7,
    train__accumulation=1,
    train__precision="fp32",
    train__steps=50,
    train__eval_every=10,
    train__checkpoint_every=5,
)
STOPPED_AT = 30  # by one process, what two ranks began and three end


def run_ranks(count: int, work: Callable[..., object], *arguments: object) -> list[int]:
    """Call `work` in `count` processes with the variables of torchrun; return their exit codes.

    The processes have imported torch when they start.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # as torchrun's own
    launched = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    processes = []
    for rank in range(count):
        own = launched | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        processes.append(PROCESSES.Process(target=as_rank, args=(own, work, arguments)))
    for process in processes:
        process.start()
    return [ended(process) for process in processes]


def as_rank(variables: dict[str, str], work: Callable[..., object], arguments: Any) -> None:
    os.environ.update(variables)
    work(*arguments)


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(to_yaml(CONFIG))
    return path


@pytest.fixture
def ranks(
    start: Callable[..., subprocess.Popen[str]], config_file: Path, text_file: Path
) -> Callable[..., subprocess.Popen[str]]:
    """Start `gpt train` on so many ranks, in a run folder that is new unless it is resumed."""

    def run(
        count: int, run: str, *options: str, torchrun: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        new = () if "--resume" in options else (text_file, "--config", config_file, "--run-dir")
        return start(
            *(*TORCHRUN, f"--nproc-per-node={count}", *torchrun, program.__file__),
            *("train", *options, *new, run),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return run


def told(stderr: str) -> list[str]:
    """Our own messages: torchrun repeats them in its summary, behind `traceback`."""
    return [line for line in stderr.splitlines() if line.startswith("gpt: ")]


def wait(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=HANGS_S)
    return process.returncode, out, err


def curve(run: Path | str, key: str) -> dict[int, float]:
    lines = map(json.loads, (Path(run) / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line[key] for line in lines if key in line}


def wait_for_step(run: Path | str, step: int, process: subprocess.Popen[str]) -> None:
    def reached() -> bool:
        return records(run) > 0 and max(curve(run, "train_loss"), default=0) >= step

    wait_until(reached, process)


def workers(process: subprocess.Popen[str]) -> dict[int, int]:
    """The process id of each rank."""
    import psutil

    children = psutil.Process(process.pid).children()
    return {int(child.environ()["RANK"]): child.pid for child in children}


def test_ranks_train_what_one_process_trains_and_resume_it_on_any_number(
    ranks, config_file, text_file
):
    """Two ranks are stopped by Ctrl-C, one process continues, three end it: the same curve.

    torchrun sends a terminal's Ctrl-C to workers that have it already: the second one once ended
    them before they had saved.
    """
    stopped = ranks(2, "resumed")
    wait_for_step("resumed", 3, stopped)
    os.killpg(stopped.pid, signal.SIGINT)
    api.train(str(config_file), text=str(text_file), run_dir="one")
    _, _, err = wait(stopped)
    assert len(told(err)) == 1
    assert re.match(r"gpt: stopped at step \d+, saved; resume with: ", told(err)[0])
    steps: list[int] = []
    with pytest.raises(Interrupted):
        api.resume(
            "resumed",
            on_event=lambda event: steps.append(event["step"]),
            should_stop=lambda: bool(steps) and steps[-1] >= STOPPED_AT,
        )
    assert run_ranks(3, api.resume, "resumed") == [0, 0, 0]
    for key, count in (("train_loss", 5), ("val_loss", 6), ("grad_norm", 5)):
        assert len(curve("one", key)) == count
        assert curve("resumed", key) == pytest.approx(curve("one", key), abs=1e-5), key
    one, resumed = (read_checkpoint(Path(run), "last").weights for run in ("one", "resumed"))
    for name, array in one.items():
        np.testing.assert_allclose(resumed[name], array, atol=1e-4)


def train_as(config: Path, text: Path, run: str) -> None:
    api.train(str(config), text=str(text), run_dir=run)


def test_a_killed_worker_is_started_again_and_ends_with_the_same_weights(
    ranks, config_file, text_file
):
    """In the run's own folder, of which the command does not say the name: not in a new RUN-2.

    Two workers are killed, one before the first checkpoint could be written.
    """
    assert run_ranks(2, train_as, config_file, text_file, "two") == [0, 0]
    killed = ranks(2, "killed", torchrun=("--max-restarts=2",))
    for rank, step in ((0, 0), (1, 17)):
        if step == 0:
            wait_until(Path("killed/config.yaml").exists, killed)
        wait_for_step("killed", step, killed)
        os.kill(workers(killed)[rank], signal.SIGKILL)
    code, out, err = wait(killed)
    assert code == 0, err
    assert (out.count("all steps done: step 50"), err.count("step 50: val")) == (1, 1)
    assert "Warning" not in err, "of a function that torch is to remove"
    assert curve("killed", "val_loss") == curve("two", "val_loss")
    assert saved_weights("killed") == saved_weights("two")


def run_out_of_memory(command: list[str], stderr: Path, is_training: bool) -> None:
    """Run `gpt`. On rank 1, the third forward pass that trains or evaluates gets no memory."""
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    passes = itertools.count()

    def allocate(module: torch.nn.Module, _: object) -> None:
        counted = isinstance(module, GPT) and module.training == is_training
        if counted and os.environ["RANK"] == "1" and next(passes) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    torch.nn.modules.module.register_module_forward_pre_hook(allocate)
    sys.argv = command
    main()


@pytest.mark.parametrize(
    ("is_training", "message"),
    [
        (True, "not enough memory on cpu for 4 windows of 13 characters (CUDA out of memory."),
        (False, "not enough memory (CUDA out of memory."),
    ],
)
def test_a_rank_without_memory_ends_all_ranks_with_one_message(
    config_file, text_file, *, is_training, message
):
    """Without torchrun, which would kill rank 0: it does not wait for the gradients of rank 1."""
    command = ["gpt", "train", str(text_file), "--config", str(config_file), "--run-dir", "run"]
    stderr = Path("stderr").absolute()
    assert run_ranks(2, run_out_of_memory, command, stderr, is_training) == [1, 1]
    (told_once,) = told(stderr.read_text())
    assert told_once.startswith(f"gpt: {message}")


@pytest.mark.parametrize(
    "work",
    [
        lambda: api.estimate(CONFIG, text="pangram.txt"),
        lambda: api.sweep(CONFIG, text="pangram.txt", seeds=2),
    ],
)
def test_what_one_process_does_is_refused_on_ranks(work, monkeypatch, elsewhere):
    """Each rank once timed a dry run as if alone, all at a time, on the same cores."""
    (elsewhere / "pangram.txt").write_text(PANGRAM * 29)
    launched = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="start it without torchrun"):
        work()


def divide_work() -> None:
    with joined() as ranks:
        rank = ranks.rank
        assert ranks.broadcast(lambda: rank) == 0
        assert ranks.any(rank == 1)
        assert not ranks.any(False)

        config = small(train__batch_size=7, model__character_dropout=0.3, threads=1)
        ids = np.random.default_rng(1).integers(0, 17, 1000).astype(np.uint8)
        step = build_step(config, GPT(config.model, 17), torch.device("cpu"), ranks, ids)
        of_ranks: list[Any] = [None] * ranks.size
        torch.distributed.all_gather_object(of_ranks, step.draw(5)[:2])
        x, y = batch(ids, 7, 13, seed=config.seed, step=5)
        x = token_dropout(x, 0.3, seed=config.seed, step=5)
        assert sorted(len(x) for x, _ in of_ranks) == [3, 4]
        assert torch.cat([x for x, _ in of_ranks]).equal(x)
        assert torch.cat([y for _, y in of_ranks]).equal(y)

        with pytest.raises(ConfigError, match="for each of the 2 ranks"):
            ranks.check_batch(1)
        check_equal(step.model, 5, ranks)
        if rank == 1:
            step.model.norm.weight.data[3] += 1e-7
        with pytest.raises(TrainingError, match="step 6: the weights of rank 1 differ"):
            check_equal(step.model, 6, ranks)


def test_ranks_divide_each_batch_and_notice_when_their_weights_differ():
    assert run_ranks(2, divide_work) == [0, 0]


def write_gradients(folder: Path) -> None:
    training_workers.CHUNK_NUMBERS = CHUNK_NUMBERS
    with joined() as ranks:
        np.savez(folder / f"rank-{ranks.rank}.npz", **gradients_of_two_batches(ranks))


CHUNK_NUMBERS = 500  # 1.6 windows of CONFIG


def gradients_of_two_batches(ranks: Ranks = SINGLE) -> Tensors:
    """Return the gradients of the first step for 8 and for 12 windows, by name.

    Each of 2 or 3 ranks takes its share in several chunks. Their count is the one asked for only
    for 8 windows on 3 ranks: 4 windows in 3 chunks are 2 chunks of 2.
    """
    ids = np.random.default_rng(1).integers(0, 17, 1000).astype(np.uint8)
    found = {}
    for batch_size in (8, 12):
        train = CONFIG.train.model_copy(update={"batch_size": batch_size, "grad_clip": 0.0})
        config = CONFIG.model_copy(update={"train": train})
        model = GPT(config.model, 17, torch.Generator().manual_seed(1))
        step = build_step(config, model, torch.device("cpu"), ranks, ids)
        share, T = step.draw(0)[0].shape
        assert training_workers.windows_at_once(share, T, config.model.C, workers=1) < share
        step(0)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            found[f"{batch_size} windows: {name}"] = parameter.grad.numpy()
    return found


def test_ranks_that_take_several_chunks_have_the_gradients_of_one_process(elsewhere, monkeypatch):
    """Bug: with fewer chunks than asked for, the ranks' gradients were not added up."""
    monkeypatch.setattr(training_workers, "CHUNK_NUMBERS", CHUNK_NUMBERS)
    expected = gradients_of_two_batches()
    for count in (2, 3):
        assert run_ranks(count, write_gradients, elsewhere) == [0] * count
        for rank in range(count):
            with np.load(f"rank-{rank}.npz") as found:
                assert found.files == [*expected]
                for name, array in expected.items():
                    np.testing.assert_allclose(found[name], array, atol=1e-6, err_msg=name)
