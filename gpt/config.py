"""One typed tree of settings: defaults -> YAML -> `--set`, then validated.

The only file that knows YAML. It never imports torch, so that a config error shows at once.
"""

import difflib
import json
import re
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpt.errors import ConfigError


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


LARGEST = 10**9  # a guard against slips of the finger, long before memory ends
MOST_LAYERS = 10_000  # or tables of characters: their names are listed before a model is read
LARGEST_TABLE = 2**24  # of rotary angles, which a model makes before it has any weight
LONGEST_FILE = 2**20  # bytes
DEEPEST = 20  # levels of keys; a hundred thousand take minutes to read
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


def load_config(
    path: Path | None, overrides: Sequence[str] = (), source: str | None = None
) -> Config:
    """Defaults, then the YAML file, then `section.key=value` overrides, then the text named.

    Raises:
        ConfigError: the file is missing or not YAML, or a key or value is wrong; all wrong
            keys are told at once, each with its dotted path.
    """
    tree = _read_yaml(path) if path is not None else {}
    overridden = {_override(tree, assignment) for assignment in overrides}
    if source is not None:
        overridden.add(_put(tree, "data.source", source))
    try:
        return Config.model_validate(_without_nulls(tree))
    except ValidationError as error:
        raise ConfigError(
            "\n".join(
                f"{'command line' if key in overridden else path or 'command line'}: {message}"
                for key, message in _explain(error)
            )
        ) from None


def to_yaml(config: Config) -> str:
    """The resolved config as a YAML file that `load_config` reads back, each key explained."""
    lines, section = [], ""
    for key, description, value in fields(config):
        *parents, name = key.split(".")
        if parents and parents[0] != section:
            section = parents[0]
            lines.append(f"\n{section}:")
        text = "null" if value is None else yaml.safe_dump(value, width=10**6, allow_unicode=True)
        text = text.removesuffix("\n").removesuffix("\n...")
        if _parse(text, key) != value:  # a text named 1e5 is a number to us, not to the dumper
            text = json.dumps(value)
        lines.append(f"{'  ' * len(parents)}{name}: {text}".ljust(32) + f"  # {description}")
    return "\n".join(lines) + "\n"


# --- YAML ---------------------------------------------------------------------------------------


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML with the scalars of YAML 1.2 and without duplicate keys.

    YAML 1.1, which PyYAML speaks, reads `3e-4` as a string, `no` as false, `010` as 8,
    `1:30` as 90 and `2026-01-01` as a date; none of these is what its writer meant.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "expected a plain word as a key", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands here twice", key_node.start_mark
                )
            seen.add(key)
        return dict(super().construct_mapping(node, deep))


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(~|null|Null|NULL|)$"), None)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|(0|[1-9][0-9_]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def _parse(text: str, origin: str) -> Any:
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ConfigError(f"{origin}: expected at most {DEEPEST} levels, got more")
            if isinstance(event, yaml.AliasEvent):  # a few lines of them can stand for gigabytes
                raise yaml.MarkedYAMLError(
                    problem="aliases (*name) are not read here",
                    problem_mark=event.start_mark,  # type: ignore[arg-type]
                )
        return yaml.load(text, Loader=_Loader)
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{origin}{place}: not valid YAML: {error.problem}") from None
    except Exception as error:  # PyYAML's constructors fail in many ways on hostile tags
        reason = str(error) or type(error).__name__
        raise ConfigError(f"{origin}: not valid YAML: {reason}") from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST_FILE + 1)
        if len(content) > LONGEST_FILE:
            raise ConfigError(f"{path}: expected a config of at most 1 MiB, got a larger file")
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file; see the ones under configs/") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text, got {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the config: {error.strerror}") from None
    tree = _parse(text, str(path))
    if tree is None:  # an empty file, or nothing but comments
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path}: expected keys such as `model:` and `train:`, got {reprlib.repr(tree)}"
        )
    return tree


def _without_nulls(tree: dict[str, Any]) -> dict[str, Any]:
    """An empty key or section means its default."""
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def _override(tree: dict[str, Any], assignment: str) -> str:
    key, equals, value = assignment.partition("=")
    if not equals or not key:
        raise ConfigError(
            f"--set {assignment}: expected SECTION.KEY=VALUE, such as --set train.steps=500"
        )
    return _put(tree, key, _parse(value, f"--set {assignment}"))


def _put(tree: dict[str, Any], key: str, value: Any) -> str:
    *parents, name = key.split(".")
    for parent in parents:
        child = tree.get(parent)
        if child is not None and not isinstance(child, dict):
            raise ConfigError(
                f"{key}: expected keys below `{parent}:`, got {reprlib.repr(child)}; leave out "
                f"that, or {key}"
            )
        tree[parent] = tree = dict(child or {})
    tree[name] = value
    return key


def _explain(error: ValidationError) -> Iterator[tuple[str, str]]:
    """(dotted key, message) for each mistake that the user made."""
    for mistake in error.errors():
        key, kind, got = ".".join(map(str, mistake["loc"])), mistake["type"], mistake["input"]
        if kind == "default_factory_not_called":  # follows from another mistake, told elsewhere
            continue
        if kind == "extra_forbidden":
            yield key, f"{key}: unknown key; {_suggestion(key)}"
        elif kind == "value_error" and isinstance(got, dict):  # a cross-field check names its key
            yield key, str(mistake["ctx"]["error"])
        elif kind == "value_error":
            yield key, f"{key}: {mistake['ctx']['error']}, got {reprlib.repr(got)}"
        elif kind in ("model_type", "model_attributes_type"):
            yield key, f"{key}: expected keys below `{key}:`, got {reprlib.repr(got)}"
        else:
            expected = mistake["msg"].replace("Input should be", "expected")
            yield key, f"{key}: {expected}, got {reprlib.repr(got)}"


def _suggestion(key: str) -> str:
    known = [name for name, _, _ in fields(Config())]
    section, _, leaf = key.rpartition(".")
    by_leaf = {name.rpartition(".")[2]: name for name in known} | {
        name: name for name in Config.model_fields
    }
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    near = near or [by_leaf[m] for m in difflib.get_close_matches(leaf, by_leaf, n=1)]
    if near:
        return f"did you mean {near[0]}?"
    siblings = [name for name in known if name.startswith(f"{section}.")] if section else known
    return f"the keys are {', '.join(siblings)}"
