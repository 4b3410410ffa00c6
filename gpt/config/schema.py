"""One typed tree of settings, each with its default, its bounds and its description."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def _device_name(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", name):
        raise ValueError("expected auto, cpu, cuda, cuda:N or mps")
    return name


def _every(period: int | str) -> int | str:
    if isinstance(period, str) and not re.fullmatch(r"[1-9]\d{0,5} min", period):
        raise ValueError("expected a number of steps, or of minutes such as `10 min`")
    return period


def _text_name(name: str) -> str:
    if not name.isprintable():  # not UTF-8, or with line ends: no config could hold it
        raise ValueError("expected a name in printable characters; rename the file")
    return name


Newlines = Literal["lf", "keep"]
LARGEST = 10**9  # a guard against slips of the finger, long before memory ends
MOST_LAYERS = 10_000  # or tables of characters: their names are listed before a model is read
LARGEST_TABLE = 2**24  # of rotary angles, which a model makes before it has any weight
PositiveInt = Annotated[int, Field(gt=0, le=LARGEST)]
Layers = Annotated[int, Field(gt=0, le=MOST_LAYERS)]
NonNegativeInt = Annotated[int, Field(ge=0, le=LARGEST)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Period = Annotated[PositiveInt | str, AfterValidator(_every)]
TextName = Annotated[str, Field(min_length=1), AfterValidator(_text_name)]
DeviceName = Annotated[str, AfterValidator(_device_name)]


class Section(BaseModel):
    """Strict (the string "3" is no number), closed (no unknown key) and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DataConfig(Section):
    """What is learnt."""

    source: TextName = Field(
        "python-docs",
        description="the text: python-docs, tinyshakespeare, or the path of a UTF-8 file",
    )
    newlines: Newlines = Field(
        "lf", description="lf: CRLF and CR are read as LF, also in prompts; keep: as they are"
    )


class ModelConfig(Section):
    """The shape of the transformer, in the field's letters."""

    T: PositiveInt = Field(
        64, description="context length: how many characters the model sees at once"
    )
    C: PositiveInt = Field(128, description="channels: the width of the residual stream")
    n_layer: Layers = Field(4, description="blocks of attention and MLP")
    n_head: PositiveInt = Field(4, description="attention heads in each block")
    head_size: PositiveInt = Field(
        default_factory=lambda given: given["C"] // given["n_head"] or 1,
        description="channels of a query and a key in one head; default C / n_head",
    )
    value_size: PositiveInt = Field(
        default_factory=lambda given: given["head_size"],
        description="channels of a value in one head; default head_size",
    )
    positions: Literal["learned", "rotary"] = Field(
        "rotary",
        description="learned: a vector added for each place; rotary: queries and keys are turned",
    )
    qk_norm: bool = Field(
        True, description="whether queries and keys are normalised, so that no score can run away"
    )
    attention_scale: PositiveFloat = Field(
        1.0, description="attention scores are this times q k / sqrt(head_size): how sharp they are"
    )
    qkv_bias: bool = Field(False, description="whether queries, keys and values have a bias")
    ngram: Layers = Field(
        4,
        description="characters whose vectors are added up to make a character's embedding: "
        "itself and those just before; 1 = itself alone",
    )
    activation: Literal["gelu", "relu2"] = Field(
        "relu2", description="what bends the MLP: GELU, or the square of ReLU"
    )
    dropout: Fraction = Field(
        0.0, description="share of embeddings and of what the blocks add, zeroed in training"
    )
    character_dropout: Fraction = Field(
        0.0, description="share of the characters it reads that are hidden from it in training"
    )

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if "head_size" not in self.model_fields_set and self.C % self.n_head:
            raise ValueError(
                f"model.head_size: model.C {self.C} is not a multiple of model.n_head "
                f"{self.n_head}; set model.head_size (n_head x head_size need not equal C)"
            )
        if self.T * self.head_size > LARGEST_TABLE:
            raise ValueError(
                f"model.T: expected model.T x model.head_size of at most {LARGEST_TABLE:,}, got "
                f"{self.T} x {self.head_size}"
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(
                f"model.head_size: expected an even number with model.positions rotary, which "
                f"turns channels in pairs, got {self.head_size}"
            )
        return self


class TrainConfig(Section):
    """How it learns: schedule, optimizer, records, reasons to stop."""

    steps: PositiveInt = Field(2000, description="optimizer updates in the whole run")
    batch_size: PositiveInt = Field(12, description="B: windows of T characters in one update")
    first_window: PositiveInt | None = Field(
        None,
        description="characters of a window in the first five sixths of the steps, with as many "
        "windows more; null = model.T",
    )
    accumulation: PositiveInt = Field(
        1, description="pieces the batch is computed in, one after the other, to save memory"
    )
    optimizer: Literal["muon", "adamw"] = Field(
        "muon",
        description="muon: Muon for the blocks' matrices, AdamW for the rest; adamw: AdamW for all",
    )
    muon_learning_rate: PositiveFloat = Field(0.02, description="peak learning rate of Muon")
    learning_rate: PositiveFloat = Field(4e-3, description="peak learning rate of AdamW")
    min_learning_rate: NonNegativeFloat = Field(
        1e-5, description="learning rate of AdamW that the decay ends at; Muon's in proportion"
    )
    warmup_steps: NonNegativeInt = Field(
        default_factory=lambda given: min(100, given["steps"] // 10),
        description="steps of linear rise to the peak; default a tenth of steps, at most 100",
    )
    decay: Literal["cosine", "linear"] = Field(
        "linear", description="shape of the fall from the peak to min_learning_rate"
    )
    weight_decay: NonNegativeFloat = Field(0.1, description="pull of matrices towards zero")
    beta1: Fraction = Field(0.9, description="AdamW: memory of the gradient's mean")
    beta2: Fraction = Field(0.99, description="AdamW: memory of the gradient's square")
    grad_clip: NonNegativeFloat = Field(
        1.0, description="largest gradient norm; longer gradients are shortened to it; 0 = never"
    )
    auto_batch: bool = Field(
        False,
        description="when memory ends, compute the batch in more pieces (accumulation) and go on",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="number format of matrix products; auto: bf16 where the chip has it"
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto", description="torch.compile; auto: on CUDA, where it works"
    )
    log_every: PositiveInt = Field(10, description="steps between two training-loss records")
    eval_every: PositiveInt = Field(
        250, description="steps between two evaluations on the whole val split"
    )
    checkpoint_every: Period = Field(
        250, description="steps between two checkpoints, or minutes: 10 min"
    )
    sample_length: NonNegativeInt = Field(
        200, description="characters sampled at each evaluation for TensorBoard; 0 = none"
    )
    histograms: bool = Field(
        False, description="histograms of weights and gradients in TensorBoard at each evaluation"
    )
    stop_at_val_loss: PositiveFloat | None = Field(
        None, description="stop once an evaluation is at or below this loss"
    )
    patience: PositiveInt | None = Field(
        None, description="stop after so many evaluations without a new best"
    )

    @model_validator(mode="after")
    def _schedule_fits(self) -> Self:
        if self.warmup_steps > self.steps:
            raise ValueError(
                f"train.warmup_steps: expected at most train.steps ({self.steps}), "
                f"got {self.warmup_steps}"
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


class SampleConfig(Section):
    """How text is drawn from it; `gpt sample` overrides these."""

    length: NonNegativeInt = Field(500, description="characters to sample")
    temperature: NonNegativeFloat = Field(
        0.8,
        description="below 1 bolder towards the likely, above 1 wilder; 0 = always the likeliest",
    )
    top_k: PositiveInt | None = Field(None, description="draw only from the k likeliest characters")


class Config(Section):
    """All settings of a run."""

    device: DeviceName = Field(
        "auto", description="auto, cpu, cuda, cuda:N or mps; auto takes CUDA where there is one"
    )
    seed: NonNegativeInt = Field(
        1337, description="every random draw follows from the seed, its purpose and its step"
    )
    deterministic: bool = Field(
        False,
        description="on CUDA, only kernels that repeat a run digit for digit, slower; a CPU "
        "always does",
    )
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    sample: SampleConfig = SampleConfig()

    @model_validator(mode="after")
    def _windows_fit(self) -> Self:
        T, first = self.model.T, self.train.first_window
        if first is not None and T % first:
            raise ValueError(
                f"train.first_window: expected a divisor of model.T ({T}), so that a step has as "
                f"many characters as ever, got {first}"
            )
        return self


def fields(config: Section) -> Iterator[tuple[str, str, Any]]:
    """Every setting of the tree as (dotted key, description, value), in the order of the file."""
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Section):
            for key, description, leaf in fields(value):
                yield f"{name}.{key}", description, leaf
        else:
            yield name, field.description or "", value
