"""nanoGPT, run from a checkout."""

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# the recipes of nanoGPT's README for shakespeare_char
CPU_RECIPE = [
    *("--device=cpu", "--compile=False", "--eval_iters=20", "--log_interval=1", "--dropout=0.0"),
    *("--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128"),
    *("--max_iters=2000", "--lr_decay_iters=2000"),
]
GPU_RECIPE_HERE = [
    *("--device=cpu", "--compile=False", "--eval_iters=1", "--log_interval=1"),
    "--eval_interval=1000000",
]
CONFIG = "config/train_shakespeare_char.py"

SCORE = """
import sys, torch
sys.path.insert(0, ".")
from model import GPT, GPTConfig
from gpt.evaluation.windows import scored_windows
from gpt.text.corpus import load_corpus
from gpt.reading.sources import open_source
val = load_corpus(open_source(sys.argv[1])).val  # sorted characters, so nanoGPT's ids
for path in sys.argv[2:]:
    saved = torch.load(path, weights_only=True)
    model = GPT(GPTConfig(**saved["model_args"])).eval()
    model.load_state_dict(saved["model"])
    with torch.no_grad():
        windows = scored_windows(val, 64)
        total = sum(y.numel() * model(x, y.contiguous())[1].item() for x, y in windows)
    print("val", total / (len(val) - 1))
"""

UNTRAINED = """
import os, sys, torch
from model import GPT, GPTConfig
T, C, n_layer, n_head = map(int, sys.argv[1:])
sizes = dict(block_size=T, n_embd=C, n_layer=n_layer, n_head=n_head, vocab_size=65, bias=False)
model = GPT(GPTConfig(**sizes))
os.makedirs("out-untrained", exist_ok=True)
config = {"dataset": "shakespeare_char"}
saved = {"model": model.state_dict(), "model_args": sizes, "config": config}
torch.save(saved, "out-untrained/ckpt.pt")
"""


class NanoGPT:
    """A checkout of nanoGPT, copied to a scratch folder, with its character data prepared."""

    def __init__(self, checkout: Path, text: Path) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self.folder = Path(self._scratch.name) / "nanoGPT"
        shutil.copytree(checkout, self.folder, ignore=shutil.ignore_patterns(".git", "out-*"))
        self.text = text.resolve()
        data = self.folder / "data" / "shakespeare_char"
        shutil.copy(self.text, data / "input.txt")
        self._python(str(data / "prepare.py"))

    def _python(self, *arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if done.returncode:  # probably a package of nanoGPT's README is not installed
            sys.exit(f"nanoGPT failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
        return done.stdout

    def prepare(self, text: Path) -> float:
        """Return the seconds that nanoGPT's prepare.py takes for a text, as a whole process."""
        data = self.folder / "data" / "shakespeare_char"
        shutil.copy(text, data / "input.txt")
        began = time.perf_counter()
        self._python(str(data / "prepare.py"))
        return time.perf_counter() - began

    def cpu_recipe_in(self, seconds: float) -> dict[str, Any]:
        """Run the CPU recipe with the iterations that fit into `seconds`, timed on 40 iterations.

        The run estimates its losses eight times, also at the end, so that the last weights can be
        the best. An estimate takes 40 forward passes, each a third of an iteration.
        """
        began = time.perf_counter()
        short = ("--max_iters=40", "--lr_decay_iters=40", "--eval_interval=1000")
        out = self._python("train.py", CONFIG, *CPU_RECIPE, *short)
        wall = time.perf_counter() - began
        times = [float(ms) / 1000 for ms in re.findall(r"time ([\d.]+)ms", out)]
        iteration_s = statistics.median(times)
        remaining_s = seconds - (wall - sum(times[1:])) - 8 * 40 / 3 * iteration_s
        steps = max(1, int(remaining_s / iteration_s / 8)) * 8
        lengths = (f"--max_iters={steps}", f"--lr_decay_iters={steps}")
        return self.cpu_recipe(*lengths, f"--eval_interval={steps // 8}")

    def cpu_recipe(self, *options: str) -> dict[str, Any]:
        """Run the CPU recipe as a whole process; evaluate its best weights as this project does."""
        began = time.perf_counter()
        out = self._python("train.py", CONFIG, *CPU_RECIPE, *options)
        wall = time.perf_counter() - began
        times = [float(ms) for ms in re.findall(r"time ([\d.]+)ms", out)]
        scored = self._python("-c", SCORE, str(self.text), "out-shakespeare-char/ckpt.pt")
        estimates = re.findall(r"val loss ([\d.]+)", out)
        return {
            "wall_s": round(wall, 1),
            "ms_per_step": statistics.median(times),
            "val_loss_by_our_rule": round(float(scored.split()[-1]), 4),
            "val_loss_by_its_own_estimate": float(estimates[-1]),
        }

    def gpu_recipe_on_cpu(self, *options: str, steps: int = 3) -> dict[str, Any]:
        """Return characters/s at the GPU recipe's shapes (T 256, C 384, B 64), on this CPU."""
        out = self._python("train.py", CONFIG, *GPU_RECIPE_HERE,
                           f"--max_iters={steps}", *options)  # fmt: skip
        times = [float(ms) for ms in re.findall(r"time ([\d.]+)ms", out)]
        ms = statistics.median(times[1:])  # the first includes an evaluation
        return {"ms_per_step": ms, "chars_per_s": round(64 * 256 / ms * 1000, 1)}

    def sample(self, shape: dict[str, int], characters: int) -> float:
        """Return the seconds that nanoGPT's sample.py takes for a sample of an untrained model."""
        # sample.py imports tiktoken, which characters do not need
        (self.folder / "tiktoken.py").touch()
        sizes = (shape["T"], shape["C"], shape["n_layer"], shape["n_head"])
        self._python("-c", UNTRAINED, *map(str, sizes))
        began = time.perf_counter()
        self._python("sample.py", "--out_dir=out-untrained", "--device=cpu", "--dtype=float32",
                     "--num_samples=1", f"--max_new_tokens={characters}")  # fmt: skip
        return time.perf_counter() - began
