"""Settings of training: batches, optimizer, schedule, evaluation, checkpoints, fine-tuning."""

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, model_validator

from gpt.config.period import StepsOrMinutes, StepsOrPercent
from gpt.config.section import (
    MAX_COUNT,
    ConfigSection,
    Fraction,
    NonNegativeInt,
    PositiveInt,
    TextName,
    inherited,
    resumable,
    setting,
)

MUON_RATIO = 5  # default ratio of Muon's peak learning rate to AdamW's
MAX_RATE = 1000.0  # limit on learning rates and weight decay; much smaller ones diverge already


def _check_plans(plans: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    is_ordered = all(step < later for (step, _), (later, _) in pairwise(plans))
    if plans and not (is_ordered and plans[0][0] == 0 and all(a < b for a, b in plans)):
        raise ValueError(
            "expected pairs such as [[0, 900], [400, 850]]: a step, ascending from 0, and the "
            "larger number of steps of the whole run that was planned at that step"
        )
    return plans


def _first_steps(given: dict[str, Any]) -> int:
    plans: tuple[tuple[int, int], ...] = given["plans"]
    return plans[0][1] if plans else int(given["steps"])


LearningRate = Annotated[float, Field(gt=0, le=MAX_RATE)]
_Plan = Annotated[tuple[NonNegativeInt, PositiveInt], Field(strict=False)]  # YAML has no tuples
Plans = Annotated[tuple[_Plan, ...], Field(strict=False), AfterValidator(_check_plans)]


class TrainConfig(ConfigSection):
    """Settings of training: steps, batches, optimizer, schedule, evaluation and checkpoints."""

    steps: PositiveInt = resumable(
        2000,
        "optimizer steps of the whole run",
        group="training: steps and batches",
        fine_tuning="inherited",
        affects_choice=True,
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
        "plans of train.minutes: pairs of a step and the train.steps that was planned at that "
        "step; with plans and no train.minutes, a run repeats them",
        affects_choice=True,
    )
    batch_size: PositiveInt = inherited(12, "B: windows of T characters in one step")
    first_window: PositiveInt | None = inherited(
        None,
        "a shorter context for the first five sixths of the steps, with the same number of "
        "characters per step; null = model.T",
    )
    accumulation: PositiveInt = inherited(
        1, "micro-batches of a step (gradient accumulation), to save memory"
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
    )
    muon_learning_rate: LearningRate = setting(
        lambda given: min(MUON_RATIO * given["learning_rate"], MAX_RATE),
        f"peak learning rate of Muon; null = {MUON_RATIO} x train.learning_rate",
        fine_tuning="scaled",
    )
    muon_momentum: Fraction = inherited(
        0.95, "Muon: decay of the running mean of the gradient; short runs learn more with less"
    )
    weight_decay: Annotated[float, Field(ge=0, le=MAX_RATE)] = inherited(
        0.1, "decoupled weight decay of matrices"
    )
    beta2: Fraction = inherited(0.99, "AdamW: decay of the running mean of the squared gradient")
    grad_clip: NonNegativeFloat = inherited(
        1.0, "largest norm of the gradient; a longer gradient is scaled down to it; 0 = no clipping"
    )

    warmup_steps: NonNegativeInt = setting(
        lambda given: min(100, _first_steps(given) // 10),
        "steps of linear warmup; null = a tenth of train.steps, at most 100",
        group="training: learning rate schedule",
    )
    min_learning_rate: NonNegativeFloat = setting(
        1e-5,
        "AdamW's learning rate at the end of the linear decay, one step after the last step; "
        "Muon's is proportional",
        fine_tuning="scaled",
    )

    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto",
        "number format of matrix products; auto: bf16 if the processor supports it, else fp16 on a "
        "CUDA GPU and fp32 on others",
        group="training: precision and compilation",
        affects_choice=True,
    )
    compile: Literal["auto", "on", "off"] = resumable(
        "auto", "torch.compile; auto: on for CUDA in long runs, if it works"
    )

    eval_every: StepsOrPercent = resumable(
        lambda given: 250 if given["minutes"] is None else "10 %",
        "steps between two evaluations, or a part of the run such as 10 %; null = 250, or 10 % "
        "with train.minutes",
        group="training: evaluation, logging, checkpoints",
    )
    sample_length: NonNegativeInt = resumable(
        200, "characters to sample at each evaluation; 0 = no sample"
    )
    eval_characters: PositiveInt | None = setting(
        None,
        "number of val characters, evenly spread, to score at each evaluation; the last "
        "evaluation scores all; null = all",
    )
    checkpoint_every: StepsOrMinutes = resumable(
        lambda given: 250 if given["minutes"] is None else "1 min",
        "steps between two checkpoints, or minutes such as 10 min; null = 250, or 1 min with "
        "train.minutes",
    )

    stop_at_val_loss: PositiveFloat | None = resumable(
        None,
        "stop when the val loss is this or less; null = do not",
        group="training: early stopping",
    )
    patience: PositiveInt | None = resumable(
        None, "stop after this many evaluations without a new best; null = do not"
    )

    init_from: TextName | None = setting(
        None,
        "a run (a folder or a name in runs/) to fine-tune: training starts with the weights of its "
        "best checkpoint, and its shape, steps, batches and optimizer are the defaults; null = new "
        "weights",
        group="training: fine-tuning",
        affects_choice=True,
    )

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.plans and self.plans[-1][1] != self.steps:
            raise ValueError(
                f"train.plans: expected train.steps ({self.steps}) in the last plan, got "
                f"{self.plans[-1][1]}; to change the number of steps, leave train.plans out"
            )
        for key, limit, limit_key in (
            ("warmup_steps", _first_steps(vars(self)), "steps"),
            ("min_learning_rate", self.learning_rate, "learning_rate"),
        ):
            if (value := getattr(self, key)) > limit:
                raise ValueError(
                    f"train.{key}: expected at most train.{limit_key} ({limit}), got {value}"
                )
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"train.accumulation: expected a divisor of train.batch_size "
                f"({self.batch_size}), got {self.accumulation}"
            )
        return self
