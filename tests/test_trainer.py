"""The loop of a run as its caller sees it: events, stops, scores."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.text.corpus import Corpus, load_corpus
from gpt.text.sources import open_text
from gpt.training.trainer import train
from tests.conftest import metrics_of, small

pytestmark = pytest.mark.precision


@pytest.fixture
def corpus(text_file: Path) -> Corpus:
    return load_corpus(open_text(str(text_file)))


# --- events ---


def test_events_tell_a_notebook_all_that_the_records_hold(corpus: Corpus) -> None:
    events: list[dict[str, Any]] = []
    train(small(train__log_every=3), corpus, Path("r"), on_event=events.append)
    told: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["kind"] in ("step", "evaluation"):
            told.setdefault(event["step"], {"step": event["step"]}).update(event)
    for record in metrics_of(Path("r")):
        assert record.items() <= told[record["step"]].items()
    assert set(told) == {0, 3, 4, 6, 8, 9, 11}
    samples = [event for event in events if event["kind"] == "sample"]
    assert [(event["step"], len(event["text"])) for event in samples] == [
        (step, 5) for step in (0, 4, 8, 11)
    ]
    saved = [event for event in events if event["kind"] == "checkpoint"]
    assert [event["step"] for event in saved] == [0, 4, 8, 11]
    assert Path(saved[-1]["path"]).is_dir()


def test_training_works_off_the_main_thread_and_changes_no_handler(corpus: Corpus) -> None:
    """Python refuses signal handlers there; a notebook's callbacks may run in any thread."""
    before, threads = signal.getsignal(signal.SIGINT), torch.get_num_threads()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(train, small(), corpus, Path("r")).result().step == 11
    assert signal.getsignal(signal.SIGINT) == before
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == threads
