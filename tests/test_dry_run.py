"""`gpt train --dry-run`: parameters, memory and time, and nothing trained."""

import json
import re
import time

import pytest
import torch

from gpt import terminal
from gpt.model.transformer import GPT
from gpt.recipe.dry_run import estimate_run
from tests.conftest import before_forward, small


def test_the_estimate_as_json(gpt, config_file):
    """It once charged an evaluation for step 0, which is not made."""
    got = json.loads(gpt("train", "--config", config_file, "--dry-run", "--json")[1])
    assert got["config"]["model"]["T"] == 13
    V, C = 31, 24
    assert got["parameters"]["head"] == V * C
    # of each parameter its weight, gradient and two averages; Muon, in the blocks, keeps only one
    total = sum(got["parameters"].values())
    assert 12 * total < got["state_bytes"] < 16 * total
    assert got["peak_bytes"] > got["state_bytes"]
    counts = {name: cost["count"] for name, cost in got["costs"].items()}
    assert counts["step"] == 11
    assert counts["evaluation"] == 3  # at steps 4, 8 and 11
    assert counts["sample, checkpoint"] == 4
    costs = (cost["count"] * cost["seconds"] for cost in got["costs"].values())
    assert got["seconds"] == pytest.approx(sum(costs))


@pytest.mark.usefixtures("quick_choices")
def test_time_and_memory_are_measured_once_and_shown_once(gpt, text_file, monkeypatch):
    """Bug: one screen had "294 s" and "6.4 min", "543 MiB" and "804 MiB", "227 steps" and 197.

    Bug: the speed and a step were measured in silence.
    """
    monkeypatch.setattr(terminal, "DELAY_S", 0.0)
    tiny = {"model.T": 32, "model.C": 48, "model.n_layer": 2, "model.ensemble": 1, "threads": 1}
    settings = [part for key, x in tiny.items() for part in ("--set", f"{key}={x}")]
    code, out, err = gpt("train", text_file, "--minutes", 2, "--dry-run", *settings)
    assert code == 0, err
    assert "passes over the text" in err
    assert "MiB" not in err
    assert not re.search(r"\d s\b|\d min\b|\d steps?\b", err)
    assert len(re.findall(r"^(?:time|memory) ", out, re.MULTILINE)) == 2
    for doing in ("preparing", "how fast models", "a training step"):
        assert any(doing in line for line in err.splitlines() if line.endswith(" ...")), doing


def test_it_measures_with_the_threads_that_the_run_will_have(corpus):
    """It took all there were, whatever the setting said."""
    counts: set[int] = set()

    def note(model: GPT, ids: torch.Tensor) -> None:
        if model.training:
            counts.add(torch.get_num_threads())

    before = torch.get_num_threads()
    with before_forward(note):  # dropout: without workers, which have parts of the threads
        estimate_run(small(threads=3, model__dropout=0.1), corpus, time.perf_counter)
    assert counts == {3}
    assert torch.get_num_threads() == before
