"""Estimate the memory that training takes, before it is allocated."""

import math
from collections.abc import Callable

import torch

from gpt.config.schema import Config, ModelConfig
from gpt.device import select_precision
from gpt.distributed import SINGLE, Ranks
from gpt.evaluation.loss import ACCELERATOR_EVAL_LOGITS, EVAL_LOGITS
from gpt.evaluation.windows import ACCELERATOR_EVAL_CHARACTERS, EVAL_CHARACTERS
from gpt.memory import check_memory, free_bytes
from gpt.model.attention import stores_weights
from gpt.model.shapes import parameter_count
from gpt.training.linear_cross_entropy import fuses_head, logits_at_once
from gpt.training.workers import supports_threads, windows_at_once, worker_count

FLOAT_BYTES = 4  # bytes of a float32
LIBRARY_BYTES = 4e8  # bytes of torch and other libraries that training loads
MUON_COPIES = 3  # temporary memory of a Muon update, relative to the weights (measured)
# Measured size of activations as a multiple of `_activation_bytes`. The key is whether matrix
# products are bfloat16. On a GPU, the size is that of the tensors that autograd saves, plus 20 %.
CPU_ACTIVATIONS = {False: 1.0, True: 0.75}
ACCELERATOR_ACTIVATIONS = {False: 0.65, True: 0.375}
ACCELERATOR_EVALUATION = 0.45  # as ACCELERATOR_ACTIVATIONS, but for evaluations (H100)
HOST_PARTS = ("batch",)  # parts of `training_bytes` that are not in the memory of a GPU
MAX_MEMORY_PART = 0.8  # a config that gpt chooses takes at most this part of the free memory
ADVICE = (
    "use a smaller train.batch_size, model.T, model.C or model.n_layer, or a larger "
    "train.accumulation"
)


def check_training_memory(
    config: Config, vocabulary_size: int, device: torch.device, ranks: Ranks = SINGLE
) -> None:
    """Raise OutOfMemory if training would take more memory than is free.

    The ranks on this machine share its memory.
    """
    parts = training_bytes(config, vocabulary_size, device, ranks)
    if device.type == "cuda":
        on_host = {name: parts.pop(name) for name in HOST_PARTS}
        check_memory("training", on_host, ADVICE)
        check_memory(f"training on {device}", parts, ADVICE, torch.cuda.mem_get_info(device)[0])
    else:
        parts["libraries"] = LIBRARY_BYTES
        on_machine = {name: size * ranks.local_size for name, size in parts.items()}
        check_memory("training", on_machine, ADVICE)


def training_bytes(
    config: Config, vocabulary_size: int, device: torch.device, ranks: Ranks = SINGLE
) -> dict[str, float]:
    """Estimate the bytes on this rank by part, such as `weights`, within a factor of 1.5."""
    model, train, on_cpu = config.model, config.train, device.type == "cpu"
    K, V = model.ensemble, vocabulary_size
    workers = worker_count(config, device, ranks)
    is_threaded = supports_threads(config, device, ranks)
    members_at_once = min(K, torch.get_num_threads()) if is_threaded else 1
    if device.type == "cuda":  # a CUDA graph of each member keeps its memory
        members_at_once = K
    windows = math.ceil(train.batch_size / (train.accumulation * ranks.size))
    if on_cpu:
        windows = windows_at_once(windows, model.T, model.C, workers)
    fused = fuses_head(V, ranks)
    precision = select_precision(train.precision, device)
    bf16 = precision == torch.bfloat16
    per_character = _activation_bytes(model, model.n_layer + 1, 0 if fused else 4 * V)
    per_character *= (CPU_ACTIVATIONS if on_cpu else ACCELERATOR_ACTIVATIONS)[bf16]
    if stores_weights(device, precision, model.T):
        per_character += 2 * model.n_head * model.T * (model.n_layer + 1)
    head = 6 * max(logits_at_once(device), V) + FLOAT_BYTES * V * model.C if fused else 0
    characters = EVAL_CHARACTERS if on_cpu else ACCELERATOR_EVAL_CHARACTERS
    logits = EVAL_LOGITS if on_cpu else ACCELERATOR_EVAL_LOGITS
    scored = max(min(characters, logits // V), model.T)
    evaluation = scored * _activation_bytes(model, 1, (2 + K) * V)
    evaluation *= torch.get_num_threads() if on_cpu else ACCELERATOR_EVALUATION
    parameters = FLOAT_BYTES * parameter_count(model, V)
    update = MUON_COPIES * parameters / K if train.optimizer == "muon" else 0
    backward = windows * model.T * per_character + workers * head
    training = members_at_once * max(backward, update)
    return {
        "weights": parameters,
        "gradients": parameters * (1 if workers == 1 else workers + 1),
        "optimizer": 2 * parameters,
        # ids and token dropout of a batch
        "batch": 60 * K * train.batch_size * model.T,
        # evaluations run in other threads, which cannot reuse the memory that malloc keeps for the
        # training threads
        "activations": training + evaluation if on_cpu else max(training, evaluation),
    }


def fits(config: Config, vocabulary_size: int, device: torch.device, ranks: Ranks) -> bool:
    """Return whether training takes at most MAX_MEMORY_PART of the memory that is free now."""
    parts, free = training_bytes(config, vocabulary_size, device, ranks), free_bytes()
    free //= ranks.local_size
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        parts = {name: size for name, size in parts.items() if name not in HOST_PARTS}
    return sum(parts.values()) <= MAX_MEMORY_PART * free


def with_fewest_micro_batches(config: Config, fits: Callable[[Config], bool]) -> Config:
    """Return `config` with the fewest micro-batches for which `fits` is true, else unchanged."""
    B = config.train.batch_size
    for count in (n for n in range(1, B + 1) if B % n == 0):
        divided = config.changed(train={"accumulation": count}) if count > 1 else config
        if fits(divided):
            return divided
    return config


def _activation_bytes(model: ModelConfig, layers: int, logits: int) -> float:
    """Return the bytes of activations per character, for `layers` layers and `logits` logits."""
    queries, values = model.n_head * model.head_size, model.n_head * model.value_size
    layer = 21 * model.C + 6 * queries + 3 * values
    return FLOAT_BYTES * (layers * layer + 4 * model.C + logits)
