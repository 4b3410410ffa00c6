"""What a run shows: TensorBoard's events as TensorBoard itself reads them, and the bar."""

import io
import json
import logging
import os
import re
import shutil
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tqdm.utils import disp_len

from gpt.distributed import SINGLE
from gpt.model.attention_maps import attend
from gpt.reading.sources import open_source
from gpt.terminal import visible
from gpt.text.batches import to_torch
from gpt.text.corpus import load_corpus
from gpt.training.callbacks import Callback
from gpt.training.metrics_file import MetricsFile, delete_records_after
from gpt.training.progress_bar import make_bar
from gpt.training.run_context import RunContext
from gpt.training.start import train_run
from gpt.training.tensorboard import TensorBoard
from tests.conftest import PANGRAM, full_disk, load, metrics_of, small


def events_of(run: Path):  # type: ignore[no-untyped-def]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run), size_guidance={"histograms": 0, "scalars": 0})  # 0: all
    events.Reload()
    return events


def samples_of(run: Path) -> list[tuple[int, str]]:
    """Return the steps and samples that TensorBoard shows, without those that a resume replaced."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    events = EventAccumulator(str(run))
    events.Reload()
    return [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors("sample")]


def points(run: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events_of(run).Scalars(tag)]


def board(run: Path, next_step: int | None) -> TensorBoard:
    text = Path("watched.txt")
    text.write_text(PANGRAM * 29)
    corpus, cpu = load_corpus(open_source(str(text))), torch.device("cpu")
    context = RunContext(small(), corpus, run, SINGLE, lambda: False, cpu, time.perf_counter)
    return TensorBoard(context, next_step)


@contextmanager
def recorders(
    run: Path, resumed_at: int | None = None, pending: bool = False
) -> Iterator[list[Callback]]:
    if resumed_at is not None:
        delete_records_after(run, resumed_at, pending=pending)
    next_step = None if resumed_at is None else resumed_at + (not pending)
    with closing(MetricsFile(run, lambda: 0.0)) as metrics, closing(board(run, next_step)) as shown:
        yield [metrics, shown]


def test_tensorboard_shows_the_metrics_by_step(text_file):
    """And nothing of step 0, where the loss is that of guessing, and nothing twice."""
    config = small(train__steps=21, data__source=str(text_file))
    train_run(config, load_corpus(open_source(str(text_file))), Path("r"))
    records = metrics_of(Path("r"))
    for tag, name in [
        ("loss/train", "train_loss"),
        ("loss/val", "val_loss"),
        ("training/learning_rate", "lr"),
        ("training/gradient_norm", "grad_norm"),
        ("training/passes_over_the_text", "passes"),
    ]:
        expected = [(r["step"], pytest.approx(r[name])) for r in records if r["step"] and name in r]
        assert points(Path("r"), tag) == expected, tag
    assert set(events_of(Path("r")).Tags()["scalars"]) == {
        *("loss/train", "loss/val"),
        *("training/learning_rate", "training/gradient_norm"),
        *("training/characters_per_second", "training/passes_over_the_text"),
    }


def test_a_run_evaluated_on_a_part_has_one_val_curve(text_file):
    """Bug: `loss/val` had one point, and the curve was `loss/val_part`, which no run compared."""
    config = small(train__eval_characters=29, data__source=str(text_file))
    train_run(config, load_corpus(open_source(str(text_file))), Path("r"))
    parts = [
        (r["step"], pytest.approx(r["val_loss_part"]))
        for r in metrics_of(Path("r"))
        if r["step"] and "val_loss_part" in r
    ]
    assert [step for step, _ in parts] == [4, 8, 11]
    assert points(Path("r"), "loss/val") == parts
    assert [tag for tag in events_of(Path("r")).Tags()["scalars"] if "val" in tag] == ["loss/val"]


def test_the_line_of_an_evaluation_shows_what_was_measured_at_its_step(corpus, caplog):
    """Bug: the train loss and the speed of step 10 were shown at step 12."""
    caplog.set_level(logging.INFO, "gpt")
    train_run(small(train__steps=13), corpus, Path("r"))
    lines = [r.getMessage() for r in caplog.records if re.match(r"step \d+:", r.getMessage())]
    evaluated = [r for r in metrics_of(Path("r")) if "val_loss" in r]
    for line, record in zip(lines[1:], evaluated[1:], strict=True):
        losses = f"val {record['val_loss']:.4f}, train {record['train_loss']:.4f}"
        assert line.startswith(f"step {record['step']}: {losses}, ")


def test_plans_and_notices_are_no_text_cards(tmp_path):
    """Bug: TensorBoard's TEXT page began with a card for each plan, above the samples."""
    with recorders(tmp_path) as callbacks:
        for callback in callbacks:
            callback.on_plan(0, 11)
            callback.on_sample(4, "text")
            callback.on_notice(4, "step 4 skipped")
    assert events_of(tmp_path).Tags()["tensors"] == ["sample"]
    assert "11 steps planned" in (tmp_path / "metrics.jsonl").read_text()


def test_each_sample_is_a_text_of_its_step(text_file):
    """Bug: a long line of a sample reached beyond the page."""
    config = small(train__sample_length=200, sample__temperature=0.01)
    events: list[dict[str, Any]] = []
    train_run(config, load_corpus(open_source(str(text_file))), Path("r"), on_event=events.append)
    written = [(e["step"], e["text"]) for e in events if e["kind"] == "sample"]
    shown = samples_of(Path("r"))
    assert [step for step, _ in shown] == [0, 4, 8, 11]
    assert [(step, "".join(text.split())) for step, text in shown] == [
        (step, "".join(visible(text).split())) for step, text in written
    ]
    lines = [line for _, text in shown for line in text.split("\n")]
    assert all(line.startswith("    ") and len(line) <= 84 for line in lines)


@pytest.mark.pictures
def test_the_attention_picture_is_drawn_at_the_end_with_its_labels(text_file):
    """However short the run is: that of the first member, on the first characters of val."""
    corpus = load_corpus(open_source(str(text_file)))
    train_run(small(model__ensemble=2), corpus, Path("r"))
    from gpt.inspection.pictures import draw_heads, png

    (event,) = events_of(Path("r")).Images("visualization/attention")
    member = load("r", "last").members[0]
    ids = to_torch(corpus.val[: member.config.T])
    title = "attention weights at step 11, on the first characters of val; member 1 of 2"
    figure = draw_heads(attend(member, ids), corpus.vocabulary.names_of(ids.tolist()), title)
    expected = Image.open(io.BytesIO(png(figure, 80)))
    shown = Image.open(io.BytesIO(event.encoded_image_string))
    assert (event.step, event.width, event.height) == (11, *shown.size)
    assert np.array_equal(np.array(shown), np.array(expected))


def test_a_sample_is_shown_and_not_obeyed(text_file):
    text_file.write_text("<script>\x1b[2J# **\n" * 50)
    train_run(small(train__steps=2), load_corpus(open_source(str(text_file))), Path("r"))
    for _, text in samples_of(Path("r")):
        assert visible(text) == text
        assert all(line.startswith("    ") for line in text.split("\n"))


def test_a_resumed_curve_has_no_repeat(text_file):
    corpus = load_corpus(open_source(str(text_file)))
    every = {"train__steps": 41, "train__eval_every": 15}
    train_run(small(**every, train__stop_at_val_loss=99.0), corpus, Path("r"))  # stops at step 15
    shutil.copytree("r/checkpoints", "at-step-15")
    to_30 = small(**every, train__stop_at_val_loss=2.5)
    train_run(to_30, corpus, Path("r"), mode="resume")
    shutil.rmtree("r/checkpoints")  # as if it had been killed before its checkpoint
    shutil.copytree("at-step-15", "r/checkpoints")
    train_run(small(**every), corpus, Path("r"), mode="resume")
    assert [step for step, _ in points(Path("r"), "loss/train")] == [10, 15, 20, 30, 40, 41]
    assert [step for step, _ in points(Path("r"), "loss/val")] == [15, 30, 41]
    assert [step for step, _ in samples_of(Path("r"))] == [0, 15, 30, 41]


def test_a_curve_whose_last_point_is_recorded_anew_has_no_repeat(tmp_path):
    """A run was killed after it recorded an evaluation that a stop had left, and had two points."""
    with recorders(tmp_path) as callbacks:
        for callback in callbacks:
            callback.on_metrics(3, {"train_loss": 3.0})
            callback.on_notice(4, "skipped")
    for _ in range(2):
        with recorders(tmp_path, 4, pending=True) as callbacks:
            for callback in callbacks:
                callback.on_sample(4, "text")
                callback.on_metrics(4, {"train_loss": 2.0, "val_loss": 1.0})
    assert points(tmp_path, "loss/train") == [(3, 3.0), (4, 2.0)]
    assert points(tmp_path, "loss/val") == [(4, 1.0)]
    assert [step for step, _ in samples_of(tmp_path)] == [4]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 4, 4]


def test_records_that_a_full_disk_refuses_are_written_once_there_is_room(
    tmp_path, caplog, capfd, monkeypatch
):
    """In metrics.jsonl and TensorBoard, whole and in their order; no thread prints a traceback."""
    monkeypatch.setattr(logging.getLogger("gpt"), "handlers", [])  # of commands run before
    with recorders(tmp_path) as callbacks:
        for callback in callbacks:
            callback.on_metrics(1, {"train_loss": 3.0})
        with full_disk((tmp_path / "metrics.jsonl").stat().st_size + 10):
            for step in (2, 3):
                for callback in callbacks:
                    callback.on_metrics(step, {"train_loss": 2.0})
                    callback.on_sample(step, 999 * "text")
        for callback in callbacks:
            callback.on_metrics(4, {"train_loss": 1.0})
    assert [record["step"] for record in metrics_of(tmp_path)] == [1, 2, 3, 4]
    assert [step for step, _ in points(tmp_path, "loss/train")] == [1, 2, 3, 4]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert ["metrics.jsonl" in text for text in warnings] == [True, False]
    assert all("File too large" in text and "training continues" in text for text in warnings)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("columns", [10, 40, 80, 200])
def test_the_bar_fits_its_terminal_and_keeps_the_val_loss_longest(columns, monkeypatch):
    """At 80 columns it was one character wide, and its fields were cut."""
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (24, columns))
    with os.fdopen(follower, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        bar = make_bar(total=2500, initial=1500)
        bar.set_description_str("val 12.3456, train 12.3456, 212k chars/s")
        bar.close()
        written = b""
        while not written.endswith(b"\n"):
            written += os.read(leader, 2**16)
    os.close(leader)
    line = written.decode().strip().split("\r")[-1]
    assert disp_len(line) <= columns
    words = {"val": "val 12.3456", "train": "train 12.3456", "pace": "212k chars/s", "time": "<"}
    words |= {"count": "1500/2500", "percent": " 60%", "bar": "|██"}
    present = [name for name, shown in words.items() if shown in line]
    least = {10: 0, 40: 2, 80: 7, 200: 7}[columns]
    assert present == [*words][: len(present)]
    assert len(present) >= least
