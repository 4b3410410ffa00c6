"""Ranks that hold shards of the model train what ranks with whole models train."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt import api
from gpt.config.yaml import to_yaml
from tests import program
from tests.conftest import HANGS_S, PANGRAM, small
from tests.test_distributed import TORCHRUN, curve, told, weights

Ranks = Callable[..., subprocess.CompletedProcess[str]]
STEPS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """7 windows and 81 rows of queries, keys and values do not divide by two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "pangram.txt").write_text(PANGRAM * 29)
    for optimizer in ("muon", "adamw"):
        config = small(
            threads=1,
            train__batch_size=7,
            train__optimizer=optimizer,
            train__precision="fp32",
            train__steps=STEPS,
            train__eval_every=8,
            train__checkpoint_every=8,
            train__keep_checkpoints=9,
        )
        (folder / f"{optimizer}.yaml").write_text(to_yaml(config))
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Ranks:
    """Run `gpt train ARGUMENTS...` on two ranks."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*TORCHRUN, "--nproc-per-node=2", program.__file__, "train", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANGS_S,
        )

    return run


@pytest.fixture(scope="module")
def trained(folder: Path, ranks: Ranks) -> Callable[[str, str], Path]:
    """The run of an optimizer on two ranks, each with the whole model or a shard of it."""

    def run(optimizer: str, parallel: str) -> Path:
        run = folder / f"{optimizer}-{parallel}"
        if not run.exists():
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


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_shards_train_what_whole_models_train(
    optimizer: str, trained: Callable[[str, str], Path]
) -> None:
    assert_close(trained(optimizer, "fsdp"), trained(optimizer, "ddp"))
    with np.errstate(all="raise"):
        assert len(api.load(trained(optimizer, "fsdp")).generate("the ", length=7).text) == 7


def copied(run: Path, to: Path, last: int) -> Path:
    """The run as it was when it had saved that step."""
    import shutil

    from gpt.runs.checkpoint import Index

    shutil.copytree(run, to)
    folder = to / "checkpoints"
    for step in range(last + 1, STEPS + 1):
        shutil.rmtree(folder / f"step-{step}", ignore_errors=True)
    (folder / "index.json").write_text(Index(last=last, best=None).model_dump_json())
    return to


def test_shards_are_resumed_by_shards_bit_for_bit_by_whole_models_and_by_one_process(
    folder: Path, ranks: Ranks, trained: Callable[[str, str], Path]
) -> None:
    expected = trained("muon", "fsdp")
    for parallel in ("fsdp", "ddp"):
        run = copied(expected, folder / f"resumed-{parallel}", 8)
        done = ranks("--resume", run.name, "--set", f"train.parallel={parallel}")
        assert done.returncode == 0, done.stderr
        assert_close(run, expected)
        if parallel == "fsdp":
            assert curve(run, "train_loss") == curve(expected, "train_loss")
            for name, array in weights(expected).items():
                np.testing.assert_array_equal(weights(run)[name], array)
    run = copied(expected, folder / "resumed-alone", 16)
    api.resume(str(run))
    assert_close(run, expected)


def test_shards_refuse_what_they_cannot_do(ranks: Ranks) -> None:
    options = ("pangram.txt", "--config", "muon.yaml", "--set", "train.parallel=fsdp")
    refused: list[Any] = [("train.auto_batch=true", "train.auto_batch: expected false")]
    for setting, message in refused:
        done = ranks(*options, "--set", setting)
        assert done.returncode != 0
        assert len(told(done.stderr)) == 1
        assert message in told(done.stderr)[0]
