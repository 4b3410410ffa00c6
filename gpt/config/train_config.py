"""Settings of training: batches, optimizer, schedule, evaluation, checkpoints, fine-tuning."""

import math
import re
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from gpt.config.section import (
    MAX_COUNT,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    TextName,
    is_count,
    setting,
)

MUON_RATIO = 5  # default peak learning rate of Muon / peak learning rate of AdamW
MAX_RATE = 1000.0  # learning rate or weight decay; training diverges long before


def _part_of_the_run(period: object) -> object:
    is_part = isinstance(period, str) and re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})? %", period)
    if not is_count(period) and not (is_part and 0 < float(str(period)[:-2]) <= 100):
        raise ValueError("expected a number of steps, or a part of the run such as `10 %`")
    return period


def _minutes_or_steps(period: object) -> object:
    is_minutes = isinstance(period, str) and re.fullmatch(r"[1-9][0-9]{0,5} min", period)
    if not is_count(period) and not is_minutes:
        raise ValueError("expected a number of steps, or of minutes such as `10 min`")
    return period


def _plans(plans: object) -> object:
    if not isinstance(plans, list | tuple) or not all(
        isinstance(plan, list | tuple)
        and len(plan) == 2
        and (plan[0] == 0 or is_count(plan[0]))
        and is_count(plan[1])
        for plan in plans
    ):
        raise ValueError("expected pairs of a step and a number of steps, [[0, 900], [400, 850]]")
    return tuple(map(tuple, plans))


def _first_steps(given: dict[str, Any]) -> int:
    """Return `train.steps` as first planned; the warmup depends on it."""
    plans: tuple[tuple[int, int], ...] = given["plans"]
    return plans[0][1] if plans else int(given["steps"])


LearningRate = Annotated[float, Field(gt=0, le=MAX_RATE)]
PartOrSteps = Annotated[int | str, BeforeValidator(_part_of_the_run)]
Period = Annotated[int | str, BeforeValidator(_minutes_or_steps)]
Plans = Annotated[tuple[tuple[NonNegativeInt, PositiveInt], ...], BeforeValidator(_plans)]


class TrainConfig(Section):
    """The training loop."""

    steps: PositiveInt = setting(
        2000,
        "optimizer steps of the whole run",
        heading="training: steps and batches",
        resumable=True,
        fine_tuning="inherited",
        affects_choice=True,
        other_names="epochs iterations iters max_epochs max_iterations max_iters n_epochs "
        "num_epochs num_iters num_steps num_train_epochs train_steps",
    )
    minutes: Annotated[PositiveFloat, Field(le=MAX_COUNT)] | None = setting(
        None,
        "time for the whole command; train.steps becomes the number of steps that fit, and is "
        "planned again when the speed changes; null = train.steps as set",
        resumable=True,
        affects_choice=True,
    )
    max_steps: PositiveInt | None = setting(
        None,
        "largest train.steps that train.minutes may plan; null = as many as fit",
        resumable=True,
        affects_choice=True,
    )
    plans: Plans = setting(
        (),
        "plans of train.minutes: pairs of a step and of train.steps from that step on; a run that "
        "has plans and no train.minutes repeats them",
        resumable=True,
        affects_choice=True,
    )
    batch_size: PositiveInt = setting(
        12,
        "B: windows of T characters in one step",
        fine_tuning="inherited",
        other_names="bs batch micro_batch_size per_device_train_batch_size",
    )
    first_window: PositiveInt | None = setting(
        None,
        "a shorter context for the first five sixths of the steps, with the same number of "
        "characters per step; null = model.T",
        fine_tuning="inherited",
    )
    accumulation: PositiveInt = setting(
        1,
        "micro-batches of a step (gradient accumulation), to save memory",
        fine_tuning="inherited",
        other_names="grad_accum gradient_accumulation_steps",
    )
    parallel: Literal["ddp", "fsdp"] = setting(
        "ddp",
        "what each of torchrun's ranks holds: the whole model, or a shard of it, for "
        "models larger than a device; alike for one process",
        resumable=True,
    )
    auto_batch: bool = setting(
        False,
        "when out of memory, whether to double the accumulation and continue",
        resumable=True,
    )

    optimizer: Literal["muon", "adamw"] = setting(
        "muon",
        "Muon for the matrices of the blocks and AdamW for the rest, or AdamW for all",
        heading="training: optimizer",
        fine_tuning="inherited",
    )
    learning_rate: LearningRate = setting(
        4e-3,
        "peak learning rate of AdamW; changing it also scales train.muon_learning_rate",
        fine_tuning="scaled",
        other_names="lr max_lr peak_lr",
    )
    muon_learning_rate: LearningRate = setting(
        lambda given: min(MUON_RATIO * given["learning_rate"], MAX_RATE),
        f"peak learning rate of Muon; null = {MUON_RATIO} x train.learning_rate",
        fine_tuning="scaled",
    )
    weight_decay: Annotated[float, Field(ge=0, le=MAX_RATE)] = setting(
        0.1, "decoupled weight decay of matrices", fine_tuning="inherited", other_names="wd"
    )
    beta1: Fraction = setting(
        0.9, "AdamW: decay of the running mean of the gradient", fine_tuning="inherited"
    )
    beta2: Fraction = setting(
        0.99, "AdamW: decay of the running mean of the squared gradient", fine_tuning="inherited"
    )
    grad_clip: NonNegativeFloat = setting(
        1.0,
        "largest norm of the gradient; a longer gradient is scaled down to it; 0 = no clipping",
        fine_tuning="inherited",
        other_names="clip gradient_clip_val max_grad_norm max_norm",
    )

    warmup_steps: NonNegativeInt = setting(
        lambda given: min(100, _first_steps(given) // 10),
        "steps of linear warmup; null = a tenth of train.steps, at most 100",
        heading="training: learning rate schedule",
        other_names="warmup warmup_iters",
    )
    rewarm_steps: NonNegativeInt = setting(
        0,
        "steps of linear warmup when a finished run is resumed for more minutes, or "
        "a resume changes train.steps, from the last learning rate to the new schedule's",
        resumable=True,
    )
    decay: Literal["cosine", "linear"] = setting(
        "linear",
        "shape of the decay from the peak learning rate to the last",
        fine_tuning="inherited",
    )
    min_learning_rate: NonNegativeFloat = setting(
        1e-5,
        "last learning rate of AdamW, reached by linear decay; that of Muon is in proportion",
        fine_tuning="scaled",
        other_names="min_lr",
    )

    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto",
        "number format of matrix products; auto: bf16 if the processor supports it, else fp32",
        heading="training: precision and compilation",
        affects_choice=True,
        other_names="dtype",
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto", "torch.compile; auto: on for CUDA, if it works", resumable=True
    )

    eval_every: PartOrSteps = setting(
        lambda given: 250 if given["minutes"] is None else "10 %",
        "steps between two evaluations, or a part of the run such as 10 %; null = 250, with "
        "train.minutes 10 %",
        heading="training: evaluation, logging, checkpoints",
        resumable=True,
        other_names="eval_interval eval_steps",
    )
    log_every: PositiveInt = setting(
        10,
        "steps between two records of the train loss",
        resumable=True,
        other_names="log_interval logging_steps",
    )
    sample_length: NonNegativeInt = setting(
        200, "characters to sample at each evaluation; 0 = no sample", resumable=True
    )
    histograms: bool = setting(
        False, "whether TensorBoard gets histograms of weights and gradients", resumable=True
    )
    eval_characters: PositiveInt | None = setting(
        None,
        "characters of the val split, evenly spread, that are scored at each evaluation but the "
        "last, which scores all; null = all",
        other_names="eval_iters",
    )
    checkpoint_every: Period = setting(
        lambda given: 250 if given["minutes"] is None else "1 min",
        "steps between two checkpoints, or minutes such as 10 min; null = 250, with "
        "train.minutes 1 min",
        resumable=True,
        other_names="save_every save_interval save_steps",
    )
    keep_checkpoints: PositiveInt = setting(
        2, "number of newest checkpoints to keep; the best is kept as well", resumable=True
    )

    stop_at_val_loss: PositiveFloat | None = setting(
        None,
        "stop when the val loss is this or less; null = do not",
        heading="training: early stopping",
        resumable=True,
    )
    patience: PositiveInt | None = setting(
        None,
        "stop after this many evaluations without a new best; null = do not",
        resumable=True,
        other_names="early_stopping",
    )

    distill: TextName | None = setting(
        None,
        "a run, as a folder or a name in runs/, whose predicted probabilities are targets beside "
        "the characters; null = only the characters",
        heading="training: distillation",
        resumable=True,  # the model is compared by its hash
        affects_choice=True,
    )
    distill_weight: Annotated[float, Field(ge=0, le=1)] = setting(
        0.7, "weight of those targets in the loss; the rest is that of the characters"
    )

    init_from: TextName | None = setting(
        None,
        "a run to fine-tune: training starts with the weights of its best checkpoint, and its "
        "shape, steps, batches and optimizer are the defaults; null = new weights",
        heading="training: fine-tuning",
        affects_choice=True,
    )
    freeze: NonNegativeInt = setting(
        0,
        "with train.init_from, how many blocks, the first ones, are not trained; the "
        "embeddings are, as new characters need them",
    )

    @model_validator(mode="after")
    def _check_plans(self) -> Self:
        planned_at = [step for step, _ in self.plans]
        if planned_at and planned_at[0] != 0:
            raise ValueError(f"train.plans: expected the first at step 0, got {planned_at[0]}")
        for step, after in pairwise(planned_at):
            if after <= step:
                raise ValueError(f"train.plans: expected rising steps, got {after} after {step}")
        for step, steps in self.plans:
            if steps <= step:
                raise ValueError(
                    f"train.plans: expected at step {step} a run of more steps, got {steps}"
                )
        if self.plans and self.plans[-1][1] != self.steps:
            raise ValueError(
                f"train.plans: expected the last to be of train.steps ({self.steps}), got "
                f"{self.plans[-1][1]}; for another number of steps, leave train.plans out"
            )
        return self

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        steps = _first_steps(vars(self))
        if self.warmup_steps > steps:
            raise ValueError(
                f"train.warmup_steps: expected at most train.steps ({steps}), got "
                f"{self.warmup_steps}"
            )
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"train.min_learning_rate: expected at most train.learning_rate "
                f"({self.learning_rate}), got {self.min_learning_rate}"
            )
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"train.accumulation: expected a divisor of train.batch_size "
                f"({self.batch_size}), got {self.accumulation}"
            )
        return self

    def unused_settings(self) -> dict[str, str]:
        """Return the settings that have no effect beside the others, each with advice."""
        max_steps = MAX_COUNT if self.max_steps is None else self.max_steps
        every = self.eval_every
        part = float(every[:-2]) / 100 if isinstance(every, str) else every / self.steps
        evaluations = math.ceil(1 / part)
        unused = {}
        if max_steps < MAX_COUNT and self.minutes is None and not self.plans:
            unused["train.max_steps"] = (
                "it limits the steps of a run of some minutes; set --minutes, or train.steps "
                "instead"
            )
        if self.warmup_steps > max_steps:
            unused["train.warmup_steps"] = (
                f"{self.warmup_steps} steps of warmup are more than train.max_steps ({max_steps}) "
                f"allows; set fewer"
            )
        if self.optimizer == "adamw":
            unused["train.muon_learning_rate"] = (
                "train.optimizer is adamw; set train.learning_rate instead"
            )
        if self.distill is None:
            unused["train.distill_weight"] = (
                "there is no train.distill; name the run to distill, or leave it out"
            )
        if self.patience is not None and self.patience > evaluations:
            unused["train.patience"] = (
                f"the run has {evaluations} evaluations after the first, fewer than "
                f"{self.patience}; set a smaller train.patience or train.eval_every"
            )
        return unused
