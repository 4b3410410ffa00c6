"""Ranks that hold shards of the model train what ranks with whole models train."""

import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gpt import api
from gpt.config.yaml import to_yaml
from gpt.runs.format import Index
from tests import program
from tests.conftest import PANGRAM, small
from tests.test_distributed import ROOT, curve, run_ranks, weights

Ranks = Callable[..., subprocess.CompletedProcess[str]]
STEPS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Neither 9 windows nor 81 rows of queries, keys and values divide by two ranks.

    Those of a rank, 4 and 5, do not divide into as many micro-batches by `torch.chunk`.
    """
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "pangram.txt").write_text(PANGRAM * 29)
    fine_tuned = {"train__init_from": str(folder / "muon-fsdp"), "train__freeze": 1}
    for optimizer, more in (("muon", {}), ("adamw", fine_tuned)):
        config = small(
            threads=1,
            train__batch_size=9,
            train__accumulation=3,
            train__optimizer=optimizer,
            train__precision="fp32",
            train__steps=STEPS,
            train__eval_every=8,
            train__checkpoint_every=8,
            train__keep_checkpoints=9,
            **more,
        )
        (folder / f"{optimizer}.yaml").write_text(to_yaml(config))
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Ranks:
    """Run `gpt train ARGUMENTS...` on two ranks."""
    return partial(run_ranks, 2, folder, program.__file__, "train")


@pytest.fixture(scope="module")
def trained(folder: Path, ranks: Ranks) -> Callable[[str, str], Path]:
    """The run of an optimizer on two ranks, with the model or a shard of it; or on one process."""

    def run(optimizer: str, parallel: str) -> Path:
        run = folder / f"{optimizer}-{parallel}"
        if not run.exists() and parallel == "alone":
            text, config = str(folder / "pangram.txt"), str(folder / f"{optimizer}.yaml")
            api.train(config, text=text, run_dir=str(run))
        elif not run.exists():
            config = ("--config", f"{optimizer}.yaml", "--set", f"train.parallel={parallel}")
            done = ranks("pangram.txt", *config, "--run-dir", run.name)
            assert done.returncode == 0, done.stderr
        return run

    return run


def assert_close(run: Path, expected: Path, steps: int = STEPS) -> None:
    for key in ("train_loss", "grad_norm", "val_loss"):
        assert curve(run, key) == pytest.approx(curve(expected, key), abs=1e-5), key
    assert max(curve(run, "train_loss")) == steps
    for name, array in weights(expected).items():
        np.testing.assert_allclose(weights(run)[name], array, atol=1e-5)


@pytest.mark.parametrize(("optimizer", "of"), [("muon", "ddp"), ("adamw", "alone")])
def test_shards_train_what_whole_models_train(
    optimizer: str, of: str, trained: Callable[[str, str], Path]
) -> None:
    """AdamW fine-tunes what Muon trained, with a frozen block.

    The evaluation of step 0, before any backward pass, once left tensors that none could take.
    """
    trained("muon", "fsdp")
    assert_close(trained(optimizer, "fsdp"), trained(optimizer, of))
    assert len("".join(api.load(str(trained(optimizer, "fsdp"))).generate("the ", length=7))) == 7


def copied(run: Path, to: Path, last: int) -> Path:
    """The run as it was when it had saved that step."""
    shutil.copytree(run, to)
    folder = to / "checkpoints"
    for step in range(last + 1, STEPS + 1):
        shutil.rmtree(folder / f"step-{step}", ignore_errors=True)
    (folder / "index.json").write_text(Index(last=last, best=None).model_dump_json())
    return to


def test_shards_are_resumed_by_shards_bit_for_bit_by_whole_models_and_by_one_process(
    folder: Path,
    ranks: Ranks,
    trained: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = trained("muon", "fsdp")
    by_shards = copied(expected, folder / "resumed-fsdp", 16)
    by_whole_models = copied(expected, folder / "resumed-ddp", 16)
    with ThreadPoolExecutor() as pool:
        for done in pool.map(
            lambda run, way: ranks("--resume", run.name, "--set", f"train.parallel={way}"),
            (by_shards, by_whole_models),
            ("fsdp", "ddp"),
        ):
            assert done.returncode == 0, done.stderr
    assert_close(by_whole_models, expected)
    assert curve(by_shards, "train_loss") == curve(expected, "train_loss")
    for name, array in weights(expected).items():
        np.testing.assert_array_equal(weights(by_shards)[name], array)
    run = copied(expected, folder / "resumed-alone", 16)
    monkeypatch.chdir(folder)  # where the text is
    api.resume(str(run))
    assert_close(run, expected)


PROGRAM = """
import torch
from gpt import distributed
from gpt.errors import ConfigError
from gpt.model.transformer import GPT
from gpt.sharding import check_sharding
from gpt.training.optimizer import make_optimizers
from tests.conftest import small

torch.set_num_threads(1)

def trained():
    draws = torch.Generator().manual_seed(7)
    model = GPT(small().model, 17, draws)
    muon, _ = make_optimizers(model, small().train)
    for _ in range(3):
        for p in muon.parameters[:-1]:
            p.grad = torch.randn(p.shape, generator=draws)
        muon.step(1.0)
    return [*model.state_dict().values(), *muon.state["momentum"], *muon.state["square"]]

with distributed.joined():
    together, alone = trained(), distributed.from_main(trained)
    assert all(a.equal(b) for a, b in zip(together, alone, strict=True))
    for setting in ("compile", "auto_batch", "histograms", "accumulation"):
        value = {"compile": "on", "accumulation": 6}.get(setting, True)
        config = small(train__parallel="fsdp", **{f"train__{setting}": value})
        distributed.from_main(check_sharding, config.train)
        try:
            check_sharding(config.train)
        except ConfigError as error:
            assert str(error).startswith(f"train.{setting}: expected"), error
        else:
            raise AssertionError(setting)
    print(f"rank {distributed.rank()}\\n", end="")
"""


def test_muon_shared_among_ranks_is_that_of_one_process_bit_for_bit(folder: Path) -> None:
    """On each of three ranks; one matrix has no gradient. And ranks refuse what shards cannot."""
    (folder / "program.py").write_text(PROGRAM)
    done = run_ranks(3, folder, "program.py", PYTHONPATH=ROOT)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1", "rank 2"]
