"""What ranks divide beside the batch: matrices to orthogonalise and, with FSDP, the model itself.

With `train.parallel` fsdp each rank holds some rows of every parameter, of its gradient and of what
the optimizers remember of it: a DTensor. A block is gathered while it is computed (Zhao et al.
2023, arXiv:2304.11277; `fully_shard` is its second version). So all ranks are to compute each
forward pass, and each gathering here, together. Without, a tensor is on every rank as a whole, and
most functions here are the identity.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gpt.config.schema import TrainConfig
from gpt.distributed import all_gather, mesh, rank, world_size
from gpt.errors import ConfigError

# --- a model in shards ---


def shards(config: TrainConfig) -> bool:
    """Whether ranks hold shards of the model; one process holds all of it."""
    return config.parallel == "fsdp" and world_size() > 1


def check_sharding(config: TrainConfig) -> None:
    """Raises ConfigError if ranks cannot train so on shards."""
    if not shards(config):
        return
    if config.batch_size < world_size() * config.accumulation:
        raise ConfigError(
            f"train.accumulation: expected, with train.parallel fsdp, a window in each micro-batch "
            f"for each of the {world_size()} ranks, got {config.accumulation} micro-batches of a "
            f"batch of {config.batch_size}; use fewer, or a larger train.batch_size"
        )
    refused = {
        "train.compile": (config.compile == "on", "auto or off"),
        "train.auto_batch": (config.auto_batch, "false"),
        "train.histograms": (config.histograms, "false"),
    }
    for key, (given, expected) in refused.items():
        if given:
            raise ConfigError(
                f"{key}: expected {expected} with train.parallel fsdp, which cannot do that; or "
                f"use train.parallel ddp"
            )


def device_to_build_on(config: TrainConfig, device: torch.device) -> torch.device:
    """Where a model is made: of one that is sharded, the device may hold no more than shards."""
    return torch.device("cpu") if shards(config) else device


def shard(model: nn.Module, blocks: Iterable[nn.Module], device: torch.device) -> None:
    """Leave on this rank, on `device`, its rows of each parameter; blocks are gathered one by one.

    The rest of the model is gathered together. All is given back after a forward pass, so that
    the parameters are shards whenever the model is not computing.
    """
    from torch.distributed.fsdp import fully_shard

    for part in (*blocks, model):
        fully_shard(part, mesh=mesh(device), reshard_after_forward=True)


def is_sharded(model: nn.Module) -> bool:
    """Whether this rank holds only some rows of its parameters."""
    return any(_is_shard(p) for p in model.parameters())


def _is_shard(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor, whose module takes time to import


def whole(tensor: Tensor) -> Tensor:
    """All rows of a tensor, gathered from all ranks, which are to call this together."""
    gathered: Tensor = tensor.full_tensor() if _is_shard(tensor) else tensor  # type: ignore[attr-defined]
    return gathered


def here(tensor: Tensor) -> Tensor:
    """The rows of a tensor that this rank holds; they share its memory."""
    local: Tensor = tensor.to_local() if _is_shard(tensor) else tensor  # type: ignore[attr-defined]
    return local


def rows_here(tensor: Tensor) -> tuple[int, int]:
    """The first of these rows, and the one after the last, as `torch.chunk` divides them."""
    count, ranks = len(tensor), world_size() if _is_shard(tensor) else 1
    of_each, i = -(-count // ranks), rank() if _is_shard(tensor) else 0
    return min(count, i * of_each), min(count, (i + 1) * of_each)


def matrices_here(parameter: Tensor, rows: Sequence[int]) -> Iterator[tuple[Tensor, slice]]:
    """Of each matrix, so many rows of a parameter: its rows on this rank, and which these are."""
    (first, last), start = rows_here(parameter), 0
    for count in rows:
        begin = max(first, start)
        end = max(begin, min(last, start + count))
        yield here(parameter)[begin - first : end - first], slice(begin - start, end - start)
        start += count


def array_of(tensor: Tensor) -> NDArray[np.float32]:
    """A tensor as an array; on a CPU it shares its memory.

    Of shards, all rows on rank 0, gathered from all ranks, and elsewhere an empty array.
    """
    if not _is_shard(tensor):
        return tensor.numpy(force=True)
    gathered = whole(tensor)
    return gathered.numpy(force=True) if rank() == 0 else np.empty(0, np.float32)


def fill(tensor: Tensor, array: NDArray[np.float32]) -> None:
    """Copy an array into a tensor; into a shard, its rows."""
    values = torch.from_numpy(array)
    if _is_shard(tensor):
        values = values[slice(*rows_here(tensor))]
    here(tensor).copy_(values)


# --- work in shares ---


def owners(costs: Sequence[int]) -> list[int]:
    """The rank that is to do each piece of work, so that all have about as much.

    The largest first, each to the rank that has the least (Graham 1969, longest processing time).
    """
    load, owner = [0] * world_size(), [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        owner[i] = load.index(min(load))
        load[owner[i]] += costs[i]
    return owner


def share_results(results: Sequence[Tensor], owner: Sequence[int]) -> None:
    """Let each tensor be, in place, what it is on the rank that owns it; in one flat buffer."""
    if world_size() == 1 or not results:
        return
    by_rank: list[list[Tensor]] = [[] for _ in range(world_size())]
    for tensor, i in zip(results, owner, strict=True):
        by_rank[i].append(tensor)
    sizes = [sum(t.numel() for t in tensors) for tensors in by_rank]
    mine = results[0].new_zeros(max(sizes))
    if tensors := by_rank[rank()]:
        torch.cat([t.flatten() for t in tensors], out=mine[: sizes[rank()]])
    for i, (tensors, values) in enumerate(zip(by_rank, all_gather(mine), strict=True)):
        if i != rank():
            parts = torch.split_with_sizes(values[: sizes[i]], [t.numel() for t in tensors])
            for tensor, flat in zip(tensors, parts, strict=True):
                tensor.copy_(flat.view_as(tensor))
