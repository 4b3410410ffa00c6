"""Operations of a training step."""

import time
from functools import partial
from itertools import count
from typing import Any

import torch

from bench.frame import in_turn, median_ms, median_ratio
from gpt.config.load import load_config
from gpt.distributed.ranks import SINGLE
from gpt.model.transformer import GPT
from gpt.training.optimizer import Muon, make_optimizers
from gpt.training.step import TrainStep

CPU = torch.device("cpu")
V = 65  # characters of tinyshakespeare
PRODUCTS = [(4096, 384, 1536), (4096, 1024, 1024), (2048, 2048, 2048)]  # rows, inner, columns


def peak() -> dict[str, int]:
    """Measure the fastest matrix product of this machine, in GFLOP/s."""
    rates = {}
    for dtype in (torch.float32, torch.bfloat16):
        fastest = 0.0
        for rows, inner, columns in PRODUCTS:
            a, b = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
            until = time.perf_counter() + 2  # some CPUs take seconds for one product in bfloat16
            while (began := time.perf_counter()) < until:
                a @ b
                took = time.perf_counter() - began
                fastest = max(fastest, 2 * rows * inner * columns / took / 1e9)
        rates[str(dtype).removeprefix("torch.")] = round(fastest)
    return rates


def optimizer() -> dict[str, float]:
    """Time a step of our Muon and of torch's Muon on shakespeare_cpu's blocks."""
    config = load_config("shakespeare_cpu", [])
    ours = make_optimizers(GPT(config.model, V), config.train)[0]
    assert isinstance(ours, Muon)
    for p in ours.parameters:
        p.grad = torch.randn_like(p)
    theirs = torch.optim.Muon(ours.parameters, lr=1e-3)
    taken = in_turn({"torch": theirs.step, "ours": lambda: ours.step(1.0)}, 7)
    return {f"{name}_ms": median_ms(each) for name, each in taken.items()}


def workers() -> dict[str, Any]:
    """Time a step that divides windows among threads, and a step that divides operations."""
    if torch.get_num_threads() == 1:
        return {"threads": 1}
    ids, table = torch.randint(V, (10**6,), dtype=torch.uint8).numpy(), dict[str, Any]()
    for name, changes in [
        ("quickstart", []),
        ("shakespeare_cpu", []),
        ("shakespeare_gpu", ["model.dropout=0"]),
    ]:
        config = load_config(name, [*changes, "device=cpu"])
        step, numbers = TrainStep(config, GPT(config.model, V), CPU, SINGLE, ids), count()
        own_workers = step.backward.workers

        def train(number_of_workers: int, step: Any = step, numbers: Any = numbers) -> None:
            step.backward.workers = number_of_workers
            step(next(numbers))

        ways = {"windows": partial(train, own_workers), "operations": partial(train, 1)}
        taken = in_turn(ways, 10, warmup=2)
        table[name] = {f"{way}_ms": median_ms(each) for way, each in taken.items()}
        table[name]["times_faster"] = median_ratio(taken["operations"], taken["windows"])
    return table
