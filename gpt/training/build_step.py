"""Select how a model is trained: plain, threaded, with a fused head, compiled, or on ranks."""

from typing import Any

import torch

from gpt.config.schema import Config
from gpt.device import compile_model, computing_with
from gpt.distributed.ddp import data_parallel
from gpt.distributed.ranks import Ranks
from gpt.model.ensemble import LanguageModel, members_of
from gpt.model.transformer import GPT
from gpt.seeds import member_seed
from gpt.text.vocabulary import Ids, Vocabulary
from gpt.training.batch_loss import BatchLoss, fuses_head
from gpt.training.ensemble_step import EnsembleStep, Update
from gpt.training.gradients import (
    PlainBackward,
    ThreadedBackward,
    takes_threads,
    threads_each,
    worker_count,
)
from gpt.training.step import TrainStep
from gpt.training.teacher import Teacher


def build_step(
    config: Config,
    model: LanguageModel,
    device: torch.device,
    ranks: Ranks,
    ids: Ids,
    vocabulary: Vocabulary | None = None,
    teacher: Teacher | None = None,
) -> Update:
    """Return what updates the model: a TrainStep, or an EnsembleStep with one for each member.

    Args:
        config: the settings of the run.
        model: the model, on `device`. Its Dropout modules get a generator of the run.
        device: where to compute.
        ranks: the processes that share each batch.
        ids: the train split.
        vocabulary: the vocabulary, if the loss is to count characters with the unknown id.
        teacher: the model to distill, if there is one.
    """
    if isinstance(model, GPT):
        return build_train_step(config, model, device, ranks, ids, vocabulary, teacher)
    threads = torch.get_num_threads()
    each = threads_each(threads, config, device, ranks)
    with computing_with(each):
        members = [
            build_train_step(
                member_config(config, m), member, device, ranks, ids, vocabulary, teacher
            )
            for m, member in enumerate(members_of(model))
        ]
    side_by_side = takes_threads(config, device, ranks)
    return EnsembleStep(model, members, threads, each, side_by_side=side_by_side)


def member_config(config: Config, member: int) -> Config:
    """Return the config of a run that trains this member alone, counted from 0."""
    model = config.model.model_copy(update={"ensemble": 1})
    seed = member_seed(config.seed, member)
    return config.model_copy(update={"seed": seed, "model": model})


def build_train_step(
    config: Config,
    model: GPT,
    device: torch.device,
    ranks: Ranks,
    ids: Ids,
    vocabulary: Vocabulary | None = None,
    teacher: Teacher | None = None,
) -> TrainStep:
    """Return the step of one model; for the arguments see `build_step`."""
    # 1. The loss: without logits for a large vocabulary on a CPU, else from the logits.
    fused = teacher is None and fuses_head(config, model.head.out_features, device, ranks)
    loss = BatchLoss(config, model, device, teacher, fused=fused)
    # 2. The backward pass: workers on a CPU, if they can be used, else plain.
    backward: PlainBackward | ThreadedBackward
    if worker_count(config, device, ranks) > 1:
        parameters, threads = [*model.parameters()], torch.get_num_threads()
        backward = ThreadedBackward(loss, parameters, config.model.C, threads)
    else:
        backward = PlainBackward(loss, config.model.C, divides=device.type == "cpu")
    step = TrainStep(config, ranks, ids, vocabulary, backward)

    # 3. The model is compiled and wrapped, and both need a first pass with batches of each shape.
    def rehearse(forward: Any) -> None:
        loss.forward = forward
        step.rehearse()

    compiled = compile_model(model, config.train.compile, device, rehearse)
    loss.forward = data_parallel(compiled, ranks, rehearse)
    return step
