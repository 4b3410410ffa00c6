"""The configs that are shipped: short, explained, and able to train."""

from pathlib import Path

import pytest

from gpt.config.load import load_config
from gpt.text.corpus import load_corpus
from gpt.text.sources import open_text
from gpt.training.trainer import train
from tests.conftest import metrics_of

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


def test_the_promised_configs_are_there() -> None:
    assert {"quickstart", "classic", "shakespeare_fast"} <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_trains(path: Path) -> None:
    text = Path("text.txt")
    text.write_text("".join(chr(97 + i * i % 26) for i in range(3001)))
    fewer = ["train.steps=3", "train.warmup_steps=1", "train.batch_size=2", "train.log_every=1"]
    config = load_config(path, [*fewer, "device=cpu", "train.sample_length=3"], str(text))
    outcome = train(config, load_corpus(open_text(str(text))), Path("run"))
    losses = [r["train_loss"] for r in metrics_of(Path("run")) if "train_loss" in r]
    assert len(losses) == outcome.step == 3
    assert losses[-1] < losses[0]
