"""Whole processes of `gpt train`, beside nanoGPT's recipes."""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.frame import GPT, dry_run, seconds, settings, text_or_tinyshakespeare, train
from bench.peers import NanoGPT
from bench.steps import peak

NANOGPT_CPU, NANOGPT_GPU = 1.8857, 1.4697  # val losses of nanoGPT's recipes on tinyshakespeare
PUBLISHED = 1.4603  # the best val loss published for at most its 10.65 million parameters
WRONG_SETTING = """
import sys
from gpt.cli.main import main
sys.argv = ["gpt", "train", "--set", "x=1"]
try:
    main()
except SystemExit as error:
    assert error.code == 2
"""
GPU_SHAPES = {  # changes of shakespeare_gpu, and of nanoGPT's recipe
    "with_dropout": (["device=cpu"], []),
    "without_dropout": (["device=cpu", "model.dropout=0"], ["--dropout=0.0"]),
}
DRY_RUNS = {
    "quickstart": ("quickstart", []),
    "shakespeare_fast": ("shakespeare_fast", []),
    "shakespeare_cpu": ("shakespeare_cpu", ["train.steps=500"]),
    "22_mb": ("quickstart", ["train.steps=60", "train.eval_every=30"]),
}


def startup() -> dict[str, Any]:
    """Time the help and a config error, and the imports that they need."""
    return {
        "import_typer_s": seconds(sys.executable, "-c", "import typer", repeats=7),
        "gpt_help_s": seconds(*GPT, "--help", repeats=7),
        "gpt_config_error_s": seconds(sys.executable, "-c", WRONG_SETTING, repeats=7),
        "import_torch_s": seconds(sys.executable, "-c", "import torch", repeats=5),
        "gpt_train_first_record_s": statistics.median(_first_record_s() for _ in range(5)),
    }


def _first_record_s() -> float:
    """Return the seconds from the start of `gpt train` until step 10, the first with a record."""
    changes = ["train.steps=11", "train.warmup_steps=0", "train.compile=off"]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [*GPT, "train", "--run-dir", str(run), "--config", "shakespeare_fast"]
        began, metrics = time.perf_counter(), run / "metrics.jsonl"
        with subprocess.Popen(
            [*command, *settings(changes)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            while not metrics.exists() or '"train_loss"' not in metrics.read_text("utf-8"):
                if process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)}: it ended before its first record")
                time.sleep(0.005)
            taken = time.perf_counter() - began
            process.communicate()
    return round(taken, 3)


def fast(nanogpt: Path | None = None) -> dict[str, Any]:
    """Train to the val loss of nanoGPT's CPU recipe; run that recipe, too."""
    found = _to_target("shakespeare_fast", NANOGPT_CPU)
    if nanogpt:
        recipe = NanoGPT(nanogpt, text_or_tinyshakespeare(None)).cpu_recipe()
        ratio = recipe["wall_s"] / found["median_wall_s"]
        found["nanogpt"] = recipe | {"times_ours": round(ratio, 1)}
    return found


def cpu() -> dict[str, Any]:
    """Train to the val loss of nanoGPT's GPU recipe, on the CPU."""
    return _to_target("shakespeare_cpu", NANOGPT_GPU)


def best() -> dict[str, Any]:
    """Train the shipped config with the lowest val loss."""
    return _to_target("shakespeare_best", PUBLISHED)


def _to_target(config: str, target: float) -> dict[str, Any]:
    """Train a config with three seeds; report whether each ends at or below the target."""
    runs = [train(config, [f"seed={seed}"]) for seed in (1337, 1338, 1339)]
    losses = [run["val_loss"] for run in runs]
    return {
        "target": target,
        "reached": max(losses) <= target,
        "val_losses": losses,
        "mean_val_loss": round(statistics.mean(losses), 4),
        "median_wall_s": statistics.median(run["wall_s"] for run in runs),
    }


def dryrun() -> dict[str, Any]:
    """Compare the seconds that --dry-run estimates with those that the run takes."""
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        long = Path(folder, "long.txt")
        long.write_text(20 * text_or_tinyshakespeare(None).read_text("utf-8"), "utf-8")
        for name, (config, changes) in DRY_RUNS.items():
            text = long if name == "22_mb" else None
            estimated = dry_run(config, changes, *([str(text)] if text else []))["seconds"]
            taken = train(config, changes, text=text)["wall_s"]
            table[name] = {"estimated_s": round(estimated, 1), "taken_s": taken}
            table[name]["ratio"] = round(estimated / taken, 2)
    return table


def shapes(nanogpt: Path | None = None) -> dict[str, Any]:
    """Measure training at the shapes of nanoGPT's GPU recipe: T 256, C 384, 6 layers, B 64."""
    fastest = peak()
    found: dict[str, Any] = {"peak_gflop_per_s": fastest}
    for name, (changes, options) in GPU_SHAPES.items():
        ours = _pace("shakespeare_gpu", changes)
        ours["share_of_peak"] = round(ours["gflop_per_s"] / fastest[ours["precision"]], 3)
        found[name] = ours
        if nanogpt:
            peer = NanoGPT(nanogpt, text_or_tinyshakespeare(None))
            theirs = peer.gpu_recipe_on_cpu(*options)
            theirs["ours_is_faster"] = round(ours["chars_per_s"] / theirs["chars_per_s"], 2)
            found[f"nanogpt_{name}"] = theirs
    return found


def _pace(config: str, changes: list[str]) -> dict[str, Any]:
    """Return pace, memory and FLOP/s of a config, as `gpt train --dry-run` measures them.

    FLOPs per character are counted as in PaLM (arXiv:2204.02311, appendix B): 6 for each weight of
    a matrix product, and 6 T (hs + vs) for each head, counting masked scores, too.
    """
    got = dry_run(config, changes)
    model, train_settings, parts = got["config"]["model"], got["config"]["train"], got["parameters"]
    weights = parts["attention"] + parts["mlp"] + parts["head"]
    heads = model["n_layer"] * model["n_head"]
    flops = 6 * weights + 6 * heads * model["T"] * (model["head_size"] + model["value_size"])
    step_s = got["costs"]["step"]["seconds"]
    chars_per_s = train_settings["batch_size"] * model["T"] / step_s
    return {
        "precision": got["precision"],
        "ms_per_step": round(1000 * step_s, 1),
        "chars_per_s": round(chars_per_s),
        "gflop_per_s": round(flops * chars_per_s / 1e9, 1),
        "peak_mib": round(got["peak_bytes"] / 2**20),
    }
