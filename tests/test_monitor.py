"""What people watch: TensorBoard's events as TensorBoard itself reads them, and the bar."""

import io
import json
import math
import os
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image
from tensorboard.plugins.projector import projector_config_pb2

from gpt.config.schema import fields
from gpt.config.yaml import to_yaml
from gpt.evaluation.attention import attend
from gpt.inspection.tile import tile
from gpt.text.batches import to_torch
from gpt.text.corpus import load_corpus
from gpt.text.display import visible
from gpt.text.sources import open_text
from gpt.training.trainer import train
from tests.conftest import load, metrics_of, small

pytestmark = pytest.mark.precision

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TensorBoard's own


def events_of(run: Path):  # type: ignore[no-untyped-def]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run), size_guidance={"histograms": 0})  # 0: all
    events.Reload()
    return events


def test_tensorboard_reads_the_curves_the_samples_and_the_settings(text_file: Path) -> None:
    config = small(train__log_every=3, data__source=str(text_file))
    outcome = train(config, load_corpus(open_text(str(text_file))), Path("r"))
    events = events_of(Path("r"))
    records = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    for tag, name in [
        ("loss/train", "train_loss"),
        ("loss/val", "val_loss"),
        ("learning_rate", "lr"),
        ("gradient_norm", "grad_norm"),
        ("characters_per_second", "chars_per_s"),
    ]:
        shown = [(e.step, e.value) for e in events.Scalars(tag)]
        expected = [(r["step"], pytest.approx(r[name])) for r in records if name in r]
        assert shown == expected, tag
    for which in ("train", "val"):
        for nats, bits in zip(
            events.Scalars(f"loss/{which}"),
            events.Scalars(f"bits_per_character/{which}"),
            strict=True,
        ):
            assert bits.value == pytest.approx(nats.value / math.log(2))
    samples = events.Tensors("sample/text_summary")
    assert [e.step for e in samples] == [0, 4, 8, 11]
    text = samples[0].tensor_proto.string_val[0].decode()
    assert len(text.replace("\n    ", "\n").removeprefix("    ")) == 5
    assert events.Scalars("final/best_val_loss")[0].value == pytest.approx(outcome.best_val_loss)
    written = b"".join(path.read_bytes() for path in Path("r").glob("events*"))
    for key, _, _ in fields(config):
        assert key.encode() in written


def test_tensorboard_shows_where_each_head_looks(text_file: Path) -> None:
    corpus = load_corpus(open_text(str(text_file)))
    train(small(), corpus, Path("r"))
    pictures = events_of(Path("r")).Images("attention")
    assert [e.step for e in pictures] == [0, 4, 8, 11]
    model = load("r")
    expected = tile(attend(model, to_torch(corpus.val[:13])).weights)  # T is 13
    shown = np.array(Image.open(io.BytesIO(pictures[-1].encoded_image_string)).convert("L"))
    assert np.array_equal(shown, expected)
    train(small(model__T=37), corpus, Path("s"))
    picture = events_of(Path("s")).Images("attention")[0]
    assert (picture.height, picture.width) == (4 * 2 * 33, 4 * 3 * 33)  # 32 characters and a line


def test_the_projector_names_the_characters(text_file: Path) -> None:
    """And a resumed run leaves no second set of files, and prints nothing."""
    text_file.write_text("\x1b\t\n 日\u2028abc" * 50)
    corpus = load_corpus(open_text(str(text_file)))
    train(small(train__stop_at_val_loss=99.0), corpus, Path("r"))
    train(small(), corpus, Path("r"), resume=True)
    config = projector_config_pb2.ProjectorConfig()
    text_format.Parse(Path("r/projector_config.pbtxt").read_text(), config)
    (embedding,) = config.embeddings
    labels = Path("r", embedding.metadata_path).read_text("utf-8").split("\n")
    assert labels == ["⇥", "↵", r"\x1b", "␣", "a", "b", "c", r"\u2028", "日", ""]
    vectors = np.loadtxt(Path("r", embedding.tensor_path), delimiter="\t")
    model = load("r")
    assert vectors == pytest.approx(model.token_embedding.weight.numpy(force=True), rel=1e-5)
    names = {p.name for p in Path("r").iterdir() if not p.name.startswith("events")}
    assert names == {
        *("checkpoints", "config.yaml", "metrics.jsonl", "provenance.jsonl", ".lock"),
        *("projector", "projector_config.pbtxt"),
    }


def test_histograms_come_on_request_and_change_nothing(text_file: Path) -> None:
    corpus = load_corpus(open_text(str(text_file)))
    train(small(), corpus, Path("without"))
    assert events_of(Path("without")).Tags()["histograms"] == []
    train(small(train__histograms=True), corpus, Path("with"))
    assert metrics_of(Path("with")) == metrics_of(Path("without"))
    events = events_of(Path("with"))
    model = load("with")
    for name, parameter in model.named_parameters():
        weights = events.Histograms(f"weights/{name}")
        assert [e.step for e in weights] == [0, 4, 8, 11]
        seen = weights[-1].histogram_value
        assert (seen.num, seen.max) == (parameter.numel(), pytest.approx(parameter.max().item()))
        assert [e.step for e in events.Histograms(f"gradients/{name}")] == [4, 8, 11]


def test_a_resumed_curve_has_no_repeat(text_file: Path) -> None:
    corpus = load_corpus(open_text(str(text_file)))
    train(small(train__stop_at_val_loss=99.0), corpus, Path("r"))  # stops at step 4
    shutil.copytree("r/checkpoints", "at-step-4")
    time.sleep(1.1)
    train(small(train__stop_at_val_loss=3.2), corpus, Path("r"), resume=True)  # and at 8
    shutil.rmtree("r/checkpoints")  # as if it had been killed before its checkpoint
    shutil.copytree("at-step-4", "r/checkpoints")
    time.sleep(1.1)  # TensorBoard reads files in the order of the seconds in their names
    train(small(), corpus, Path("r"), resume=True)
    steps = [e.step for e in events_of(Path("r")).Scalars("loss/train")]
    assert steps == list(range(1, 12))


def test_a_sample_is_shown_and_not_obeyed(text_file: Path) -> None:
    text_file.write_text("<script>\x1b[2J# **\n" * 50)
    train(small(train__steps=2), load_corpus(open_text(str(text_file))), Path("r"))
    for event in events_of(Path("r")).Tensors("sample/text_summary"):
        text = event.tensor_proto.string_val[0].decode()
        assert visible(text) == text
        assert all(line.startswith("    ") for line in text.split("\n"))


def test_the_bar_shows_step_losses_pace_and_time_left(text_file: Path) -> None:
    config = small(data__source=str(text_file), train__steps=60, train__eval_every=30)
    Path("c.yaml").write_text(to_yaml(config))
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (30, 120))
    command = [sys.executable, "-m", "gpt", "train", "--config", "c.yaml", "--json"]
    with subprocess.Popen(command, stderr=follower, stdout=subprocess.DEVNULL) as process:
        os.close(follower)
        shown = b""
        try:
            while piece := os.read(leader, 4096):
                shown += piece
        except OSError:  # Linux's way to say that the other end is closed
            pass
        assert process.wait() == 0
    os.close(leader)
    last = [line for line in shown.decode().split("\r") if "60/60" in line][-1]
    for words in ("60/60", "train ", "val ", "chars/s", "<00:00"):
        assert words in last
