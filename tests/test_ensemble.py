"""Several models as one: members that are the runs without an ensemble, and the mean of them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import gpt as package
from gpt.config.schema import Config
from gpt.errors import Interrupted
from gpt.evaluation.loss import evaluate
from gpt.training.start import train_run
from tests.conftest import load, metrics_of, saved_weights, small

pytestmark = pytest.mark.precision

K, CPU = 3, torch.device("cpu")


def ensemble(**changes: Any) -> Config:
    return small(**{"model__ensemble": K, "model__character_dropout": 0.1} | changes)


@pytest.mark.parametrize(
    ("threads", "threads_each", "changes"),
    [
        (1, 1, {}),  # in turn
        (2, 1, {"train__accumulation": 2, "train__optimizer": "adamw"}),
        (7, 2, {}),  # side by side, two threads each, and one to spare
        (2, 2, {"model__dropout": 0.1}),  # whose masks are drawn one after the other
    ],
)
def test_each_member_is_the_run_without_an_ensemble_that_has_its_seed(
    corpus, threads, threads_each, changes
):
    config = ensemble(threads=threads, **changes)
    train_run(config, corpus, Path("ensemble"))
    of_all = metrics_of(Path("ensemble"))
    singles, seeds = [], json.loads(Path("ensemble/provenance.jsonl").read_text())["member_seeds"]
    assert seeds[0] == 1337
    of_members = saved_weights("ensemble")
    for m, seed in enumerate(seeds):
        single = ensemble(**changes, model__ensemble=1, threads=threads_each, seed=seed)
        train_run(single, corpus, Path(f"single-{m}"))
        for name, weight in saved_weights(f"single-{m}").items():
            assert of_members[f"members.{m}.{name}"] == weight
        singles.append(metrics_of(Path(f"single-{m}")))
    for record, *each in zip(of_all, *singles, strict=True):
        if "train_loss" in record:
            assert record["train_loss"] == sum(one["train_loss"] for one in each) / K
            assert record["grad_norm"] == sum(one["grad_norm"] for one in each) / K
        if record["step"] and "val_loss" in record:
            losses = [record[f"val_loss_member_{m}"] for m in range(1, K + 1)]
            assert losses == [one["val_loss"] for one in each]
            assert record["val_loss"] < sum(losses) / K, "Jensen's inequality"


def test_the_val_loss_is_that_of_the_mean_probability_of_each_character(corpus):
    config = ensemble()
    train_run(config, corpus, Path("r"))
    model, total = load("r"), 0.0
    val = torch.from_numpy(corpus.val.astype("int64"))
    for start in range(0, len(val) - 1, config.model.T):  # character by character
        window = val[start : start + config.model.T]
        for t in range(min(len(window), len(val) - 1 - start)):
            with torch.no_grad():
                each = [m(window[None, : t + 1])[0, -1].double().softmax(0) for m in model.members]
            total -= math.log(sum(p[val[start + t + 1]].item() for p in each) / K)
    record = metrics_of(Path("r"))[-1]
    assert record["val_loss"] == pytest.approx(total / (len(val) - 1), rel=1e-5)
    assert package.load("r").checkpoint.val_loss == record["val_loss"]
    assert evaluate(model, corpus.val) == record["val_loss"]


def test_a_stop_ends_an_ensemble_after_the_current_step(corpus):
    """Bug: it trained on until results were read, up to ten steps later."""
    saved: list[int] = []
    config = ensemble(train__steps=31, train__eval_every=31, train__checkpoint_every=31)
    with pytest.raises(Interrupted, match="stopped at step 1, saved"):
        train_run(
            config,
            corpus,
            Path("r"),
            should_stop=lambda: bool(saved),
            on_event=lambda event: saved.append(1) if event["kind"] == "checkpoint" else None,
        )
