"""Memory is estimated before it is taken, and refused where there is not so much."""

import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from gpt.config.load import load_config
from gpt.config.schema import Config, ModelConfig
from gpt.memory import cpu_limit
from gpt.model.ensemble import make_model
from gpt.model.shapes import parameter_shapes
from gpt.recipe.table import Choice, Size, settings
from gpt.runs.format import CheckpointData, TrainingState
from gpt.runs.write import write_checkpoint
from gpt.text.vocabulary import Vocabulary
from gpt.training.memory_estimate import training_bytes, with_fewest_micro_batches
from tests.pretend import two_gpus

MEASURED = """
import json, sys
from pathlib import Path
import numpy as np

def most_held() -> int:
    # not ru_maxrss, which begins with what the process that started this one held
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
"""
TRAINED = """
import torch
from gpt.config.schema import Config
from gpt.evaluation.loss import evaluate
from gpt.model.ensemble import make_model
from gpt.distributed import SINGLE
from gpt.training.members import build_step
from gpt.training.memory_estimate import training_bytes, with_fewest_micro_batches
torch.set_num_threads(2)
config, V = Config.model_validate_json(sys.argv[1]), int(sys.argv[2])
ids, cpu = np.arange(29_989, dtype=np.uint32) % V, torch.device("cpu")
before = most_held()
step = build_step(config, make_model(config.model, V, seed=1), cpu, SINGLE, ids)
step.read([step(i) for i in range(2)])
evaluate(step.model, ids[:9_011])  # more than two threads score at once
print(json.dumps({"taken": most_held() - before, "parts": training_bytes(config, V, cpu)}))
"""
SAMPLED = """
from gpt.config.schema import ModelConfig
from gpt.model.shapes import parameter_shapes
from gpt.sampling.choose_engine import sampling_bytes
from gpt.sampling.generate import generate, sample_streams
from gpt.sampling.numpy_engine import NumpyEngine
from gpt.text.vocabulary import Vocabulary
config, V, B = ModelConfig.model_validate_json(sys.argv[1]), 67, int(sys.argv[2])
vocabulary = Vocabulary("".join(map(chr, range(33, 33 + V))))
prompts = [[i % V] * 97 for i in range(B)]
before = most_held()
weights = {k: np.ones(shape, np.float32) for k, shape in parameter_shapes(config, V).items()}
engine, streams = NumpyEngine(config, weights, B), sample_streams(1, range(B))
for _ in generate(engine, vocabulary, prompts, streams, length=20):
    pass
print(json.dumps({"taken": most_held() - before, "parts": sampling_bytes(config, V, B, 117)}))
"""
COMMAND = """
from gpt.cli.main import main
try:
    main()
finally:
    print(most_held(), file=sys.stderr)
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="measured by Linux's /proc")


def measure(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MEASURED + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def told_and_taken(program: str, *arguments: str) -> tuple[float, int]:
    told = json.loads(measure(program, *arguments).stdout)
    return sum(told["parts"].values()), told["taken"]


@linux
@pytest.mark.parametrize(
    ("sizes", "precision", "V"),
    [
        ({"T": 64, "C": 192, "n_layer": 5}, "fp32", 67),
        ({"T": 64, "C": 128, "n_layer": 5}, "bf16", 67),
        ({"T": 64, "C": 64, "n_layer": 5, "ensemble": 3}, "fp32", 67),
        ({"T": 128, "C": 64, "n_layer": 5, "dropout": 0.1}, "fp32", 67),
        ({"T": 512, "C": 32, "n_layer": 2, "n_head": 4}, "bf16", 67),
        ({"T": 128, "C": 64, "n_layer": 2}, "bf16", 7001),
    ],
)
def test_training_takes_what_was_estimated_within_a_factor_of_one_and_a_half(sizes, precision, V):
    """What evaluation takes was left out, as if malloc gave it what training had freed."""
    tree = {"device": "cpu", "model": sizes}
    tree |= {"train": {"batch_size": 16, "precision": precision}}
    estimate, taken = told_and_taken(TRAINED, Config.model_validate(tree).model_dump_json(), str(V))
    assert estimate / 1.5 <= taken <= 1.5 * estimate


def test_a_batch_of_a_milliard_windows_is_refused(gpt, text_file):
    """It took 23.5 GB, and the system ended the process without a message.

    Bug: what is measured where a config is chosen took 28 GB unasked.
    """
    arguments = ["train", text_file, "--set", "train.batch_size=1000000000", "--set", "model.T=13"]
    for more in (["--dry-run"], ["--run-dir", "r"]):
        code, out, err = gpt(*arguments, *more)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "training would take about" in err
        assert "a smaller train.batch_size" in err
    assert not Path("r").exists()


@pytest.fixture
def claims_much() -> Path:
    """A small run, with right hashes, whose rotary tables once took 2 GB."""
    sizes = {"n_layer": 30, "T": 2**23, "head_size": 2, "C": 1, "n_head": 1}
    config, vocabulary = Config.model_validate({"model": sizes}), Vocabulary("\n abc")
    shapes = parameter_shapes(config.model, len(vocabulary))
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    run = Path("claims-much")
    run.mkdir()
    write_checkpoint(
        run, CheckpointData(1, config, vocabulary, weights), TrainingState({}, {"x": 1})
    )
    return run


@linux
@pytest.mark.parametrize(
    "arguments",
    [
        ["attend", "RUN", "--text", "ab", "--out", "a.html"],
        ["attend", "RUN", "--text", "ab" * 30_000, "--out", "a.html"],
        ["explain", "follow", "--run", "RUN"],
        ["sample", "RUN", "--length", "3"],
        ["sample", "RUN", "--num-samples", "1000000000"],
    ],
)
def test_a_small_file_takes_little_memory_whatever_it_claims(claims_much, arguments):
    named = [str(claims_much) if argument == "RUN" else argument for argument in arguments]
    done = measure(COMMAND, *named)
    *told, taken = done.stderr.splitlines()
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert int(taken) < 1.2e9
    if "1000000000" in arguments or "ab" * 30_000 in arguments:
        assert done.returncode == 1
        assert "would take about" in told[-1]


@linux
@pytest.mark.parametrize(("B", "ensemble"), [("1", 1), ("107", 1), ("1", 5), ("31", 3)])
def test_sampling_takes_no_more_than_its_estimate(B, ensemble):
    config = ModelConfig(T=131, C=256, n_layer=3, ensemble=ensemble)
    estimate, taken = told_and_taken(SAMPLED, config.model_dump_json(), B)
    assert taken <= 1.2 * estimate + 3e7


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_a_gpu_activations_are_the_tensors_that_autograd_saves(precision):
    """Bug: the estimate for bfloat16 models on a GPU was 2.3 to 2.7 times too large."""
    B, T, V = 5, 601, 67  # CPUs have the same attention as GPUs in windows of more than 512
    model = {"T": T, "C": 128, "n_layer": 3, "n_head": 2}
    config = Config.model_validate(
        {"model": model, "train": {"batch_size": B, "precision": precision}}
    )
    gpt = make_model(config.model, V, seed=1)
    weights = {weight.untyped_storage().data_ptr() for weight in gpt.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.arange(B * T).view(B, T) % V
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = gpt(ids)
        torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten())
    with patch("gpt.training.memory_estimate.ACCELERATOR_EVAL_CHARACTERS", T):
        parts = training_bytes(config, V, torch.device("cuda:0"))
    assert sum(saved.values()) <= parts["activations"] <= 1.5 * sum(saved.values())


@pytest.mark.parametrize("gigabytes", [5, 24, 200])
def test_the_batch_of_the_chosen_run_fits_into_the_memory_of_the_card(gigabytes):
    """Bug: memory was checked at another batch size. 36 GB were planned for a card of 24 GB."""
    choice = Choice(Size(8, 320), 10**9)
    config, cuda = load_config(None, [*settings(choice, T=1024).items()]), torch.device("cuda:0")

    def fits(config: Config) -> bool:
        return sum(training_bytes(config, 65, cuda).values()) <= 0.8 * gigabytes * 10**9

    with two_gpus():
        chosen = with_fewest_micro_batches(config, fits)
        assert fits(chosen)
    assert chosen.train.batch_size * chosen.model.T >= 60_000
    assert (chosen.train.accumulation > 1) == (gigabytes < 24)


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ("0::/", {"cpu.max": "max 100000"}, None),
        (
            "1:cpu,cpuacct:/docker/x\n0::/",
            {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"},
            1,
        ),
        ("1:cpu:/x", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_a_containers_cpu_quota_limits_the_threads(groups, files, limit, tmp_path):
    """Bug: a container with 2 of 64 CPUs trained with 64 threads, many times slower."""
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in (files | {"proc/self/cgroup": groups}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert cpu_limit(tmp_path) == limit
