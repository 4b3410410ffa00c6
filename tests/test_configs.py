"""The configs that are shipped: short, explained, and able to train."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from gpt.config.load import load_config
from gpt.config.schema import values
from gpt.reading.sources import open_source
from gpt.text.corpus import load_corpus
from gpt.training.start import train_run
from tests.conftest import metrics_of

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_short_and_says_what_it_chooses(path):
    """Its sizes, device and steps, and otherwise only what differs from the defaults."""
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 25
    stated = {
        f"{section}.{key}" if isinstance(keys, dict) else section
        for section, keys in yaml.safe_load(text).items()
        for key in (keys if isinstance(keys, dict) else [""])
    }
    sizes = [f"model.{key}" for key in ("T", "C", "n_layer", "n_head", "head_size")]
    always = {"device", "train.steps", *sizes}
    assert always <= stated
    settings = values(load_config(path))
    without = {key: values(load_config(path, [f"{key}=null"])) for key in stated - always}
    assert {key for key in without if without[key] == settings} == set()


def test_a_wheel_carries_the_configs(tmp_path):
    """`--config quickstart` works where there is no clone: read from a wheel, in a new process."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=CONFIGS[0].parents[1], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    program = (
        "from gpt.config import load\n"
        "print(load.__file__)\n"
        f"for name in {[path.stem for path in CONFIGS]!r}:\n"
        "    print(load.load_config(name).model_dump_json())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    module, *configs = done.stdout.splitlines()
    assert Path(module).is_relative_to(tmp_path)
    assert configs == [load_config(path).model_dump_json() for path in CONFIGS]


@pytest.mark.pictures
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_trains(path):
    text = Path("text.txt")
    text.write_text("".join(chr(97 + i * i % 26) for i in range(3001)))
    fewer = ["train.steps=3", "train.warmup_steps=1", "train.batch_size=2"]
    fewer += ["device=cpu", "train.sample_length=3", f"data.source={text}"]
    config = load_config(path, fewer)
    outcome = train_run(config, load_corpus(open_source(str(text))), Path("run"))
    losses = [record["val_loss"] for record in metrics_of(Path("run"))]
    assert outcome.step == 3
    assert losses[-1] < losses[0]
