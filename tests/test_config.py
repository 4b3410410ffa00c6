"""Settings: what is read, what is refused, and in which words."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpt.api.resolve import as_changes
from gpt.config.combinations import combinations
from gpt.config.load import SHIPPED, load_config
from gpt.config.schema import (
    SETTINGS,
    Config,
    explicit,
)
from gpt.config.train_config import MAX_RATE, MUON_RATIO
from gpt.config.yaml import as_flow, parse, to_yaml
from gpt.errors import ConfigError, unescaped

RATES = "train: {learning_rate: 8e-3, muon_learning_rate: 0.03}"


def load(content: str, *overrides: str) -> Config:
    path = Path("x.yaml")
    path.write_text(content, encoding="utf-8")
    return load_config(path, overrides)


def refusal(content: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(content, *overrides)
    return str(caught.value)


def test_defaults_then_file_then_overrides_then_text() -> None:
    Path("x.yaml").write_text("train: {steps: 300, warmup_steps: 7}\ndata: {source: a.txt}\n")
    config = load_config(Path("x.yaml"), ["train.steps=500", "data.source=b.txt"])
    assert (config.train.steps, config.train.warmup_steps) == (500, 7)
    assert config.data.source == "b.txt"
    assert config.train.batch_size == Config().train.batch_size


def test_head_size_and_value_size_follow_C_unless_given() -> None:
    assert load("model: {C: 35, n_head: 5, positions: learned}").model.head_size == 7
    free = load("model: {C: 35, n_head: 3, head_size: 10, value_size: 17}").model
    assert (free.head_size, free.value_size) == (10, 17)
    assert load("model: {head_size: 10}").model.value_size == 10


@pytest.mark.parametrize(
    ("written", "meant"),
    [("3e-4", 3e-4), ("1e-3", 1e-3), ("1E-3", 1e-3), (".5", 0.5), ("2", 2.0), ("6.02e-2", 0.0602)],
)
def test_numbers_read_as_people_write_them(written: str, meant: float) -> None:
    """YAML 1.1, PyYAML's dialect, takes 3e-4 for a string."""
    changed = load(f"train: {{learning_rate: {written}, min_learning_rate: 0}}")
    assert changed.train.learning_rate == meant
    set_ = load("", f"train.learning_rate={written}", "train.min_learning_rate=0")
    assert set_.train.learning_rate == meant


@pytest.mark.parametrize("name", ["no", "yes", "on", "off", "010", "1:30", "2026-01-01", "0x1f"])
def test_words_stay_words(name: str) -> None:
    """YAML 1.1 takes `no` for false, 010 for 8, 1:30 for 90 and 2026-01-01 for a date."""
    assert load(f"data: {{source: {name}}}").data.source == name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("train: {lerning_rate: 1}", "train.lerning_rate: unknown key; did you mean train.learn"),
        ("modle: {T: 3}", "modle: unknown key; did you mean model?"),
        ("data: {T: 3}", "data.T: unknown key; did you mean model.T?"),
        ("sample: {zzzz: 3}", "sample.zzzz: unknown key; "),
        ("data: {newlines: crlf}", "data.newlines: expected 'lf' or 'keep', got 'crlf'"),
        ("train: {steps: yes}", "train.steps: expected a valid integer, got 'yes'"),
        ("train: {steps: 10.5}", "train.steps: expected a valid integer, got 10.5"),
        ("train: {learning_rate: fast}", "train.learning_rate: expected a valid number"),
        ("train: {learning_rate: .inf}", "train.learning_rate: expected a valid number"),
        ("model: {qkv_bias: no}", "model.qkv_bias: expected a valid boolean, got 'no'"),
        ("model: {dropout: 1}", "model.dropout: expected less than 1, got 1"),
        (
            "{model: {T: 12}, train: {first_window: 5}}",
            "train.first_window: expected a divisor of model.T (12), so that every "
            "step has the same number of characters, got 5",
        ),
        ("model: {positions: sine}", "model.positions: expected 'learned' or 'rotary', got 'sine'"),
        ("model: 3", "model: expected keys below `model:`, got 3"),
        ("model: {n_layer: 1001}", "model.n_layer: expected less than or equal to 1000"),
        ("device: tpu", "device: expected auto, cpu, cuda, cuda:N or mps, got 'tpu'"),
        ("- 1", "expected keys such as `model:`"),
        ("model: {C: 100, n_head: 3}", "model.head_size: model.C 100 is not a multiple of"),
        ("model: {head_size: 5}", "model.head_size: expected an even number"),
        (
            "model: {head_size: 2, key_offset: true}",
            "model.head_size: expected an even number, with model.key_offset of at least 4",
        ),
        ("seed: !!bool foo", "not valid YAML"),
        (
            'seed: !!int "010"',
            "line 1, column 7: not valid YAML: expected no aliases (*name), tags",
        ),
        ('train: {learning_rate: !!float "1:30"}', "expected no aliases (*name), tags (!!int)"),
        ("train: {eval_every: true}", "train.eval_every: expected a number of steps, or a part of"),
        ("train: {checkpoint_every: 0}", "train.checkpoint_every: expected a number of steps, or"),
        ("train: {plans: [[5, 0]]}", "train.plans.0.1: expected greater than 0, got 0"),
        ("train: {learning_rate: 1e4}", "train.learning_rate: expected less than or equal to 1000"),
        ("train: {lr: 1}", "train.lr: unknown key; did you mean train.learning_rate?"),
        ("block_size: 8", "block_size: unknown key; did you mean model.T?"),
        ("model: {n_embd: 8}", "model.n_embd: unknown key; did you mean model.C?"),
        ("max_iters: 8", "max_iters: unknown key; did you mean train.steps?"),
        ("batch_size: 8", "batch_size: unknown key; did you mean train.batch_size?"),
        ("model: {C: 1000000000000}", "model.C: expected less than or equal to 1000000000"),
        ("train: {steps: 9, warmup_steps: 10}", "train.warmup_steps: expected at most train.steps"),
        ("train: {plans: [[0, 9]]}", "train.plans: expected train.steps (2000) in the last plan"),
        (
            "train: {plans: [[0, 9], [7, 9], [7, 2000]]}",
            "train.plans: expected pairs of a step and a larger",
        ),
        ("train: {plans: 3}", "train.plans: expected a valid tuple, got 3"),
        ("train: {eval_every: 101 %}", "train.eval_every: expected a number of steps, or a part"),
        ("train: {min_learning_rate: 1}", "train.min_learning_rate: expected at most"),
        ("train: {batch_size: 8, accumulation: 3}", "train.accumulation: expected a divisor"),
        (
            "model:\n  T: 3\n  T: 4",
            "line 3, column 3: not valid YAML: expected different words as keys, got 'T'",
        ),
        ("model:\n  T: [3", "x.yaml, line 3, column 1: not valid YAML"),
        ("model:\n\tT: 3", "x.yaml, line 2, column 1: not valid YAML: a tab; indent by spaces"),
        ("? [a]\n: 3", "expected different words as keys"),
        ("a: !!python/object/apply:os.getcwd []", "expected no aliases (*name), tags (!!int)"),
        ("\x07", "not valid YAML"),
    ],
)
def test_a_mistake_is_told_with_its_key(content: str, message: str) -> None:
    told = refusal(content)
    assert message in told
    assert told.startswith("x.yaml")


def test_of_many_mistakes_ten_are_listed() -> None:
    """Bug: 5,000 unknown keys printed 6.7 MB, and 80,000 took more than 90 s."""
    lines = refusal("\n".join(f"k{i:05}: 1" for i in range(20_000))).splitlines()
    assert [line.split(": ")[1] for line in lines] == [f"k{i:05}" for i in range(10)]


def test_a_message_quotes_a_long_key_or_file_by_its_ends_and_on_one_line() -> None:
    """Bug: a key of 100,000 letters was printed whole, and one with a newline forged a line."""
    for told in (
        refusal("", f"{'x' * 100_000}=1"),
        refusal("", f"train.steps.{'x' * 100_000}=1"),
        refusal("", "x" * 100_000),
        refusal("", f"train.steps=[{'x' * 100_000}"),
        refusal("", f"train.steps={'9' * 10_000}"),
        refusal("", "a\ngpt: all is well=1"),
    ):
        assert len(told) < 400
        assert "\n" not in told
    with pytest.raises(ConfigError, match=r"^x+\.\.\.x+: cannot read the config"):
        load_config("x" * 5000)


def test_all_mistakes_are_told_at_once_each_once() -> None:
    """Settings given from Python were blamed on a command line."""
    told = refusal("model: {C: wide}\ntrain: {steps: 0, lr: 3}", "seed=-1")
    assert [line.split(": ")[:2] for line in told.splitlines()] == [
        ["seed", "expected greater than or equal to 0, got -1"],
        ["x.yaml", "model.C"],
        ["x.yaml", "train.steps"],
        ["x.yaml", "train.lr"],
    ]


def test_a_section_that_is_none_is_told_although_a_key_in_it_is_set() -> None:
    """It was dropped without a word, and all its other settings became the defaults."""
    advice = "model.T: expected keys below `model:`, got 5"
    assert refusal("model: 5", "model.T=16") == advice
    assert refusal("", "model=5", "model.T=16") == advice


@pytest.mark.parametrize("assignment", ["train.steps", "=3", "train.steps=["])
def test_an_override_that_says_nothing_is_refused(assignment: str) -> None:
    assert refusal("", assignment).startswith(f"--set {assignment}")


def test_an_override_below_a_setting_is_refused_where_it_was_written() -> None:
    """It was blamed on the file."""
    told = refusal("seed: 3", "train.steps.x=3")
    assert told == "train.steps: expected a valid integer, got {'x': 3}"


def test_a_shipped_config_is_found_by_its_name() -> None:
    assert load_config("quickstart") == load_config(SHIPPED / "quickstart.yaml")
    Path("quickstart").mkdir()  # of the same name, but no config
    assert load_config("quickstart").train.steps == 500
    Path("classic").write_text("seed: 3")
    assert load_config("classic").seed == 3
    with pytest.raises(ConfigError, match=r"quikstart: cannot read .*: classic, quickstart, "):
        load_config("quikstart")


def test_a_config_is_changed_by_overrides_and_keeps_what_follows_from_them() -> None:
    base = load("train: {steps: 300}\nmodel: {C: 64}")
    config = load_config(base, ["train.steps=50", "data.source=b.txt"])
    assert (config.train.steps, config.train.warmup_steps) == (50, 5)
    assert (config.model.C, config.model.head_size, config.data.source) == (64, 16, "b.txt")


def test_a_file_that_cannot_be_read_is_told() -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot read the config"):
        load_config(Path("missing.yaml"))
    Path("folder").mkdir()
    with pytest.raises(ConfigError, match="cannot read the config"):
        load_config(Path("folder"))
    Path("latin.yaml").write_bytes(b"data: {source: caf\xe9}")
    with pytest.raises(ConfigError, match=r"latin\.yaml: expected UTF-8"):
        load_config(Path("latin.yaml"))


def test_empty_files_and_sections_mean_the_defaults() -> None:
    assert load("") == load("# nothing\n") == load("train:\nmodel:\n") == Config()
    assert load("model: {C: 64, head_size: null}").model.head_size == 16
    assert load("train: {patience: 3}", "train.patience=null").train.patience is None


@given(
    T=st.integers(1, 2**19),
    rate=st.floats(1e-12, MAX_RATE / MUON_RATIO),
    source=st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1),
    stop=st.none() | st.floats(1e-9, 10),
    bias=st.booleans(),
)
def test_the_resolved_config_reads_back_as_itself(
    T: int, rate: float, source: str, stop: float | None, bias: bool
) -> None:
    config = Config.model_validate(
        {
            "data": {"source": source},
            "model": {"T": T, "qkv_bias": bias},
            "train": {"learning_rate": rate, "min_learning_rate": 0, "stop_at_val_loss": stop},
        }
    )
    written = to_yaml(config)
    assert load(written) == config
    assert yaml.safe_load(written)["data"]["source"] == source


@pytest.mark.parametrize("source", ["1e5", "010", "true", "null", "~", "3", "- a", "a: b", "# c"])
def test_a_text_named_like_a_number_reads_back_as_itself(source: str) -> None:
    config = Config.model_validate({"data": {"source": source}})
    assert load(to_yaml(config)) == config


@pytest.mark.parametrize(
    ("written", "changes", "expected"),
    [
        ("", [], (4e-3, 0.02)),
        ("", ["train.learning_rate=1e-3"], (1e-3, 5e-3)),
        ("train: {learning_rate: 2e-3}", [], (2e-3, 0.01)),
        ("train: {learning_rate: 2e-3}", ["train.learning_rate=4e-3"], (4e-3, 0.02)),
        (RATES, [], (8e-3, 0.03)),
        (RATES, ["train.learning_rate=2e-3"], (2e-3, 7.5e-3)),
        (RATES, ["train.learning_rate=2e-3", "train.muon_learning_rate=1"], (2e-3, 1)),
        (RATES, ["train.muon_learning_rate=0.06"], (8e-3, 0.06)),
        (RATES, ["train.muon_learning_rate=null"], (8e-3, 0.04)),
    ],
)
def test_muons_learning_rate_is_in_proportion_to_the_one_that_is_set(
    written: str, changes: list[str], expected: tuple[float, float]
) -> None:
    """Bug: a sweep over train.learning_rate left Muon's rate, that of most parameters, alone."""
    train = load(written, *changes).train
    assert (train.learning_rate, train.muon_learning_rate) == pytest.approx(expected, rel=1e-12)


def test_a_resolved_config_keeps_its_digits() -> None:
    """A run's config.yaml has both rates: whatever their ratio is, it resumes as it was."""
    config = load(RATES, "train.learning_rate=1.7e-3")
    again = load(to_yaml(config), f"train.learning_rate={config.train.learning_rate}")
    assert again.train == config.train


def test_plans_read_back_as_themselves() -> None:
    config = load("train: {steps: 850, minutes: 10, plans: [[0, 900], [400, 850]]}")
    assert config.train.warmup_steps == 90  # of the steps planned at first
    assert "  plans: [[0, 900], [400, 850]]" in to_yaml(config)
    assert load(to_yaml(config)) == config


def test_a_value_that_unfolds_without_end_is_refused_at_once() -> None:
    """Nine levels of nine aliases hold 387 million leaves; no alias is followed."""
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(9)]
    assert "expected no aliases (*name)" in refusal("\n".join([*levels, "seed: *a8"]))


def test_there_are_few_settings() -> None:
    assert len(SETTINGS) <= 76


def test_every_setting_is_described_with_its_choices_and_belongs_to_a_group() -> None:
    assert all(len(setting.description) > 10 and setting.group for setting in SETTINGS.values())
    assert SETTINGS["train.optimizer"].description.startswith("muon | adamw: ")


def test_the_resolved_config_is_grouped_by_concern() -> None:
    lines = to_yaml(Config()).splitlines()
    train = lines[lines.index("train:") :]
    for heading, key in [("optimizer", "optimizer"), ("early stopping", "stop_at_val_loss")]:
        assert train[train.index(f"  # {heading}") + 1].startswith(f"  {key}: ")


def test_a_default_is_spelled_as_a_config_file_spells_it() -> None:
    """Help showed None and True, which YAML reads as words."""
    for key, setting in SETTINGS.items():
        assert load("", f"{key}={setting.default}") == Config(), key


@pytest.mark.parametrize("value", ["0", "x", "3.5", "true", "99999"])
def test_a_wrong_number_of_threads_is_told(value: str) -> None:
    with pytest.raises(ConfigError, match="threads: expected auto or a number from 1 to 1024"):
        load_config(None, [f"threads={value}"])


# --- --set: a value arrives as it is typed, or is refused ---

NAMES = (  # settings that take a text
    *("device", "data.source", "data.include", "data.column", "data.separator", "data.encoding"),
    *("data.exclude", "data.val_source", "data.vocabulary", "train.init_from"),
)
LISTS = ("data.source", "data.include", "data.exclude", "data.val_source", "train.plans")
TRAPS = st.sampled_from(
    [
        *(
            "---",
            "###",
            "# ",
            " ",
            "\n",
            "\t",
            "|",
            ">",
            "#text",
            "*.py",
            "!*.c",
            "&a",
            "*",
            "-",
            "~",
        ),
        *("0", "010", "1e5", "true", "no", "Null", "5 # five", "--- 5", "!!int 5", "? a", "a: b"),
        *("[a", "a]", "[]", "[SEP]", "[a] # ]", "{", "{a: 1}", "'", '"', '"a" # "', "%", "@", "`"),
        *("10 %", "5 min", "\u2028", "\x85", "\ufeff", "\x07", "\udcff", "=", "a=b", ",", "a,b"),
    ]
)
TYPED = TRAPS | st.text(max_size=9) | st.integers().map(str) | st.floats().map(str)


@pytest.mark.parametrize("key", SETTINGS)
@settings(max_examples=10)
@given(text=TYPED)
def test_any_text_after_set_arrives_or_ends_in_one_message(key: str, text: str) -> None:
    """Bug: `data.separator=---`, `=###` and `data.column=#text` silently became the default."""
    assume(text != "null" and not re.fullmatch(r"""(["']).*\1""", text, re.DOTALL))
    try:
        if any(combinations([f"{key}={text}"]).values()):
            return  # several values: a sweep
        config = load_config(None, [f"{key}={text}"])
    except ConfigError as error:
        # model.C=4 is refused for the head_size that follows from it
        assert any(name in str(error) for name in (key, "model.head_size"))
        assert len(str(error).splitlines()) == 1
        assert len(str(error)) < 500
        return
    value = explicit(config)[key]
    if key in LISTS and re.fullmatch(r"\[.*\]", text):
        values = [value] if isinstance(value, str) else value
        assert as_flow(values) == as_flow(yaml.safe_load(text))
    elif key in NAMES:
        text = unescaped(text) if key in ("data.separator", "data.column") else text
        assert value == ((text,) if key in ("data.include", "data.exclude") else text)
        assert load(to_yaml(config)) == config
    elif isinstance(value, bool):
        assert text.strip().lower() == str(value).lower()
    elif isinstance(value, int | float):
        assert float(text.strip()) == value
    else:
        assert value == text.strip()


@pytest.mark.parametrize(
    ("typed", "separator"),
    [
        *(
            (each, each)
            for each in ("---", "###", "# ", " ", "|", "", "\n", "[SEP]", "~", "5", "'")
        ),
        *((r"\n", "\n"), (r"\t", "\t"), (r"a\n\nb\d", "a\n\nb\\d")),
        *((r'"\n"', "\n"), (r"'\n'", r"\n"), ('"null"', "null"), ("null", "\n\n"), ('" "', " ")),
    ],
)
def test_a_separator_is_taken_as_typed(typed: str, separator: str) -> None:
    """Bug: `---`, `###` and `# ` became the default, `|` nothing, `\\n` two letters."""
    assert load("", f"data.separator={typed}").data.separator == separator


@pytest.mark.parametrize(
    ("typed", "globs"),
    [
        ("*.md", ("*.md",)),
        ("!*.c", ("!*.c",)),
        ("[ab]*.py", ("[ab]*.py",)),
        (r"new\table*", (r"new\table*",)),
        ('["*.py", "!test_*.py"]', ("*.py", "!test_*.py")),
        ("[a.py]", ("a.py",)),
    ],
)
def test_globs_are_taken_as_typed(typed: str, globs: tuple[str, ...]) -> None:
    """Bug: `data.include=*.md` was a YAML error."""
    assert load("", f"data.include={typed}").data.include == globs


@pytest.mark.parametrize("typed", ["[*.py]", "[!*.c]"])
def test_a_list_that_is_not_yaml_is_refused(typed: str) -> None:
    assert "not valid YAML" in refusal("", f"data.include={typed}")


def test_a_column_is_named_by_any_text() -> None:
    """Bug: `data.column=0` was refused, and `#text` became no column."""
    for name in ("0", "#text", "true", "1e5"):
        assert load("", f"data.column={name}").data.column == name


@pytest.mark.parametrize("typed", ["#5", "5 # five", "", "~", "Null", "--- 5", "&a 5", "!!int 5"])
def test_a_number_with_anything_around_it_is_refused(typed: str) -> None:
    """Bug: `train.steps=#5` trained the default number of steps."""
    assert refusal("", f"train.steps={typed}").startswith("train.steps: expected a valid integer")


@given(separator=st.text(st.characters(exclude_categories=["Cs"])), include=st.lists(st.text()))
def test_a_value_of_python_arrives_as_it_is(separator: str, include: list[str]) -> None:
    """Bug: settings of Python were written as YAML and read again."""
    include = [name for name in include if name.isprintable()]
    changes = as_changes({"data.separator": separator, "data.include": include})
    data = load_config(None, changes).data
    assert (data.separator, data.include) == (separator, tuple(include))


def test_numpy_and_torch_numbers_and_paths_are_settings() -> None:
    """Bug: a numpy scalar was a TypeError of json."""
    settings = {
        "train.steps": np.int64(7),
        "train.learning_rate": np.float64(0.25),
        "model.qkv_bias": np.bool_(True),
        "sample": {"top_k": np.uint8(3), "top_p": torch.tensor(0.5)},
        "data.source": [Path("a.txt"), np.str_("b.txt")],
        "train.plans": np.array([[0, 7]]),
    }
    config = load_config(None, as_changes(settings))
    assert (config.train.steps, config.train.learning_rate) == (7, 0.25)
    assert (config.model.qkv_bias, config.data.source) == (True, ("a.txt", "b.txt"))
    assert (config.sample.top_k, config.sample.top_p) == (3, 0.5)
    assert config.train.plans == ((0, 7),)
    assert load(to_yaml(config)) == config
    for wrong in (5, True, {"a": 1}, object()):
        with pytest.raises(ConfigError, match=r"^data\.column: expected"):
            load_config(None, as_changes({"data.column": wrong}))


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(value=st.one_of(_TEXTS, st.lists(_TEXTS), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_value_of_python_is_read_back_from_a_line(value: object) -> None:
    """A text named by an emoji could not be trained on: JSON writes a pair, which YAML refuses."""
    written = as_flow(value)
    assert written.isprintable() and written.isascii()
    assert parse(written, "here") == value
