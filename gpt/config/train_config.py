"""Settings of training: batches, optimizer, schedule, evaluation, checkpoints, fine-tuning."""

import math
import re
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from gpt.config.section import (
    MAX_COUNT,
    ConfigSection,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TextName,
    inherited,
    is_count,
    resumable,
    setting,
)

MUON_RATIO = 5  # default peak learning rate of Muon / peak learning rate of AdamW
MAX_RATE = 1000.0  # learning rate or weight decay; training diverges long before


def _part_or_steps(period: object) -> object:
    is_part = isinstance(period, str) and re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})? %", period)
    if not is_count(period) and not (is_part and 0 < float(str(period)[:-2]) <= 100):
        raise ValueError("expected a number of steps, or a part of the run such as `10 %`")
    return period


def _minutes_or_steps(period: object) -> object:
    is_minutes = isinstance(period, str) and re.fullmatch(r"[1-9][0-9]{0,5} min", period)
    if not is_count(period) and not is_minutes:
        raise ValueError("expected a number of steps, or of minutes such as `10 min`")
    return period


def _plans(plans: Any) -> object:
    """Check plans on their own: pairs of numbers, from step 0 on, in the order of their steps."""
    is_list = isinstance(plans, list | tuple)
    pairs = [tuple(plan) for plan in plans if isinstance(plan, list | tuple)] if is_list else []
    if not (
        is_list
        and len(pairs) == len(plans)
        and all(len(pair) == 2 and all(n == 0 or is_count(n) for n in pair) for pair in pairs)
        and all(step < steps for step, steps in pairs)
        and all(step < after for (step, _), (after, _) in pairwise(pairs))
        and all(step == 0 for step, _ in pairs[:1])
    ):
        raise ValueError(
            "expected pairs of a step and a larger number of steps, the first at step 0, such as "
            "[[0, 900], [400, 850]]"
        )
    return tuple(pairs)


def _first_steps(given: dict[str, Any]) -> int:
    """Return `train.steps` as first planned; the warmup depends on it."""
    plans: tuple[tuple[int, int], ...] = given["plans"]
    return plans[0][1] if plans else int(given["steps"])


LearningRate = Annotated[float, Field(gt=0, le=MAX_RATE)]
Plans = Annotated[tuple[tuple[NonNegativeInt, PositiveInt], ...], BeforeValidator(_plans)]


class TrainConfig(ConfigSection):
    """The training loop."""

    steps: PositiveInt = resumable(
        2000,
        "optimizer steps of the whole run",
        group="training: steps and batches",
        fine_tuning="inherited",
        affects_choice=True,
        aliases="epochs iterations iters max_epochs max_iterations max_iters n_epochs "
        "num_epochs num_iters num_steps num_train_epochs train_steps",
    )
    minutes: Annotated[PositiveFloat, Field(le=MAX_COUNT)] | None = resumable(
        None,
        "time for the whole command; train.steps becomes the number of steps that fit, and is "
        "planned again when the speed changes; null = train.steps as set",
        affects_choice=True,
    )
    max_steps: PositiveInt | None = resumable(
        None,
        "largest train.steps that train.minutes may plan; null = as many as fit",
        affects_choice=True,
    )
    plans: Plans = resumable(
        (),
        "plans of train.minutes: pairs of a step and of train.steps from that step on; a run that "
        "has plans and no train.minutes repeats them",
        affects_choice=True,
    )
    batch_size: PositiveInt = inherited(
        12,
        "B: windows of T characters in one step",
        aliases="bs batch micro_batch_size per_device_train_batch_size",
    )
    first_window: PositiveInt | None = inherited(
        None,
        "a shorter context for the first five sixths of the steps, with the same number of "
        "characters per step; null = model.T",
    )
    accumulation: PositiveInt = inherited(
        1,
        "micro-batches of a step (gradient accumulation), to save memory",
        aliases="grad_accum gradient_accumulation_steps",
    )

    optimizer: Literal["muon", "adamw"] = inherited(
        "muon",
        "Muon for the matrices of the blocks and AdamW for the rest, or AdamW for all",
        group="training: optimizer",
    )
    learning_rate: LearningRate = setting(
        4e-3,
        "peak learning rate of AdamW; changing it also scales train.muon_learning_rate",
        fine_tuning="scaled",
        aliases="lr max_lr peak_lr",
    )
    muon_learning_rate: LearningRate = setting(
        lambda given: min(MUON_RATIO * given["learning_rate"], MAX_RATE),
        f"peak learning rate of Muon; null = {MUON_RATIO} x train.learning_rate",
        fine_tuning="scaled",
    )
    weight_decay: Annotated[float, Field(ge=0, le=MAX_RATE)] = inherited(
        0.1, "decoupled weight decay of matrices", aliases="wd"
    )
    beta1: Fraction = inherited(0.9, "AdamW: decay of the running mean of the gradient")
    beta2: Fraction = inherited(0.99, "AdamW: decay of the running mean of the squared gradient")
    grad_clip: NonNegativeFloat = inherited(
        1.0,
        "largest norm of the gradient; a longer gradient is scaled down to it; 0 = no clipping",
        aliases="clip gradient_clip_val max_grad_norm max_norm",
    )

    warmup_steps: NonNegativeInt = setting(
        lambda given: min(100, _first_steps(given) // 10),
        "steps of linear warmup; null = a tenth of train.steps, at most 100",
        group="training: learning rate schedule",
        aliases="warmup warmup_iters",
    )
    min_learning_rate: NonNegativeFloat = setting(
        1e-5,
        "last learning rate of AdamW, after a linear decay; that of Muon is in proportion",
        fine_tuning="scaled",
        aliases="min_lr",
    )

    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto",
        "number format of matrix products; auto: bf16 if the processor supports it, else fp32",
        group="training: precision and compilation",
        affects_choice=True,
        aliases="dtype",
    )
    compile: Literal["auto", "on", "off"] = resumable(
        "auto", "torch.compile; auto: on for CUDA, if it works"
    )

    eval_every: Annotated[int | str, BeforeValidator(_part_or_steps)] = resumable(
        lambda given: 250 if given["minutes"] is None else "10 %",
        "steps between two evaluations, or a part of the run such as 10 %; null = 250, with "
        "train.minutes 10 %",
        group="training: evaluation, logging, checkpoints",
        aliases="eval_interval eval_steps",
    )
    log_every: PositiveInt = resumable(
        10, "steps between two records of the train loss", aliases="log_interval logging_steps"
    )
    sample_length: NonNegativeInt = resumable(
        200, "characters to sample at each evaluation; 0 = no sample"
    )
    eval_characters: PositiveInt | None = setting(
        None,
        "characters of the val split, evenly spread, that are scored at each evaluation but the "
        "last, which scores all; null = all",
        aliases="eval_iters",
    )
    checkpoint_every: Annotated[int | str, BeforeValidator(_minutes_or_steps)] = resumable(
        lambda given: 250 if given["minutes"] is None else "1 min",
        "steps between two checkpoints, or minutes such as 10 min; null = 250, with "
        "train.minutes 1 min",
        aliases="save_every save_interval save_steps",
    )
    keep_checkpoints: PositiveInt = resumable(
        2, "number of newest checkpoints to keep; the best is kept as well"
    )

    stop_at_val_loss: PositiveFloat | None = resumable(
        None,
        "stop when the val loss is this or less; null = do not",
        group="training: early stopping",
    )
    patience: PositiveInt | None = resumable(
        None,
        "stop after this many evaluations without a new best; null = do not",
        aliases="early_stopping",
    )

    distill: TextName | None = resumable(
        None,
        "a run, as a folder or a name in runs/, whose predicted probabilities are targets beside "
        "the characters; null = only the characters",
        group="training: distillation",
        affects_choice=True,
    )
    init_from: TextName | None = setting(
        None,
        "a run to fine-tune: training starts with the weights of its best checkpoint, and its "
        "shape, steps, batches and optimizer are the defaults; null = new weights",
        group="training: fine-tuning",
        affects_choice=True,
    )

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.plans and self.plans[-1][1] != self.steps:
            raise ValueError(
                f"train.plans: expected the last to be of train.steps ({self.steps}), got "
                f"{self.plans[-1][1]}; for another number of steps, leave train.plans out"
            )
        if self.warmup_steps > (steps := _first_steps(vars(self))):
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
                "it limits a run of --minutes; set --minutes, or train.steps instead"
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
        if self.patience is not None and self.patience > evaluations:
            unused["train.patience"] = (
                f"the run has {evaluations} evaluations after the first, fewer than "
                f"{self.patience}; set a smaller train.patience or train.eval_every"
            )
        return unused
