"""Several models as one: members that are the runs without an ensemble, and the mean of them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import gpt as package
from gpt.config.schema import Config
from gpt.distributed.ranks import SINGLE
from gpt.errors import ConfigError, Interrupted
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import Ensemble, make_model
from gpt.model.transformer import count_parameters
from gpt.runs.read import read_checkpoint
from gpt.seeds import member_seed
from gpt.text.corpus import Corpus
from gpt.text.vocabulary import Vocabulary
from gpt.training.build_step import build_step
from gpt.training.start import train
from gpt.training.step import TrainStep
from tests.conftest import load, metrics_of, small

pytestmark = pytest.mark.precision

K, CPU = 3, torch.device("cpu")
ALPHABET = Vocabulary.of("abcdefghijk")


def ensemble(**changes: Any) -> Config:
    return small(**{"model__ensemble": K, "model__character_dropout": 0.1} | changes)


def shaken() -> Ensemble:
    """With weights unlike any that a new model has, so that the members predict unlike things."""
    model = make_model(ensemble().model, len(ALPHABET), seed=3)
    draws = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=draws)
    assert isinstance(model, Ensemble)
    return model.eval()


def weights_of(run: str, member: int | None = None) -> dict[str, bytes]:
    """Of a run, or of one member of an ensemble's run, by the names that a single model has."""
    prefix = "" if member is None else f"members.{member}."
    return {
        name.removeprefix(prefix): array.tobytes()
        for name, array in read_checkpoint(Path(run), "last").weights.items()
        if name.startswith(prefix)
    }


# --- training ---


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
    corpus: Corpus, threads: int, threads_each: int, changes: dict[str, Any]
) -> None:
    config = ensemble(threads=threads, **changes)
    train(config, corpus, Path("ensemble"))
    of_all = metrics_of(Path("ensemble"))
    singles, seeds = [], json.loads(Path("ensemble/provenance.jsonl").read_text())["member_seeds"]
    assert seeds[0] == 1337
    for m, seed in enumerate(seeds):
        single = ensemble(**changes, model__ensemble=1, threads=threads_each, seed=seed)
        train(single, corpus, Path(f"single-{m}"))
        assert weights_of("ensemble", m) == weights_of(f"single-{m}")
        singles.append(metrics_of(Path(f"single-{m}")))
    for record, *each in zip(of_all, *singles, strict=True):
        if "train_loss" in record:
            assert record["train_loss"] == sum(one["train_loss"] for one in each) / K
            assert record["grad_norm"] == sum(one["grad_norm"] for one in each) / K
        if record["step"] and "val_loss" in record:
            losses = [record[f"val_loss_member_{m}"] for m in range(1, K + 1)]
            assert losses == [one["val_loss"] for one in each]
            assert record["val_loss"] < sum(losses) / K, "Jensen's inequality"


def test_members_seeds_are_seeds_of_runs_and_differ() -> None:
    seeds = [member_seed(seed, m) for seed in (1, 2) for m in range(64)]
    assert len(set(seeds)) == 128
    assert seeds[0] == 1
    assert all(small(seed=seed).seed == seed for seed in seeds)


def test_an_ensemble_of_one_is_no_ensemble(corpus: Corpus) -> None:
    train(small(model__ensemble=1), corpus, Path("one"))
    train(small(), corpus, Path("none"))
    assert weights_of("one") == weights_of("none")
    assert metrics_of(Path("one")) == metrics_of(Path("none"))


def test_a_stopped_ensemble_resumes_bit_for_bit(corpus: Corpus) -> None:
    train(ensemble(), corpus, Path("uninterrupted"))
    for stop in (3, 8):
        steps: list[int] = []
        with pytest.raises(Interrupted, match=f"stopped at step {stop}, saved"):
            train(
                ensemble(),
                corpus,
                Path("r"),
                mode="resume" if stop > 3 else "new",
                on_event=lambda event, steps=steps: steps.append(event["step"]),
                should_stop=lambda steps=steps, stop=stop: stop in steps,
            )
    train(ensemble(), corpus, Path("r"), mode="resume")
    assert weights_of("r") == weights_of("uninterrupted")
    assert metrics_of(Path("r")) == metrics_of(Path("uninterrupted"))


def test_a_resume_cannot_change_how_many_members_there_are(corpus: Corpus) -> None:
    train(ensemble(), corpus, Path("r"))
    with pytest.raises(ConfigError, match=r"model.ensemble \(3 to 4\)"):
        train(ensemble(model__ensemble=4, train__steps=13), corpus, Path("r"), mode="resume")


def nan_at(steps: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of the second member are NaN at these steps."""
    original, second = TrainStep.forward_and_backward, member_seed(1337, 1)

    def gradients(self: TrainStep, step: int) -> torch.Tensor:
        loss = original(self, step)
        if self.config.seed == second and steps(step):
            next(self.model.parameters()).grad = torch.full_like(
                next(self.model.parameters()), math.nan
            )
        return loss

    monkeypatch.setattr(TrainStep, "forward_and_backward", gradients)


def test_a_member_whose_step_is_nan_skips_it_and_the_others_do_not(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(ensemble(), corpus, Path("untroubled"))
    nan_at(lambda step: step == 5, monkeypatch)
    train(ensemble(), corpus, Path("r"))
    events = [(r["step"], r["event"]) for r in metrics_of(Path("r")) if "event" in r]
    assert [step for step, _ in events] == [6]
    assert "step 6 skipped by member 2 of 3: the loss is 3." in events[0][1]
    same = [weights_of("r", m) == weights_of("untroubled", m) for m in range(K)]
    assert same == [True, False, True]
    assert all(parameter.isfinite().all() for parameter in load("r").parameters())


def test_after_three_nan_steps_of_a_member_all_roll_back(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled_back: list[str] = []
    nan_at(lambda step: step in (5, 6, 7) and not rolled_back, monkeypatch)
    train(
        ensemble(),
        corpus,
        Path("r"),
        on_event=lambda event: rolled_back.extend(
            event["text"] for _ in range("rolled back" in event.get("text", ""))
        ),
    )
    assert len(rolled_back) == 1
    assert "rolled back from step 8" in rolled_back[0]
    records = [r for r in metrics_of(Path("r")) if "train_loss" in r]
    assert [r["step"] for r in records] == list(range(1, 12))


def test_an_error_in_a_member_is_raised_where_its_results_are_read(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(ensemble().model, len(corpus.vocabulary), seed=1337)
    assert isinstance(model, Ensemble)
    step = build_step(ensemble(), model, CPU, SINGLE, corpus.train)
    monkeypatch.setattr(step.members[1].backward, "loss", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step.read([step(0)])


# --- one model ---


@torch.no_grad()
def test_the_logits_are_the_logarithms_of_the_mean_probabilities() -> None:
    model, ids = shaken(), torch.arange(13)[None] % len(ALPHABET)
    probabilities = torch.stack([member(ids).softmax(-1) for member in model.members]).mean(0)
    torch.testing.assert_close(model(ids).exp(), probabilities)
    torch.testing.assert_close(model(ids).softmax(-1), probabilities)


def test_the_val_loss_is_that_of_the_mean_probability_of_each_character(corpus: Corpus) -> None:
    config = ensemble()
    train(config, corpus, Path("r"))
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


def test_its_parameters_are_named_and_counted_by_member() -> None:
    model = shaken()
    single = small(model__character_dropout=0.1).model
    one = make_model(single, len(ALPHABET))
    names = [f"members.{m}.{name}" for m in range(K) for name in one.state_dict()]
    assert list(model.state_dict()) == names
    assert count_parameters(model) == {k: K * n for k, n in count_parameters(one).items()}


def test_tensorboard_shows_the_members_beside_the_ensemble(corpus: Corpus) -> None:
    train(ensemble(), corpus, Path("r"))
    events = EventAccumulator("r").Reload()
    for tag, key in [("loss/val", "val_loss"), ("loss_of_members/val_3", "val_loss_member_3")]:
        expected = [r[key] for r in metrics_of(Path("r")) if key in r and r["step"]]
        assert [point.value for point in events.Scalars(tag)] == pytest.approx(expected)


def test_the_members_losses_that_are_told_are_those_of_the_same_text(
    corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    """At the last step, the losses on the whole val split and on a part were mixed."""
    caplog.set_level("INFO", "gpt")
    train(ensemble(train__eval_characters=29), corpus, Path("r"))
    last = metrics_of(Path("r"))[-1]
    losses = [last[f"val_loss_member_{m}"] for m in range(1, K + 1)]
    told = f"step 11: val {last['val_loss']:.4f}, members {min(losses):.4f} to {max(losses):.4f}, "
    assert f"{told}train {last['train_loss']:.4f}" in caplog.text
    assert last["val_loss_part_member_1"] not in losses


def test_an_ensemble_is_trained_shown_and_sampled_by_the_commands(
    gpt: Callable[..., tuple[int, str, str]], text_file: Path
) -> None:
    Path("c.yaml").write_text(
        "device: cpu\nmodel: {T: 13, C: 24, n_layer: 2, n_head: 2, ensemble: 3}\n"
        "train: {steps: 5, batch_size: 3, sample_length: 5}\nsample: {length: 7}\n"
    )
    code, out, err = gpt("train", text_file, "--config", "c.yaml", "--run-dir", "r")
    assert (code, "best val loss" in out) == (0, True)
    assert "members 3." in err
    assert gpt("sample", "r", "--length", "11", "--num-samples", "2")[0] == 0
    code, out, _ = gpt("attend", "r", "--text", "the quick", "--head", "2")
    assert (code, "r, step 5, member 1 of 3: layer" in out.replace("\n", " ")) == (0, True)
    code, _, err = gpt("attend", "r", "--text", "the quick", "--head", "3")
    assert (code, "--head: expected 1 to 2, got 3" in err) == (2, True)
    assert "r (member 1 of 3)" in gpt("explain", "follow", "--run", "r")[1]
    code, out, _ = gpt("train", text_file, "--config", "c.yaml", "--dry-run", "--json")
    assert (code, '"ensemble": 3' in out) == (0, True)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"ensemble": 0}, "greater than 0"),
        ({"ensemble": 65}, "less than or equal to 64"),
        ({"ensemble": 64, "n_layer": 16}, "model.ensemble x model.n_layer .* at most 1,000"),
    ],
)
def test_an_ensemble_has_bounds(model: dict[str, int], message: str) -> None:
    """The parameters of a checkpoint are listed before any is read, however many it claims."""
    with pytest.raises(ValueError, match=message):
        small(model=model)
