"""Operators of torch that are not public: which are in use, and that their substitutes equal them.

A new release of torch may lack or change any of them.
"""

import ast
from pathlib import Path

import pytest
import torch

from gpt import torch_private
from gpt.cuda_graph import replayed
from gpt.training.optimizer import AdamW
from tests.conftest import drawn
from tests.pretend import two_gpus

PACKAGE = Path(__file__).parents[1] / "gpt"
IN_TORCH_PRIVATE = {
    "torch.ops.mkldnn._linear_pointwise",
    "torch.ops.mkldnn._is_mkldnn_bf16_supported",
    "torch._fused_adamw_",
    "torch._C._cuda_clearCublasWorkspaces",
}
ELSEWHERE = {
    "torch._foreach_add_",
    "torch._foreach_sub_",
    "torch._foreach_mul_",
    "torch._foreach_lerp",
    "torch._foreach_lerp_",
}


def private_names(path: Path) -> set[str]:
    """Names such as `torch._C._f` in a file, also those that are imported."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            first, *others = name.split(".")
            last = others[-1] if others else ""
            if first == "torch" and any(other.startswith("_") for other in others):
                found |= set() if last.startswith("__") or last == "_C" else {name}
    return found


def test_private_operators_stand_in_one_file():
    own = PACKAGE / "torch_private.py"
    assert private_names(own) == IN_TORCH_PRIVATE
    others = (private_names(path) for path in PACKAGE.rglob("*.py") if path != own)
    assert set().union(*others) == ELSEWHERE


def test_the_linear_layer_with_relu_is_that_of_two_operations(monkeypatch):
    x, weight, bias = drawn(3, 7, 13, seed=1), drawn(11, 13, seed=2), drawn(11, seed=3)
    results = []
    for is_private in (True, False):
        monkeypatch.setattr(torch_private, "_is_eager_bf16", lambda x, own=is_private: own)
        monkeypatch.setattr(torch_private, "_onednn_has_bf16", lambda: True)
        results.append(torch_private.linear_relu(x, weight, bias))
    assert (results[0] == 0).any()
    torch.testing.assert_close(*results)


def test_bfloat16_needs_no_bfloat16_of_onednn():
    """On a CPU with AVX2 only, oneDNN's operator raised an error: it has no bfloat16 there."""
    x, weight, bias = drawn(3, 7, 13, seed=1), drawn(11, 13, seed=2), drawn(11, seed=3)
    result = torch_private.linear_relu(*(t.bfloat16() for t in (x, weight, bias)))
    expected = (x @ weight.T + bias).relu()
    torch.testing.assert_close(result.float(), expected, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("skips", [None, [False, True, False, False]])
def test_adamw_without_its_kernel_is_adamw_with_it(monkeypatch, skips):
    """Check that a skipped update with NaN as its gradient changes nothing."""
    tensors = []
    for has_kernel in (True, False):
        if not has_kernel:
            monkeypatch.delattr(torch, "_fused_adamw_")
        parameters = [torch.nn.Parameter(drawn(*shape, seed=1)) for shape in [(5, 3), (7,)]]
        adamw = AdamW(parameters, 0.3, (0.8, 0.95), weight_decay=0.2)
        adamw.waits = False
        for step in range(4):
            skip = skips and skips[step]
            for i, p in enumerate(parameters):
                p.grad = drawn(*p.shape, seed=100 * i + step) / (0 if skip else 1)
            adamw.step(torch.tensor(1 / (1 + step)), None if skips is None else torch.tensor(skip))
        tensors.append([*parameters, *(t for each in adamw.state.values() for t in each)])
    torch.testing.assert_close(*tensors)
    assert all(t.isfinite().all() for t in tensors[0])


def test_no_graph_is_recorded_if_cublas_could_free_its_memory(monkeypatch):
    with two_gpus() as cuda:
        monkeypatch.setattr("gpt.cuda_graph.can_clear_cublas_workspaces", lambda: False)
        step = replayed(lambda: torch.ones(3), torch.device("cuda:1"))
        for _ in range(5):
            assert step().equal(torch.ones(3))
    assert cuda.calls == []
