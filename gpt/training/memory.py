"""The memory that training takes, from the shapes of its config alone."""

import math

import torch

from gpt.config.schema import Config, ModelConfig
from gpt.device import select_precision
from gpt.distributed import local_world_size, world_size
from gpt.evaluation.loss import EVAL_LOGITS
from gpt.memory import check_memory
from gpt.model.shapes import parameter_count, parameter_shapes
from gpt.sharding import shards
from gpt.text.batches import EVAL_CHARACTERS
from gpt.training.gradients import takes_threads, windows_at_once, worker_count
from gpt.training.linear_cross_entropy import fuses_head, head_bytes
from gpt.training.teacher import Teacher

FLOAT = 4  # bytes
LIBRARIES = 4e8  # bytes of torch and the others, most of them not yet loaded
ADVICE = (
    "use a smaller train.batch_size, model.T, model.C or model.n_layer, a larger "
    "train.accumulation, or train.auto_batch=true"
)


def check_training_memory(
    config: Config,
    vocabulary_size: int,
    device: torch.device,
    teacher: Teacher | None = None,
) -> None:
    """Raises OutOfMemory if training by this config would take more memory than is free.

    The weights of the teacher take some of it already.
    """
    learnt_from = teacher.model.config if teacher else None
    parts = training_bytes(config, vocabulary_size, device, learnt_from)
    if device.type == "cuda":
        in_memory = ["batch", "checkpoint"] if shards(config.train) else ["batch"]
        check_memory("training", {name: parts.pop(name) for name in in_memory}, ADVICE)
        check_memory(f"training on {device}", parts, ADVICE, torch.cuda.mem_get_info(device)[0])
    else:
        parts |= {"libraries": LIBRARIES}
        of_ranks = {name: size * local_world_size() for name, size in parts.items()}
        check_memory("training", of_ranks, ADVICE)


def training_bytes(
    config: Config,
    vocabulary_size: int,
    device: torch.device,
    teacher: ModelConfig | None = None,
) -> dict[str, float]:
    """Bytes that training takes at most, by part: an estimate, rather too high than too low."""
    model, train = config.model, config.train
    parameters, K = parameter_count(model, vocabulary_size), model.ensemble
    workers = worker_count(config, device)
    gradients = 1 if workers == 1 else workers + 1  # of each parameter
    held, gathered = float(parameters), 0
    if shards(train):  # two blocks, and what is in none, are gathered at a time
        held /= world_size()
        shapes = parameter_shapes(model, vocabulary_size).items()
        in_blocks = sum(math.prod(shape) for name, shape in shapes if "blocks." in name)
        gathered = parameters - in_blocks + 2 * in_blocks // model.n_layer
    side_by_side = takes_threads(config, device)
    members_at_once = min(K, torch.get_num_threads()) if side_by_side else 1
    at_once = train.accumulation * world_size()
    B = 1 if train.auto_batch else -(-train.batch_size // at_once)
    on_cpu = device.type == "cpu"
    bf16 = select_precision(train.precision, device) == torch.bfloat16
    explicit = (on_cpu and bf16 and model.T <= 512) or model.attention_dropout > 0
    divides = on_cpu and not shards(train)
    characters = model.T * (windows_at_once(B, model.T, model.C, workers) if divides else B)
    at_once = max(min(EVAL_CHARACTERS, EVAL_LOGITS // vocabulary_size), model.T)
    scored = at_once * (torch.get_num_threads() if on_cpu else 1)
    fuses = teacher is None and fuses_head(config, vocabulary_size, device)
    logits = 0 if fuses else vocabulary_size  # of each character
    in_head = workers * head_bytes(model.C, vocabulary_size) if fuses else 0
    in_training = activation_bytes(model, logits, explicit=explicit)
    if teacher is not None:
        in_training += inference_bytes(teacher, vocabulary_size, explicit=explicit)
    training = members_at_once * (characters * in_training + in_head)
    evaluation = scored * inference_bytes(model, vocabulary_size, explicit=False)
    return {
        "weights": FLOAT * (held + gathered),
        "gradients": FLOAT * (held * gradients + gathered),
        "optimizer": 2 * FLOAT * held,
        "checkpoint": 3 * FLOAT * parameters,  # as it is written
        "batch": 60 * K * train.batch_size * model.T,  # ids, places, token dropout; and the next's
        # other threads evaluate than train, and malloc keeps for each thread what that one freed
        "activations": training + evaluation if on_cpu else max(training, evaluation),
    }


def activation_bytes(model: ModelConfig, logits: int, *, explicit: bool) -> float:
    """Bytes that the forward pass keeps of each character for the backward pass.

    `logits`: how many of a character, none if the head and the loss are one. `explicit`: the
    attention weights, too, which the fused kernel never holds.
    """
    scores = (4 if model.attention_dropout else 2) * model.n_head * model.T if explicit else 0
    # one layer more: the gradients of the one at work
    layers = (model.n_layer + 1) * (_layer_numbers(model) + scores)
    return FLOAT * (layers + 4 * model.C + 4 * logits)


def inference_bytes(model: ModelConfig, vocabulary_size: int, *, explicit: bool) -> float:
    """Bytes that a forward pass without a backward pass takes for each character."""
    K = model.ensemble
    logits = 4 if K == 1 else 7 + K  # each member's, and their mean
    scores = 2 * model.n_head * model.T if explicit else 0
    return FLOAT * (_layer_numbers(model) + scores + 4 * model.C + logits * vocabulary_size)


def _layer_numbers(model: ModelConfig) -> int:
    """Of a character in a layer: the stream, LayerNorms, MLP; queries, keys; values."""
    queries, values = model.n_head * model.head_size, model.n_head * model.value_size
    wide, keys = 28 if model.dropout else 21, 7 if model.key_offset else 6
    return wide * model.C + keys * queries + 3 * values
