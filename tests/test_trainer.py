"""The loop of a run as its caller sees it: events, stops, scores."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import gpt
from gpt.errors import Interrupted, UsageError
from gpt.evaluation.loss import evaluate, evaluate_each
from gpt.model.transformer import GPT
from gpt.reading.sources import open_source
from gpt.text.corpus import load_corpus
from gpt.training.rollback import Diverged
from gpt.training.start import train_run
from gpt.training.stopwatch import Stopwatch
from tests.conftest import before_forward, metrics_of, saved_weights, small, stop_at
from tests.test_training import RISING

pytestmark = pytest.mark.precision


def test_after_an_early_stop_the_newest_weights_are_sampled(corpus):
    """`best` was step 0, untrained, until the first evaluation."""
    with pytest.raises(Interrupted, match="stopped at step 10, saved"):
        train_run(small(train__eval_every=11), corpus, Path("r"), **stop_at(10))
    assert gpt.load("r").step == 10


def test_step_0_is_never_the_best_of_a_run(corpus):
    """The loss of guessing is below that of a run that diverges, but it is no model's."""
    bad = small(**RISING | {"train__learning_rate": 9.0, "train__eval_every": 4})
    outcome = train_run(bad, corpus, Path("r"))
    assert outcome.best_val_loss > math.log(len(corpus.vocabulary))
    assert gpt.load("r").step == outcome.best_step > 0


PART = {"train__eval_characters": 53}


def test_a_part_decides_on_the_way_and_the_whole_is_scored_at_the_end(corpus):
    outcome = train_run(small(**RISING | PART), corpus, Path("r"))
    records = metrics_of(Path("r"))
    parts = {r["step"]: r["val_loss_part"] for r in records[1:] if "val_loss_part" in r}
    assert [r["step"] for r in records if "val_loss" in r] == [11]
    last, best = (gpt.load("r", which).module for which in ("last", "best"))
    assert parts[11] == evaluate_each(last, corpus.val, characters=53)[0]
    assert outcome.val_loss == records[-1]["val_loss"] == evaluate(last, corpus.val)
    assert outcome.best_step == min(parts, key=parts.__getitem__) < 11
    assert outcome.best_val_loss == evaluate(best, corpus.val)
    shown = gpt.load("r").checkpoint
    assert shown.val_loss == outcome.best_val_loss, "bug: gpt runs and an export lacked it"
    assert shown.bits_per_byte == pytest.approx(outcome.bits_per_byte)
    train_run(small(**RISING), corpus, Path("whole"))
    assert saved_weights("r") == saved_weights("whole")


def test_the_last_step_is_the_best_if_only_the_part_says_otherwise():
    """Bug: `gpt sample` used step 226, of val loss 0.551, and not the last step, of 0.548."""
    Path("a.txt").write_text(2003 * "ab" + 29 * "aabb" + 197 * "ab", "utf-8")
    settings = {"train__eval_characters": 13, "data__val_fraction": 510 / 4516}
    corpus = load_corpus(open_source("a.txt"), small(**settings).data)
    outcome = train_run(small(**settings), corpus, Path("r"))
    records = [r for r in metrics_of(Path("r"))[1:] if "val_loss_part" in r]
    parts = {r["step"]: r["val_loss_part"] for r in records}
    assert min(parts, key=parts.__getitem__) == 4  # later, the model expects no aa and bb
    assert outcome.best_step == 11
    assert outcome.best_val_loss == outcome.val_loss
    assert gpt.load("r", "best").checkpoint.step == 11


def test_patience_and_target_go_by_the_part(corpus):
    train_run(small(**RISING | PART), corpus, Path("all"))
    parts = [r["val_loss_part"] for r in metrics_of(Path("all")) if "val_loss_part" in r]
    patient = train_run(small(**RISING | PART, train__patience=2), corpus, Path("patient"))
    assert patient.step == patient.best_step + 2
    assert patient.best_step == min(range(1, patient.step + 1), key=parts.__getitem__)
    with pytest.raises(UsageError, match=r"finished: .*train\.patience=null"):  # bug: it trained
        gpt.resume("patient", text="pangram.txt", minutes=9)
    target = train_run(
        small(**RISING | PART, train__stop_at_val_loss=parts[2]), corpus, Path("target")
    )
    assert parts[target.step] <= parts[2]
    assert target.val_loss != parts[target.step]
    reached = f"{parts[target.step]:.4f} on a part of val has reached"
    assert reached in target.reason, "bug: it was called the val loss"


def test_a_fall_in_the_second_half_of_a_run_is_a_reason_for_more_time(corpus):
    """Bug: only the last tenth counted, in which the learning rate is nearly 0."""
    config = small(train__steps=80, train__eval_every=8, train__learning_rate=1e-3)
    outcome = train_run(config, corpus, Path("r"))
    losses = [r["val_loss"] for r in metrics_of(Path("r")) if "val_loss" in r]
    assert losses[-1] > 0.99 * losses[-2]
    assert "the val loss was still falling" in outcome.advice


def test_a_rollback_loads_into_the_model_that_is_there(corpus):
    """It made a second model and optimizer while it held the first: twice the memory."""
    trained: list[torch.nn.Module] = []

    def spoil(model: GPT, ids: torch.Tensor) -> None:
        if model.training:
            trained.append(model)
            if len(trained) == 5:
                with torch.no_grad():
                    model.head.weight.fill_(math.nan)

    notices: list[str] = []
    with before_forward(spoil):
        on_event = lambda event: notices.append(event.get("text", ""))  # noqa: E731
        train_run(small(), corpus, Path("r"), on_event=on_event)
    assert any("rolled back" in notice for notice in notices)
    assert len(set(trained)) == 1


def test_a_rollback_at_the_last_save_trains_to_the_end(corpus):
    """It had a reason to stop by then, and ended at the step it rolled back to."""
    updated: list[torch.nn.Module] = []
    spoilt: list[int] = []

    def spoil(event: dict[str, Any]) -> None:
        if event["kind"] == "evaluation" and event["step"] == 11 and not spoilt:
            spoilt.append(11)
            with torch.no_grad():
                next(updated[-1].parameters()).fill_(math.nan)

    with before_forward(lambda model, ids: updated.append(model)):
        outcome = train_run(small(train__sample_length=0), corpus, Path("r"), on_event=spoil)
    assert outcome.step == gpt.load("r", "last").step == 11
    last = metrics_of(Path("r"))[-1]
    assert (last["step"], last["val_loss"]) == (11, outcome.val_loss)


def test_the_pace_counts_a_step_that_ends_in_a_rollback():
    """Bug: after a rollback, the characters of unread steps counted, but not their time."""
    now = iter([0.0, 0.0, 5.0, 5.0, 15.0])
    stopwatch, unread = Stopwatch(lambda: next(now)), ["a result"]
    with stopwatch.step(7, unread):
        pass
    with pytest.raises(Diverged), stopwatch.step(7, unread):
        unread.clear()
        raise Diverged
    with stopwatch.step(7, unread):
        pass
    assert stopwatch.pace(characters=60) == 3 * 60 / (5 + 10)


def test_elapsed_s_counts_on_over_resumes(corpus):
    """Bugs: each process began anew at 0; a clock that stands still ended in a division by 0."""
    first = train_run(small(train__stop_at_val_loss=99.0), corpus, Path("r"))
    resumed = train_run(small(), corpus, Path("r"), mode="resume")
    elapsed = [
        json.loads(line)["elapsed_s"] for line in Path("r/metrics.jsonl").read_text().splitlines()
    ]
    assert elapsed == sorted(elapsed)
    assert resumed.elapsed_s >= first.elapsed_s
    again = train_run(small(train__steps=12), corpus, Path("r"), mode="resume", clock=lambda: 0)
    assert again.elapsed_s >= resumed.elapsed_s
