"""Measure the numbers in the READMEs, on whole processes from start to exit.

    python scripts/bench.py                          all parts but gpu
    python scripts/bench.py fast cpu                 some of them
    python scripts/bench.py fast shapes --nanogpt PATH   with a checkout of nanoGPT, and ratios
    python scripts/bench.py shapes --huggingface     with Hugging Face's GPT-2

The peers need the extra `bench`: pip install -e '.[bench]'

Prints one JSON object. Times on a shared machine vary: quote medians, and ratios taken in one call.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from bench_peers import NanoGPT, huggingface

from gpt.text.named import TINYSHAKESPEARE, locate

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
NANOGPT_CPU, NANOGPT_GPU = 1.8857, 1.4697  # val losses of nanoGPT's recipes on tinyshakespeare
PUBLISHED = 1.4603  # the best val loss published for at most its 10.65 million parameters


def seconds(*command: str, repeats: int = 1) -> float:
    """Return the median wall-clock time of a command that must succeed."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return round(statistics.median(times), 3)


def startup() -> dict[str, Any]:
    """Time the help and a config error, and the imports that they need."""
    wrong = (
        f"import sys; from gpt.cli.main import main; sys.argv = {['gpt', 'train', '--set', 'x=1']}"
    )
    caught = "\ntry:\n    main()\nexcept SystemExit as error:\n    assert error.code == 2"
    return {
        "import_typer_s": seconds(sys.executable, "-c", "import typer", repeats=7),
        "gpt_help_s": seconds(sys.executable, "-m", "gpt", "--help", repeats=7),
        "gpt_config_error_s": seconds(sys.executable, "-c", wrong + caught, repeats=7),
        "import_torch_s": seconds(sys.executable, "-c", "import torch", repeats=5),
        "gpt_train_first_step_s": statistics.median(first_step() for _ in range(5)),
    }


def first_step() -> float:
    """Return the seconds from the start of `gpt train` until the first update is recorded."""
    changes = ["train.steps=2", "train.log_every=1", "train.warmup_steps=0", "train.compile=off"]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "gpt", "train", "--run-dir", str(run), "--config"]
        command += [str(CONFIGS / "shakespeare_fast.yaml")]
        command += [part for change in changes for part in ("--set", change)]
        began, metrics = time.perf_counter(), run / "metrics.jsonl"
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            while not metrics.exists() or '"train_loss"' not in metrics.read_text("utf-8"):
                if process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)}: it ended before its first step")
                time.sleep(0.005)
            taken = time.perf_counter() - began
            process.communicate()
    return round(taken, 3)


def run_of(config: str, *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train a shipped config; return its outcome with `wall_s`, and its metrics."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / config)
        command = [sys.executable, "-m", "gpt", "train", *arguments, "--json", "--run-dir", run]
        began = time.perf_counter()
        done = subprocess.run(
            [*command, "--config", str(CONFIGS / f"{config}.yaml")], check=True, capture_output=True
        )
        wall = time.perf_counter() - began
        lines = (Path(run) / "metrics.jsonl").read_text("utf-8").splitlines()
    outcome = json.loads(done.stdout)
    kept = {key: outcome[key] for key in ("step", "val_loss", "best_val_loss")}
    return {"wall_s": round(wall, 1), **kept}, [json.loads(line) for line in lines]


def probe(config: str, *changes: str) -> dict[str, Any]:
    """Return pace, memory and FLOP/s of a config, as `gpt train --dry-run` measures them.

    FLOPs per character are counted as in PaLM (arXiv:2204.02311, appendix B): 6 for each weight of
    a matrix product, and 6 T (hs + vs) for each head, counting masked scores, too.
    """
    path = str(CONFIGS / f"{config}.yaml")
    arguments = [part for change in changes for part in ("--set", change)]
    command = [sys.executable, "-m", "gpt", "train", "--dry-run", "--json", "--config", path]
    done = subprocess.run([*command, *arguments], check=True, capture_output=True)
    got = json.loads(done.stdout)
    model, train, parts = got["config"]["model"], got["config"]["train"], got["parameters"]
    weights = parts["attention"] + parts["mlp"] + parts["head"]
    heads = model["n_layer"] * model["n_head"]
    flops = 6 * weights + 6 * heads * model["T"] * (model["head_size"] + model["value_size"])
    chars_per_s = train["batch_size"] * model["T"] / got["costs"]["step"]["seconds"]
    return {
        "precision": got["precision"],
        "parameters": sum(parts.values()),
        "ms_per_step": round(1000 * got["costs"]["step"]["seconds"], 1),
        "chars_per_s": round(chars_per_s),
        "gflop_per_s": round(flops * chars_per_s / 1e9, 1),
        "peak_mib": round(got["peak_bytes"] / 2**20),
    }


def quickstart() -> dict[str, Any]:
    """Run the README's first command, without the installation."""
    return run_of("quickstart")[0]


def to_target(config: str, target: float, seeds: int = 1) -> dict[str, Any]:
    """Train a config with several seeds; report whether each ends at or below the target."""
    runs = [run_of(config, "--set", f"seed={1337 + i}")[0] for i in range(seeds)]
    return {
        "target": target,
        "reached": all(run["val_loss"] <= target for run in runs),
        "mean_val_loss": round(statistics.mean(run["val_loss"] for run in runs), 4),
        "median_wall_s": statistics.median(run["wall_s"] for run in runs),
        "runs": runs,
    }


def fast() -> dict[str, Any]:
    """Train to the val loss of nanoGPT's CPU recipe."""
    return to_target("shakespeare_fast", NANOGPT_CPU, seeds=3)


def cpu() -> dict[str, Any]:
    """Train to the val loss of nanoGPT's GPU recipe, on the CPU."""
    return to_target("shakespeare_cpu", NANOGPT_GPU, seeds=3)


def best() -> dict[str, Any]:
    """Train the shipped config with the lowest val loss."""
    return to_target("shakespeare_best", PUBLISHED, seeds=3)


def threads() -> dict[str, Any]:
    """Measure steps/s of one run and of two at once, by how long waiting threads spin."""
    program = (
        "import time, torch\n"
        "from pathlib import Path\n"
        "from gpt.config.load import load_config\n"
        "from gpt.model.transformer import GPT\n"
        "from gpt.text.corpus import load_corpus\n"
        "from gpt.text.sources import open_source\n"
        "from gpt.distributed.ranks import SINGLE\n"
        "from gpt.training.build_step import build_step\n"
        f"config = load_config(Path({str(CONFIGS / 'quickstart.yaml')!r}))\n"
        "corpus = load_corpus(open_source('python-docs'))\n"
        "model = GPT(config.model, len(corpus.vocabulary))\n"
        "step = build_step(config, model, torch.device('cpu'), SINGLE, corpus.train)\n"
        "began, steps = time.perf_counter(), 0\n"
        "while time.perf_counter() - began < 8:\n"
        "    step(steps)\n"
        "    steps += 1\n"
        "print(steps / 8)\n"
    )
    table: dict[str, Any] = {}
    for name, spin in [("sleeping", "0"), ("ours", "1000"), ("spinning", "300000")] * 3:
        environment = os.environ | {"GOMP_SPINCOUNT": spin}
        for runs in (1, 2):
            started = [
                subprocess.Popen(
                    [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE
                )
                for _ in range(runs)
            ]
            rates = [float(run.communicate()[0]) for run in started]
            table.setdefault(f"{name}_{runs}_at_once", []).append(round(sum(rates), 1))
    return {f"{name}_steps_per_s": statistics.median(rates) for name, rates in table.items()}


def peak() -> dict[str, Any]:
    """Measure the fastest matrix product of this machine, in GFLOP/s."""
    import torch

    rates = {}
    for dtype in (torch.float32, torch.bfloat16):
        fastest = 0.0
        for rows, inner, columns in [(4096, 384, 1536), (4096, 1024, 1024), (2048, 2048, 2048)]:
            a, b = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
            until = time.perf_counter() + 2  # some CPUs take seconds for one product in bfloat16
            while (began := time.perf_counter()) < until:
                a @ b
                took = time.perf_counter() - began
                fastest = max(fastest, 2 * rows * inner * columns / took / 1e9)
        rates[str(dtype).removeprefix("torch.")] = round(fastest)
    return rates


def shapes() -> dict[str, Any]:
    """Measure training at the shapes of nanoGPT's GPU recipe: T 256, C 384, 6 layers, B 64."""
    measured = {name: probe(*arguments) for name, arguments in SHAPES.items()}
    rates = peak()
    for each in measured.values():
        each["share_of_peak"] = round(each["gflop_per_s"] / rates[each["precision"]], 3)
    return {"peak": rates, **measured}


SHAPES = {
    "ours": ("shakespeare_gpu", "device=cpu"),
    "ours_without_dropout": ("shakespeare_gpu", "device=cpu", "model.dropout=0"),
}


def scaling() -> dict[str, Any]:
    """Measure the cost of a step as T, C or the batch of shakespeare_cpu grows."""
    grown = [
        *(f"model.T={T}" for T in (64, 128, 256, 512, 1024)),
        *(f"model.C={C}" for C in (64, 128, 256, 512)),
        *(f"train.batch_size={B}" for B in (1, 4, 16, 64)),
    ]
    return {change: probe("shakespeare_cpu", "train.first_window=null", change) for change in grown}


def optimizer() -> dict[str, Any]:
    """Time a step of torch's Muon, our Muon and torch's AdamW on shakespeare_cpu's blocks."""
    made = "import torch; torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])"
    import_torch = seconds(sys.executable, "-c", "import torch", repeats=5)
    making = seconds(sys.executable, "-c", made, repeats=5) - import_torch

    import torch

    from gpt.config.load import load_config
    from gpt.model.transformer import GPT
    from gpt.training.optimizer import Muon, make_optimizers

    config = load_config(CONFIGS / "shakespeare_cpu.yaml")
    ours = make_optimizers(GPT(config.model, 65), config.train)[0]
    assert isinstance(ours, Muon)
    for p in ours.parameters:
        p.grad = torch.randn_like(p)
    theirs = torch.optim.Muon(ours.parameters, lr=1e-3)
    times: dict[str, list[float]] = {"torch": [], "ours": []}
    for _ in range(7):
        for name, step in (("torch", theirs.step), ("ours", lambda: ours.step(1.0))):
            began = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - began)
    medians = {f"muon_{k}_ms": round(1000 * statistics.median(v), 1) for k, v in times.items()}
    return medians | {"making_torch_adamw_s": round(making, 2)}


def workers() -> dict[str, Any]:
    """Time a step that divides windows among threads, and a step that divides operations."""
    import torch

    from gpt.config.load import load_config
    from gpt.distributed.ranks import SINGLE
    from gpt.model.transformer import GPT
    from gpt.training.cpu_workers import WorkerBackward
    from gpt.training.step import TrainStep

    ids = torch.randint(65, (10**6,), dtype=torch.uint8).numpy()
    table: dict[str, Any] = {}
    for name, changes in [
        ("quickstart", []),
        ("shakespeare_cpu", []),
        ("shakespeare_gpu", ["model.dropout=0"]),
    ]:
        config = load_config(CONFIGS / f"{name}.yaml", [*changes, "device=cpu"])
        step = TrainStep(config, GPT(config.model, 65), torch.device("cpu"), SINGLE, ids)
        if torch.get_num_threads() == 1:
            return {"threads": 1}
        assert isinstance(step.backward, WorkerBackward)
        ways = step.backward.workers, 1
        times: tuple[list[float], list[float]] = [], []
        for i in range(12):
            for step.backward.workers, taken in zip(ways, times, strict=True):
                began = time.perf_counter()
                step(i)
                taken.append(time.perf_counter() - began)
        windows, operations = (taken[2:] for taken in times)
        ratio = statistics.median(o / w for o, w in zip(operations, windows, strict=True))
        table[name] = {
            "windows_ms": round(1000 * statistics.median(windows), 1),
            "operations_ms": round(1000 * statistics.median(operations), 1),
            "times_faster": round(ratio, 2),
        }
    return table


def long_text() -> dict[str, Any]:
    """Measure time and memory of a step on 1 MB and on 1 GB of text (bench_long_text.py)."""
    from bench_long_text import long_text as measure

    return measure()


def vocabulary_size() -> dict[str, Any]:
    """Time a step and its parts by the size of the vocabulary: bench_vocabulary.py."""
    from bench_vocabulary import vocabulary_size as measure

    return measure()


def sampling(arguments: argparse.Namespace, peer: NanoGPT | None) -> dict[str, Any]:
    """Measure characters/s of samples: bench_sampling.py; nanoGPT's sample.py in turn."""
    from bench_sampling import sampling as measure

    return measure(peer)


def preparation(arguments: argparse.Namespace, peer: NanoGPT | None) -> dict[str, Any]:
    """Time the preparation of a text: bench_texts.py; nanoGPT's prepare.py in turn."""
    from bench_texts import preparation as measure

    return measure(peer, arguments.text or locate(TINYSHAKESPEARE))


def vocabularies(arguments: argparse.Namespace, peer: NanoGPT | None) -> dict[str, Any]:
    """Measure bits per byte with characters and with bytes: bench_texts.py."""
    from bench_texts import vocabularies as measure

    return measure(arguments.text or locate(TINYSHAKESPEARE))


def ensembles() -> dict[str, Any]:
    """Compare the sampling speed of an ensemble of 4 and of one model: bench_sampling.py."""
    from bench_sampling import ensembles as measure

    return measure()


def busy_core() -> dict[str, Any]:
    """Time `gpt sample` beside a program that occupies one core: bench_sampling.py."""
    from bench_sampling import busy_core as measure

    return measure()


def ranks() -> dict[str, Any]:
    """Time a step of one process and of two ranks of this machine: bench_ranks.py."""
    from bench_ranks import ranks as measure

    return measure()


def batch_sizes() -> dict[str, Any]:
    """Measure val losses after the same characters by batch size: bench_ranks.py."""
    from bench_ranks import batch_sizes as measure

    return measure()


def gpu() -> dict[str, Any]:
    """Time training, evaluation and sampling on a CUDA GPU: bench_gpu.py."""
    from bench_gpu import gpu as measure

    return measure()


def dryrun() -> dict[str, Any]:
    """Compare the seconds that --dry-run estimates with those that the run takes."""
    table: dict[str, Any] = {}
    for name, (config, *changes) in DRY_RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "gpt", "train", "--config"]
            command += [str(CONFIGS / f"{config}.yaml")]
            command += [part for change in changes for part in ("--set", change)]
            if name == "22_mb":
                text = Path(folder, "long.txt")
                text.write_text(20 * locate(TINYSHAKESPEARE).read_text("utf-8"), "utf-8")
                command.append(str(text))
            dry = subprocess.run([*command, "--dry-run", "--json"], check=True, capture_output=True)
            estimated = json.loads(dry.stdout)["seconds"]
            taken = seconds(*command, "--run-dir", str(Path(folder, "run")))
        table[name] = {"estimated_s": round(estimated, 1), "taken_s": round(taken, 1)}
        table[name]["ratio"] = round(estimated / taken, 2)
    return table


DRY_RUNS = {
    "quickstart": ["quickstart"],
    "shakespeare_fast": ["shakespeare_fast"],
    "shakespeare_cpu": ["shakespeare_cpu", "train.steps=500"],
    "22_mb": ["quickstart", "train.steps=60", "train.eval_every=30"],
}


OURS = (
    dryrun,
    startup,
    quickstart,
    fast,
    cpu,
    best,
    threads,
    workers,
    long_text,
    vocabulary_size,
    peak,
    shapes,
    scaling,
    optimizer,
    ensembles,
    busy_core,
    ranks,
    batch_sizes,
)
PARTS = {part.__name__: part for part in OURS}
WITH_GPU = {gpu.__name__: gpu}  # parts that run only if they are named
WITH_ARGUMENTS = {part.__name__: part for part in (sampling, preparation, vocabularies)}


def beside(results: dict[str, Any], peer: NanoGPT | None, with_huggingface: bool) -> dict[str, Any]:
    """Measure nanoGPT and Hugging Face on the same work, and how many times faster we are."""
    found: dict[str, Any] = {}
    ours = {name: results.get("shapes", {}).get(name, {}).get("chars_per_s") for name in SHAPES}
    if peer:
        if "fast" in results:
            recipe = peer.cpu_recipe()
            ratio = recipe["wall_s"] / results["fast"]["median_wall_s"]
            found["nanogpt_cpu_recipe"] = recipe | {"times_ours": round(ratio, 1)}
        if "shapes" in results:
            for name, options in (("ours", []), ("ours_without_dropout", ["--dropout=0.0"])):
                pace = peer.gpu_recipe_on_cpu(*options)
                pace["ours_is_faster"] = round(ours[name] / pace["chars_per_s"], 2)
                found[name.replace("ours", "nanogpt_gpu_shapes")] = pace
    if with_huggingface and "shapes" in results:
        rate = huggingface(T=256, C=384, n_layer=6, n_head=6, B=64, V=65, steps=3)
        ratio = round(ours["ours"] / rate, 2)  # Hugging Face's run has dropout 0.1
        found["huggingface_gpt2"] = {"chars_per_s": rate, "ours_is_faster": ratio}
    return found


def main() -> None:
    """Measure the parts that the command line names, by default all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=", ".join([*PARTS, *WITH_ARGUMENTS, *WITH_GPU]))
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT to run beside")
    parser.add_argument("--huggingface", action="store_true", help="run its GPT-2 beside")
    parser.add_argument("--text", type=Path, help="for preparation, vocabularies")
    arguments = parser.parse_args()
    always = [*PARTS, *WITH_ARGUMENTS]
    known = [*always, *WITH_GPU]
    parts = arguments.parts or always
    if unknown := set(parts) - set(known):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in gpt/__main__.py
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import torch

    machine = {
        "date": date.today().isoformat(),
        "command": " ".join(sys.argv),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
    }
    text = locate(TINYSHAKESPEARE) if arguments.nanogpt else Path()
    peer = NanoGPT(arguments.nanogpt, text) if arguments.nanogpt else None
    results = {
        part: WITH_ARGUMENTS[part](arguments, peer)
        if part in WITH_ARGUMENTS
        else (PARTS | WITH_GPU)[part]()
        for part in parts
    }
    peers = beside(results, peer, arguments.huggingface)
    print(json.dumps(machine | results | peers, indent=2))


if __name__ == "__main__":
    main()
