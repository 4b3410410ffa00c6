"""A student trained on a teacher's probabilities, beside the characters of the text."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import gpt as package
from gpt.config.schema import Config
from gpt.distributed.ranks import SINGLE
from gpt.errors import ConfigError, Interrupted, UsageError
from gpt.model.ensemble import make_model, members_of
from gpt.model.transformer import GPT
from gpt.runs.read import read_checkpoint
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.sources import open_source
from gpt.text.vocabulary import MASKED
from gpt.training.build_step import build_step
from gpt.training.start import train
from gpt.training.teacher import Teacher
from tests.conftest import load, metrics_of, small
from tests.test_model import shaken

pytestmark = pytest.mark.precision

CPU = torch.device("cpu")


@pytest.fixture
def teacher(corpus: Corpus) -> Path:
    train(small(model__ensemble=2, model__T=17), corpus, Path("teacher"))
    return Path("teacher")


def student(**changes: object) -> Config:
    return small(train__distill="teacher", **changes)


def weights_of(run: str) -> dict[str, bytes]:
    return {name: w.tobytes() for name, w in read_checkpoint(Path(run), "last").weights.items()}


@torch.no_grad()
def test_the_loss_is_the_cross_entropy_with_the_mixed_targets(corpus: Corpus) -> None:
    """Character by character, by each member of the teacher, to whom no token is dropped out."""
    V = len(corpus.vocabulary)
    config = small(train__precision="fp32", train__batch_size=3)
    of_teacher, model = make_model(small(model__ensemble=2).model, V), GPT(config.model, V)
    step = build_step(
        config,
        shaken(model, 5),
        CPU,
        SINGLE,
        corpus.train,
        teacher=Teacher(shaken(of_teacher, 5), ""),
    )
    text = torch.from_numpy(corpus.train[: 3 * 14].astype("int64")).view(3, 14)
    x, y = text[:, :-1].clone(), text[:, 1:]
    x[:, 3::4] = MASKED
    total = 0.0
    for b, t in np.ndindex(3, 13):
        each = [m(text[None, b, : t + 1])[0, -1].softmax(0) for m in members_of(of_teacher)]
        target = 0.7 * (each[0] + each[1]) / 2
        target[y[b, t]] += 0.3
        total -= (target * model(x[None, b])[0, t].log_softmax(0)).sum().item()
    assert step.backward.loss(x, y).item() == pytest.approx(total / (3 * 13), rel=1e-5)


def test_a_student_comes_nearer_to_its_teacher_than_a_run_of_its_own(
    corpus: Corpus, teacher: Path
) -> None:
    longer = {"train__steps": 60, "train__eval_every": 60}
    train(student(**longer), corpus, Path("student"))
    train(small(**longer), corpus, Path("alone"))
    ids = torch.from_numpy(corpus.val[:130].astype("int64")).view(10, 13)
    with torch.no_grad():
        expected = load("teacher", "best")(ids).softmax(-1)
        far = {
            run: -(expected * load(run)(ids).log_softmax(-1)).sum(-1).mean().item()
            for run in ("student", "alone")
        }
    entropy = -(expected * expected.log()).sum(-1).mean().item()
    assert entropy < far["student"] < far["alone"]
    assert far["student"] - entropy < 0.2
    assert metrics_of(Path("student"))[-1]["val_loss"] == pytest.approx(
        package.load("student", "last").loss(corpus.vocabulary.decode(corpus.val.tolist())),
        rel=1e-6,
    ), "the val loss is that of the characters"


def test_a_distilled_run_resumes_bit_for_bit(corpus: Corpus, teacher: Path) -> None:
    train(student(), corpus, Path("uninterrupted"))
    steps: list[int] = []
    with pytest.raises(Interrupted, match="stopped at step 5, saved"):
        train(
            student(),
            corpus,
            Path("r"),
            on_event=lambda event: steps.append(event["step"]),
            should_stop=lambda: 5 in steps,
        )
    teacher.rename("moved")
    with pytest.raises(UsageError, match=r"^teacher: expected the folder of a run"):
        train(student(), corpus, Path("r"), mode="resume")
    train(small(train__distill="moved"), corpus, Path("r"), mode="resume")
    assert weights_of("r") == weights_of("uninterrupted")
    assert metrics_of(Path("r")) == metrics_of(Path("uninterrupted"))


def test_another_teacher_than_the_one_it_began_with_is_refused(
    corpus: Corpus, teacher: Path
) -> None:
    train(student(), corpus, Path("r"))
    before = weights_of("r")
    train(small(model__ensemble=2, model__T=17, seed=7), corpus, teacher, mode="overwrite")
    longer = student(train__steps=13)
    for config in (longer, small(train__steps=13)):
        with pytest.raises(UsageError, match="is not the teacher that r began with"):
            train(config, corpus, Path("r"), mode="resume")
    assert weights_of("r") == before
    train(small(), corpus, Path("alone"))
    with pytest.raises(UsageError, match="teacher is not the teacher that alone began with"):
        train(longer, corpus, Path("alone"), mode="resume")


@pytest.mark.parametrize("key", ["train.distill", "train.init_from"])
def test_what_a_run_learns_from_is_not_overwritten_by_it(
    corpus: Corpus, teacher: Path, text_file: Path, key: str
) -> None:
    """The teacher was deleted, and the run could not be resumed without it."""
    before = weights_of("teacher")
    settings = [f"{key}=../{Path.cwd().name}/teacher", "train.steps=5"]
    with pytest.raises(UsageError, match=f"another folder than that of {key} .*--overwrite"):
        package.train(text=text_file, settings=settings, run_dir="teacher", overwrite=True)
    package.sweep(small(train__steps=2), text=text_file, seeds=2, run_dir="s")
    settings = [f"{key}=s/seed-1337"]
    with pytest.raises(UsageError, match=f"another folder than that of {key} .*--overwrite"):
        package.sweep(text=text_file, settings=settings, seeds=2, run_dir="s", overwrite=True)
    assert weights_of("teacher") == before
    assert weights_of("s/seed-1337")


def test_a_teacher_of_more_characters_than_the_text_has_teaches_with_its_vocabulary(
    corpus: Corpus, teacher: Path
) -> None:
    """A run that was fine-tuned on this text was refused as if it had not seen it, and no more."""
    Path("part.txt").write_text("the quick brown fox\n" * 99)
    settings = {"train.distill": "teacher", "model.T": 13, "train.steps": 2}
    with pytest.raises(ConfigError, match=r"set data.vocabulary=teacher"):
        package.train(text="part.txt", settings=settings)
    run = package.train(text="part.txt", settings=settings | {"data.vocabulary": "teacher"}).run
    assert package.load(run).vocabulary == corpus.vocabulary


@pytest.mark.parametrize("key", ["train.distill", "train.init_from"])
def test_a_val_split_that_the_other_run_trained_on_is_told(
    text_file: Path, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    """Of a long text less becomes val in a short time: the next run's val loss was too low."""
    few = {"train.steps": 2, "model.T": 13, "model.C": 24, "model.n_layer": 1, "device": "cpu"}
    few |= {"train.sample_length": 0}

    def told(**data: object) -> str:
        caplog.clear()
        changes = {f"data.{name}": value for name, value in data.items()}
        package.train(text=text_file, settings=few | {key: "first"} | changes)
        return "".join(r.getMessage() for r in caplog.records if "val losses" in r.getMessage())

    settings = few | {"data.val_fraction": 0.2}
    package.train(text=text_file, settings=settings, run_dir="first")
    expected = (
        f"{key}: that run may have been trained on text of this run's val split, so val losses may "
        f"be too low; to split the text like that run: --set data.val_fraction=0.2"
    )
    assert told(val_fraction=0.3) == expected
    assert told(val_fraction=0.2) == told(val_fraction=0.1) == ""
    shutil.copy(text_file, "other.txt")
    assert told(val_source="other.txt") == ""


def test_a_teacher_that_cannot_teach_is_refused_in_one_message(
    corpus: Corpus, teacher: Path, tmp_path: Path, gpt: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "other.txt").write_text("another alphabet, that is: 0123456789\n" * 99)
    other = load_corpus(open_source(str(tmp_path / "other.txt")))
    with pytest.raises(ConfigError, match=r"expected a run with the vocabulary of this text"):
        train(student(), other, Path("r"))
    with pytest.raises(ConfigError, match=r"a model.T of at least 19, got 17"):
        train(student(model__T=19), corpus, Path("r"))
    shutil.rmtree("teacher/checkpoints")
    with pytest.raises(UsageError, match=r"^teacher has no checkpoint"):
        train(student(), corpus, Path("r"))
    assert not Path("r").exists()
    code, _, err = gpt("train", "pangram.txt", "--set", "train.distill=nowhere", "--dry-run")
    assert code == 2
    assert "nowhere: expected the folder of a run" in err
