"""One typed tree of settings, each with its default, its bounds and its description."""

import codecs
import json
import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)


def _device_name(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", name):
        raise ValueError("expected auto, cpu, cuda, cuda:N or mps")
    return name


def _thread_count(count: object) -> object:
    if count != "auto" and not (type(count) is int and 1 <= count <= 1024):
        raise ValueError("expected auto or a number from 1 to 1024")
    return count


def _is_count(value: object) -> bool:
    """Return whether `value` is a positive integer; True is none."""
    return type(value) is int and 0 < value <= LARGEST


def _part(period: object) -> object:
    if not _is_count(period) and not (
        isinstance(period, str)
        and re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})? %", period)
        and 0 < float(period[:-2]) <= 100
    ):
        raise ValueError("expected a number of steps, or a part of the run such as `10 %`")
    return period


def _every(period: object) -> object:
    if not _is_count(period) and not (
        isinstance(period, str) and re.fullmatch(r"[1-9][0-9]{0,5} min", period)
    ):
        raise ValueError("expected a number of steps, or of minutes such as `10 min`")
    return period


def _first_steps(given: dict[str, Any]) -> int:
    """`train.steps` as they were planned at first."""
    plans: tuple[tuple[int, int], ...] = given["plans"]
    return plans[0][1] if plans else int(given["steps"])


def _plans(plans: object) -> object:
    if not isinstance(plans, list | tuple) or not all(
        isinstance(plan, list | tuple)
        and len(plan) == 2
        and type(plan[0]) is int
        and 0 <= plan[0] <= LARGEST
        and _is_count(plan[1])
        for plan in plans
    ):
        raise ValueError("expected pairs of a step and a number of steps, [[0, 900], [400, 850]]")
    return tuple(map(tuple, plans))


def _text_name(name: str) -> str:
    # Control characters and line ends would forge messages; surrogates (not UTF-8) fit no config.
    if any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in name):
        raise ValueError(
            "expected a name in UTF-8 without control characters and line ends; rename the file"
        )
    return name


def _text_names(source: object) -> object:
    """One name, or a tuple of several."""
    names = [source] if isinstance(source, str) else source
    if not isinstance(names, list | tuple) or not names:
        raise ValueError("expected the name of a text, or a list of names")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError("expected the name of a text, or a list of names")
        _text_name(name)
    return tuple(names) if len(names) > 1 else names[0]


def _globs(include: object) -> object:
    """Return a tuple of globs."""
    globs = [include] if isinstance(include, str) else include
    if not isinstance(globs, list | tuple) or not all(isinstance(each, str) for each in globs):
        raise ValueError("expected a glob for the names of files, or a list of globs")
    return tuple(map(_utf8, globs))


def _utf8(text: str) -> str:
    """Raise ValueError if `text` has bytes that no config file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("expected a text in UTF-8") from None
    return text


def _encoding(name: str) -> str:
    try:
        if codecs.lookup(name).name in ("idna", "punycode", "undefined"):  # of no file
            raise LookupError
        b"a".decode(name)
    except UnicodeError:  # of UTF-16, for example: one byte is half a character
        return name
    except (LookupError, ValueError):
        raise ValueError(
            "expected an encoding that Python knows, such as utf-8, cp1252 or utf-16"
        ) from None
    return name


Newlines = Literal["lf", "keep"]
LARGEST = 10**9  # a guard against typing errors, long before memory runs out
MOST_LAYERS = 1000  # or n-gram tables: their parameters are listed before a model is read
MOST_MEMBERS = 64
LARGEST_TABLE = 2**24  # rotary angles, which a model computes before it has any weight
SMALLEST_OFFSET = 4  # channels of a head, of which half can be offset
MUON_RATIO = 5  # default peak learning rate of Muon / peak learning rate of AdamW
REPLACED_PENALTY = "repetition_penalty"  # by presence_penalty and frequency_penalty
SHARPEST = 1000.0  # far beyond one-hot attention, and far from overflow
LARGEST_RATE = 1000.0  # learning rate or weight decay; far beyond what trains, far from overflow
PositiveInt = Annotated[int, Field(gt=0, le=LARGEST)]
Layers = Annotated[int, Field(gt=0, le=MOST_LAYERS)]
Members = Annotated[int, Field(gt=0, le=MOST_MEMBERS)]
NonNegativeInt = Annotated[int, Field(ge=0, le=LARGEST)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
LearningRate = Annotated[float, Field(gt=0, le=LARGEST_RATE)]
Penalty = Annotated[float, Field(ge=-100, le=100)]  # of a logit
Fraction = Annotated[float, Field(ge=0, lt=1)]
Period = Annotated[int | str, BeforeValidator(_every)]
TextNames = Annotated[str | tuple[str, ...], BeforeValidator(_text_names)]
Globs = Annotated[tuple[str, ...], BeforeValidator(_globs)]
Encoding = Annotated[str, AfterValidator(_encoding)]
PartOrSteps = Annotated[int | str, BeforeValidator(_part)]
Plans = Annotated[tuple[tuple[NonNegativeInt, PositiveInt], ...], BeforeValidator(_plans)]
Text = Annotated[str, AfterValidator(_utf8)]
TextName = Annotated[str, Field(min_length=1), AfterValidator(_text_name)]
DeviceName = Annotated[str, AfterValidator(_device_name)]
ThreadCount = Annotated[int | str, BeforeValidator(_thread_count)]


class Section(BaseModel):
    """Strict (the string "3" is refused as a number), closed (no unknown key) and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DataConfig(Section):
    """The text to train on."""

    source: TextNames = Field(
        "python-docs",
        description="the text: python-docs, python-source, tinyshakespeare, a file, a folder, a "
        "glob, or - for standard input; or a list of these",
    )
    include: Globs = Field(
        (),
        description="which files of a folder or archive are read: globs for their names or paths, "
        'such as ["*.md", "src/**/*.py"]; one that begins with ! excludes; [] = all that are text',
    )
    exclude: Globs = Field(
        (), description="which of them are not read: globs for files or folders, such as drafts"
    )
    column: Annotated[Text, Field(min_length=1)] | None = Field(
        None,
        description="column of .jsonl, .json, .csv, .tsv or .parquet whose values are the "
        "documents, such as text, title,text or messages.content; null = read them as plain text",
    )
    bad_records: Literal["refuse", "skip"] = Field(
        "refuse",
        description="refuse a table with a record that cannot be read, such as a row with too few "
        "columns, or skip and count such records",
    )
    separator: Text = Field(
        "\n\n",
        description="what stands between two documents; in --set, \\n is a line end and \\t a tab",
    )
    documents: Literal["files", "lines", "separator"] = Field(
        "files",
        description="documents that data.split documents can hold out: files (or the records of "
        "a table), lines, or what data.separator separates in a file; the text stays the same",
    )
    encoding: Encoding = Field(
        "utf-8",
        description="encoding of files without a byte-order mark, such as cp1252; of several "
        "files, those that are UTF-8 are read as UTF-8",
    )
    errors: Literal["strict", "replace"] = Field(
        "strict",
        description="bytes that are not in the encoding are an error, or are replaced by U+FFFD "
        "and counted",
    )
    newlines: Newlines = Field(
        "lf", description="CRLF and CR are read as LF, also in prompts, or kept as they are"
    )
    normalize: Literal["none", "NFC", "NFD", "NFKC"] = Field(
        "none", description="Unicode normal form of the text and of prompts"
    )
    lowercase: bool = Field(False, description="whether capitals become small, also in prompts")
    val_source: TextNames | None = Field(
        None, description="a text of its own for val; null = a part of the text"
    )
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="part of the text's characters that is val, without data.val_source"
    )
    split: Literal["tail", "documents"] = Field(
        "tail", description="val is the end of the text, or whole documents, chosen by the seed"
    )
    vocabulary: TextName = Field(
        "characters",
        description="characters: the text's own; bytes: those of UTF-8, 256 ids; or a run, whose "
        "vocabulary is used",
    )
    max_vocabulary: Annotated[int, Field(ge=2, le=LARGEST)] | None = Field(
        None,
        description="most ids: the rarest characters share one of them, which is never sampled; "
        "null = one for each character",
    )

    @property
    def globs(self) -> tuple[str, ...]:
        """`include` and `exclude` as one list, in which `!` begins the globs that exclude."""
        return (*self.include, *(f"!{glob}" for glob in self.exclude))

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.documents == "separator" and not self.separator:
            raise ValueError(
                "data.separator: expected the text between two documents with data.documents "
                "separator, got none"
            )
        if self.max_vocabulary is not None and self.vocabulary != "characters":
            raise ValueError(
                f"data.max_vocabulary: expected data.vocabulary characters, whose number it "
                f"limits, got {self.vocabulary}"
            )
        if self.val_source is not None and self.split == "documents":
            raise ValueError(
                "data.split: expected tail (the default) with data.val_source, which is all of "
                "val, got documents"
            )
        return self


class ModelConfig(Section):
    """The shape of the transformer, in the field's letters; a token is a character."""

    T: PositiveInt = Field(64, description="context length in characters")
    C: PositiveInt = Field(128, description="channels: the width of the residual stream")
    n_layer: Layers = Field(4, description="transformer blocks (attention and MLP)")
    n_head: PositiveInt = Field(4, description="attention heads in each block")
    head_size: PositiveInt = Field(
        default_factory=lambda given: given["C"] // given["n_head"] or 1,
        description="channels of a head's queries and keys; null = C / n_head",
    )
    value_size: PositiveInt = Field(
        default_factory=lambda given: given["head_size"],
        description="channels of a head's values; null = head_size",
    )
    ensemble: Members = Field(
        1,
        description="members: models that differ by their seed alone, trained side by side, whose "
        "predicted probabilities are averaged",
    )
    positions: Literal["learned", "rotary"] = Field(
        "rotary", description="position embeddings that are added, or RoPE in queries and keys"
    )
    qk_norm: bool = Field(
        True, description="whether queries and keys are normalised, which bounds the scores"
    )
    attention_scale: Annotated[PositiveFloat, Field(le=SHARPEST)] = Field(
        1.0, description="attention scores are attention_scale * q k / sqrt(head_size)"
    )
    key_offset: bool = Field(
        False,
        description="whether half of each key's channels are those of the character before, so "
        "that a head attends to what followed a match (partial key offset, for induction heads)",
    )
    qkv_bias: bool = Field(False, description="whether queries, keys and values have a bias")
    ngram: Layers = Field(
        4,
        description="characters whose embeddings are summed at each position: its own and the "
        "ngram - 1 before it; 1 = its own alone",
    )
    activation: Literal["gelu", "relu2"] = Field(
        "relu2", description="activation of the MLP: GELU, or the square of ReLU"
    )
    dropout: Fraction = Field(
        0.0, description="dropout of the embeddings and of what each block adds to the stream"
    )
    attention_dropout: Fraction = Field(0.0, description="dropout of the attention weights")
    character_dropout: Fraction = Field(
        0.0,
        description="token dropout: the probability that an input character's embedding is zero",
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
        if self.ensemble * max(self.n_layer, self.ngram) > MOST_LAYERS:
            raise ValueError(
                f"model.ensemble: expected model.ensemble x model.n_layer (and x model.ngram) of "
                f"at most {MOST_LAYERS:,}, got {self.ensemble} x {max(self.n_layer, self.ngram)}"
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(
                f"model.head_size: expected an even number with model.positions rotary, which "
                f"rotates channels in pairs, got {self.head_size}"
            )
        if self.key_offset and not self.can_offset_keys:
            raise ValueError(
                f"model.head_size: expected an even number of at least {SMALLEST_OFFSET} with "
                f"model.key_offset, which offsets pairs of channels, got {self.head_size}"
            )
        return self

    @property
    def can_offset_keys(self) -> bool:
        """Whether a key of this head_size has a half to offset."""
        return self.head_size % 2 == 0 and self.head_size >= SMALLEST_OFFSET


class TrainConfig(Section):
    """The training loop."""

    steps: PositiveInt = Field(2000, description="optimizer steps of the whole run")
    minutes: Annotated[PositiveFloat, Field(le=LARGEST)] | None = Field(
        None,
        description="time for the whole command: train.steps is as many as fit, planned again when "
        "the pace changes; null = train.steps as set",
    )
    max_steps: PositiveInt | None = Field(
        None, description="steps at most of a run of train.minutes; null = as many as fit"
    )
    plans: Plans = Field(
        (),
        description="what train.minutes planned: pairs of a step and train.steps from then on; a "
        "run with these and without train.minutes repeats them",
    )
    batch_size: PositiveInt = Field(12, description="B: windows of T characters in one step")
    first_window: PositiveInt | None = Field(
        None,
        description="a shorter context for the first five sixths of the steps, with as many "
        "characters a step; null = model.T",
    )
    accumulation: PositiveInt = Field(
        1, description="micro-batches of a step (gradient accumulation), to save memory"
    )
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp",
        description="what each of torchrun's ranks holds: the whole model, or a shard of it, for "
        "models larger than a device; alike for one process",
    )
    auto_batch: bool = Field(
        False, description="when out of memory, whether to double the accumulation and continue"
    )

    optimizer: Literal["muon", "adamw"] = Field(
        "muon", description="Muon for the blocks' matrices and AdamW for the rest, or AdamW for all"
    )
    learning_rate: LearningRate = Field(
        4e-3, description="peak learning rate of AdamW; Muon's changes in proportion with it"
    )
    muon_learning_rate: LearningRate = Field(
        default_factory=lambda given: min(MUON_RATIO * given["learning_rate"], LARGEST_RATE),
        validate_default=True,
        description=f"peak learning rate of Muon; null = {MUON_RATIO} x train.learning_rate",
    )
    weight_decay: Annotated[float, Field(ge=0, le=LARGEST_RATE)] = Field(
        0.1, description="decoupled weight decay of matrices"
    )
    beta1: Fraction = Field(0.9, description="AdamW: decay of the gradient's running mean")
    beta2: Fraction = Field(0.99, description="AdamW: decay of the squared gradient's running mean")
    grad_clip: NonNegativeFloat = Field(
        1.0, description="largest norm of the gradient, which is clipped to it; 0 = no clipping"
    )

    warmup_steps: NonNegativeInt = Field(
        default_factory=lambda given: min(100, _first_steps(given) // 10),
        description="steps of linear warmup; null = a tenth of train.steps, at most 100",
    )
    rewarm_steps: NonNegativeInt = Field(
        0,
        description="steps of linear warmup when a finished run is resumed for more minutes, or "
        "a resume changes train.steps, from the last learning rate to the new schedule's",
    )
    decay: Literal["cosine", "linear"] = Field(
        "linear", description="shape of the decay from the peak learning rate to the last"
    )
    min_learning_rate: NonNegativeFloat = Field(
        1e-5, description="last learning rate of AdamW; Muon's is in proportion"
    )

    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="number format of matrix products; auto: bf16 where the chip has it"
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto", description="torch.compile; auto: on CUDA, where it works"
    )

    eval_every: PartOrSteps = Field(
        default_factory=lambda given: 250 if given["minutes"] is None else "10 %",
        description="steps between two evaluations, or a part of the run such as 10 %; null = 250, "
        "with train.minutes 10 %",
    )
    log_every: PositiveInt = Field(10, description="steps between two records of the train loss")
    sample_length: NonNegativeInt = Field(
        200, description="characters of the sample at each evaluation; 0 = no sample"
    )
    histograms: bool = Field(
        False, description="whether TensorBoard gets histograms of weights and gradients"
    )
    eval_characters: PositiveInt | None = Field(
        None,
        description="characters of the val split to evaluate on, evenly spread, before the last "
        "evaluation, which is on all; null = all",
    )
    checkpoint_every: Period = Field(
        default_factory=lambda given: 250 if given["minutes"] is None else "1 min",
        description="steps between two checkpoints, or minutes such as 10 min; null = 250, with "
        "train.minutes 1 min",
    )
    keep_checkpoints: PositiveInt = Field(
        2, description="how many of the newest checkpoints to keep, beside the best"
    )

    stop_at_val_loss: PositiveFloat | None = Field(
        None, description="stop at a val loss of this or less; null = do not"
    )
    patience: PositiveInt | None = Field(
        None, description="stop after so many evaluations without a new best; null = do not"
    )

    distill: TextName | None = Field(
        None,
        description="a run, its folder or its name under runs/, whose predicted probabilities are "
        "targets beside the characters; null = the characters alone",
    )
    distill_weight: Annotated[float, Field(ge=0, le=1)] = Field(
        0.7, description="weight of those targets in the loss; the rest is that of the characters"
    )

    init_from: TextName | None = Field(
        None,
        description="a run to fine-tune: training begins with the weights of its best checkpoint, "
        "and its shape, steps, batches and optimizer are the defaults; null = new weights",
    )
    freeze: NonNegativeInt = Field(
        0,
        description="with train.init_from, how many blocks, the first ones, are not trained; the "
        "embeddings are, as new characters need them",
    )

    @model_validator(mode="after")
    def _plans_fit(self) -> Self:
        at = [step for step, _ in self.plans]
        if at and at[0] != 0:
            raise ValueError(f"train.plans: expected the first at step 0, got {at[0]}")
        for step, after in pairwise(at):
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
    def _schedule_fits(self) -> Self:
        steps = _first_steps(vars(self))
        if self.warmup_steps > steps:
            raise ValueError(
                f"train.warmup_steps: expected at most train.steps ({steps}), "
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
                f"({self.batch_size}), got {self.accumulation}; set a train.batch_size that it "
                f"divides"
            )
        return self


class SampleConfig(Section):
    """How text is sampled; `gpt sample` has a flag for each."""

    length: NonNegativeInt = Field(500, description="characters of a sample")
    temperature: NonNegativeFloat = Field(
        0.8, description="above 1: more random, below: more predictable; 0 = always the likeliest"
    )
    top_k: PositiveInt | None = Field(
        None, description="sample only from the k likeliest characters; null = from all"
    )
    top_p: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0, description="sample only from the likeliest characters, which make up this probability"
    )
    min_p: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="drop characters less likely than this times the most likely one"
    )
    presence_penalty: Penalty = Field(
        0.0, description="subtracted from the logit of each character among the last 64"
    )
    frequency_penalty: Penalty = Field(
        0.0,
        description="subtracted from a character's logit for each time it is among the last 64",
    )
    context_after_overflow: PositiveInt | None = Field(
        None,
        description="characters of context that are left when a text outgrows model.T; "
        "null = model.T // 2",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_repetition_penalty(cls, tree: Any, info: ValidationInfo) -> Any:
        """Drop a setting of older versions from a stored config; `info.context` collects it."""
        if info.context is None or not isinstance(tree, dict) or REPLACED_PENALTY not in tree:
            return tree
        info.context[REPLACED_PENALTY] = tree[REPLACED_PENALTY]
        return {key: value for key, value in tree.items() if key != REPLACED_PENALTY}


class Config(Section):
    """All settings of a run."""

    device: DeviceName = Field(
        "auto", description="auto, cpu, cuda, cuda:N or mps; auto: CUDA where there is one"
    )
    threads: ThreadCount = Field(
        "auto",
        description="CPU threads to compute with, which decides the last digits; auto: as many as "
        "torch takes by itself",
    )
    seed: NonNegativeInt = Field(
        1337, description="seed of every random draw, together with its purpose and step"
    )
    deterministic: bool = Field(
        False,
        description="whether CUDA, too, uses only deterministic kernels, which are slower",
    )
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    sample: SampleConfig = SampleConfig()

    @model_validator(mode="after")
    def _fine_tuning_fits(self) -> Self:
        frozen, blocks = self.train.freeze, self.model.n_layer
        if self.train.init_from is None:
            if frozen:
                raise ValueError(
                    f"train.freeze: expected 0 without train.init_from, as new weights must be "
                    f"trained, got {frozen}"
                )
            return self
        if frozen > blocks:
            raise ValueError(
                f"train.freeze: expected at most model.n_layer ({blocks}), got {frozen}"
            )
        if self.data.vocabulary not in ("characters", "bytes") or self.data.max_vocabulary:
            raise ValueError(
                "train.init_from: its vocabulary is extended by all characters of the text; leave "
                "out data.vocabulary and data.max_vocabulary"
            )
        return self

    @model_validator(mode="after")
    def _windows_fit(self) -> Self:
        T, first = self.model.T, self.train.first_window
        if first is not None and T % first:
            raise ValueError(
                f"train.first_window: expected a divisor of model.T ({T}), so that a step has as "
                f"many characters as ever, got {first}; null = model.T"
            )
        left = self.sample.context_after_overflow
        if left is not None and left > T:
            raise ValueError(
                f"sample.context_after_overflow: expected at most model.T ({T}), got {left}"
            )
        return self


GROUPS = {  # what the keys from this one on are about: headings of help and of config.yaml
    "device": "run",
    "data.source": "data",
    "model.T": "model: size",
    "model.positions": "model: attention, embeddings, MLP",
    "model.dropout": "model: regularisation",
    "train.steps": "training: steps and batches",
    "train.optimizer": "training: optimizer",
    "train.warmup_steps": "training: learning rate schedule",
    "train.precision": "training: precision and compilation",
    "train.eval_every": "training: evaluation, logging, checkpoints",
    "train.stop_at_val_loss": "training: early stopping",
    "train.distill": "training: distillation",
    "train.init_from": "training: fine-tuning",
    "sample.length": "sampling",
}


def fields(config: Section) -> Iterator[tuple[str, str, Any]]:
    """Every setting of the tree as (dotted key, description, value), in the order of the file.

    The description of a setting with a few possible values begins with them: `muon | adamw: ...`.
    """
    for name, field in type(config).model_fields.items():
        value, description = getattr(config, name), field.description or ""
        if isinstance(value, Section):
            for key, described, leaf in fields(value):
                yield f"{name}.{key}", described, leaf
        elif get_origin(field.annotation) is Literal:
            yield name, f"{' | '.join(get_args(field.annotation))}: {description}", value
        else:
            yield name, description, value


def kinds(key: str) -> set[object]:
    """Return the types of value that the setting `key` takes; none if there is no such setting.

    `tuple` stands for a list. A list of texts may also be given as one text: `str`.
    """
    section, name = _section(key), key.rpartition(".")[2]
    return _kinds(type(section).model_fields[name].annotation) if section else set()


def _section(key: str) -> Section | None:
    """Return the default section that has the setting `key`; None if there is no such setting."""
    *sections, name = key.split(".")
    section: object = Config()
    for each in sections:
        section = getattr(section, each, None)
    return section if isinstance(section, Section) and name in type(section).model_fields else None


def _kinds(annotation: Any) -> set[object]:
    origin, of = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(of[0])
    if origin in (Union, UnionType):
        return {kind for each in of for kind in _kinds(each)}
    if origin is tuple:
        return {tuple, *(_kinds(of[0]) & {str})}
    return {annotation}


def explicit(config: Section) -> Iterator[tuple[str, Any]]:
    """Those settings that are set, as (dotted key, value): the others have their defaults."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Section):
            yield from ((f"{name}.{key}", leaf) for key, leaf in explicit(value))
        elif name in config.model_fields_set:
            yield name, value


def settled(config: Section) -> dict[str, Any]:
    """The tree without what follows from other settings, unless that is set; else complete."""
    tree = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Section):
            tree[name] = settled(value)
        elif field.default_factory is None or name in config.model_fields_set:
            tree[name] = value
    return tree


def default_text(key: str) -> str:
    """A setting's default as a config file spells it; null for one that follows from others."""
    section, name = _section(key), key.rpartition(".")[2]
    assert section is not None
    if type(section).model_fields[name].default_factory is not None:
        return "null"
    value = getattr(section, name)
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)
