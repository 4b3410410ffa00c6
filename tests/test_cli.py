"""The commands: what they print, where, and the code they end with."""

import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from faults.command_lines import fuzzed_command_lines
from faults.work import Work

from gpt import api
from gpt.config.load import load_config
from gpt.config.schema import SETTINGS
from gpt.evaluation.baselines import trigram_bits_per_character
from gpt.reading.sources import open_source
from gpt.text.corpus import load_corpus
from gpt.training.advice import advise
from gpt.training.run_state import Progress
from tests.conftest import HANGS_S, PANGRAM, metrics_of, rehash, small, wait_until


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the config of `config_file`, whose text is pangram.txt in the working folder."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "pangram.txt").write_text(PANGRAM * 29)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        api.train(small(data__source="pangram.txt", sample__length=17), run_dir="runs/small")
    return folder / "runs/small"


@pytest.fixture
def trained(trained_once: Path, config_file: Path) -> Path:
    shutil.copytree(trained_once, "runs/small")
    return Path("runs/small")


LIGHT = [  # command lines, and their exit codes
    (["--help"], 0),
    (["--version"], 0),
    (["train", "--help-all"], 0),
    (["train", "--set", "train.stpes=3"], 2),
    (["train", "--lr", "3"], 2),
    (["explain", "haed"], 2),
    (["train", "--resume", "nowhere"], 2),
    (["sample", "nowhere"], 2),
    (["eval", "nowhere"], 2),
    (["attend", "--help"], 0),
    (["attend", "nowhere", "--text", "a", "--out", "a.png"], 2),
    (["data", "pangram.txt", "--html", "page.html"], 0),
    (["sample", "--device", "cpu"], 0),  # `import torch` takes longer than a thousand characters
]
LIGHT_PROGRAM = """
import sys
from gpt.cli.main import main
for arguments, code in eval(sys.argv[1]):
    sys.argv = ["gpt", *arguments]
    try:
        main()
    except SystemExit as end:
        assert end.code == code, (arguments, end.code)
    assert "torch" not in sys.modules, arguments
    assert arguments != ["--help"] or not {"numpy", "pydantic"} & {*sys.modules}
print("LIGHT")
"""


def test_what_needs_no_torch_imports_none(trained):
    """Bug: the list of commands imported numpy and pydantic, which took 0.15 s."""
    done = subprocess.run(
        [sys.executable, "-c", LIGHT_PROGRAM, repr(LIGHT)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LIGHT"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command", [[], ["train"], ["sample"], ["eval"], ["compare"], ["attend"], ["explain"], ["data"]]
)
def test_help_fits_the_terminal_and_cuts_nothing(gpt, monkeypatch, command):
    """At 80 columns the descriptions of the commands ended in dots."""
    monkeypatch.setenv("COLUMNS", "10000")
    _, unwrapped, _ = gpt(*command, "--help")
    for columns in (80, 100, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        code, out, _ = gpt(*command, "--help")
        assert code == 0
        assert max(map(len, out.splitlines())) <= min(columns, 100)
        assert "..." not in re.sub(r"[\[{](ARGS|TEXT|RUN)[\]}]\.\.\.", "", out)
        assert not re.search(r"--.* <\w", out), "an option such as --top-k <int range>"
        assert set(out.split()) == set(unwrapped.split())  # no word is broken


def test_help_of_train_explains_every_flag_and_every_setting(gpt):
    """Bug: --help had 261 lines."""
    _, short, _ = gpt("train", "--help")
    assert (len(short.splitlines()) <= 60, "--help-all" in short) == (True, True)
    _, out, _ = gpt("train", "--help-all")
    flags = ["--config", "--set", "--device", "--run-dir", "--resume", "--overwrite", "--dry-run"]
    told = " ".join(out.split())
    for word in [*flags, "--json"]:
        assert f"  {word}" in out
    for setting in SETTINGS.values():
        assert f"{setting.key} {setting.description} [" in told
    assert "train.optimizer muon | adamw: Muon for the matrices of" in told
    assert "null = do not [null]" in told
    headings = re.findall(r"^  (\S.*):$", out, re.MULTILINE)
    assert headings == list(dict.fromkeys(each.group for each in SETTINGS.values()))
    code, _, err = gpt()
    assert (code, "train" in err, "sample" in err) == (2, True, True)


def test_train_ends_with_its_scores_two_commands_and_a_sample(gpt, config_file):
    code, out, err = gpt("train", "--config", config_file)
    assert code == 0
    lines = out.strip("\n").split("\n", 6)
    best = min(r["val_loss"] for r in metrics_of(Path("runs/small")) if "val_loss" in r)
    assert lines[0].startswith("all steps done: step 11 after ")
    assert lines[0].endswith(f"has a val loss of {best:.4f}")
    judged = r"(\S+) bits per character \(\S+ per byte\); a trigram model needs (\S+)"
    bits, trigram = map(float, re.fullmatch(judged, lines[1]).groups())  # type: ignore[union-attr]
    assert bits == pytest.approx(best / math.log(2), abs=0.006)
    expected = trigram_bits_per_character(load_corpus(open_source("pangram.txt")))
    assert trigram == pytest.approx(expected, abs=0.006)
    assert re.match("more t|neither", lines[2]), "what would help most"
    assert lines[3].startswith("watch:   ")
    assert lines[3].endswith("tensorboard --logdir runs")
    assert lines[4] == "sample:  gpt sample runs/small"
    assert len(lines[6]) == 17
    assert "2,407 characters, vocabulary of 31; writing runs/small" in err
    assert [line.split(":")[0] for line in err.splitlines() if line.startswith("step ")] == [
        f"step {step}" for step in (0, 4, 8, 11)
    ]
    assert "\r" not in err  # no bar where there is no terminal


@pytest.mark.parametrize("on_path", [True, False])
def test_the_commands_it_ends_with_exist_in_the_same_shell(
    gpt, config_file, tmp_path, monkeypatch, on_path
):
    """After `.venv/bin/gpt train`, `gpt sample` was advised, which that shell did not find."""
    program = tmp_path / "my programs" / "gpt"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom gpt.__main__ import main\nmain()\n")
    program.chmod(0o755)
    folders = [str(program.parent)] if on_path else []
    monkeypatch.setenv("PATH", os.pathsep.join([*folders, "/usr/bin", "/bin"]))
    _, out, _ = gpt("train", "--config", config_file, program=program)
    advised = dict(line.split(": ", 1) for line in out.splitlines()[4:6])
    started = "gpt" if on_path else shlex.quote(str(program))
    assert advised["sample"].strip() == f"{started} sample runs/small"
    for words in (f"{advised['sample']} --length 7", f"{advised['watch']} --help"):
        assert subprocess.run(words, shell=True, capture_output=True, check=True).stdout


def test_train_json_is_one_object(gpt, config_file):
    code, out, _ = gpt("train", "--config", config_file, "--json")
    result = json.loads(out)
    assert code == 0
    assert (result["step"], result["run"], len(result["sample"])) == (11, "runs/small", 17)
    assert load_config(Path(result["run"], "config.yaml")) == load_config(config_file)
    assert result["text"].endswith("pangram.txt")
    weights = api.load(result["run"]).checkpoint.weights
    assert result["parameters"] == sum(array.size for array in weights.values())
    assert result["seed"] == 1337
    assert result["best_val_loss"] <= result["val_loss"]


def test_overwrite_replaces_a_run_and_nothing_else(gpt, trained, config_file):
    keepsake = Path("documents/thesis.tex")
    keepsake.parent.mkdir()
    keepsake.write_text("years of work")
    arguments = ("train", "--config", config_file, "--run-dir")
    code, _, err = gpt(*arguments, "documents", "--overwrite")
    assert (code, "left alone" in err, keepsake.exists()) == (2, True, True)
    (trained / "notes.md").write_text("and its notes")
    code, _, err = gpt(*arguments, trained)
    assert (
        code,
        "runs/small exists; resume it by gpt train --resume runs/small, replace it by --" in err,
    ) == (2, True)
    code, _, err = gpt(*arguments, trained, "--overwrite", "--set", "train.steps=3")
    assert code == 0
    assert [r["step"] for r in metrics_of(trained)] == [0, 3]
    assert (trained / "notes.md").read_text() == "and its notes"


BAD_INPUT = [  # a command line, the exit code, and a part of the message
    ("train --no-such-flag", 2, "No such option: --no-such-flag (see"),
    ("train --name a", 2, "did you mean --run-dir?"),  # Bug: did you mean model.ngram?
    ("train --model a", 2, "Possible options: --help) (see"),  # Bug: did you mean --set model?
    ("train --minuts 1", 2, "No such option: --minuts (Possible options: --minutes); did"),
    ("smaple", 2, "No such command 'smaple'. Did you mean 'sample'? (see"),
    ("train --set train.lr=1", 2, "train.lr: unknown key; did you mean train.learning_rate?"),
    ("train --minutes x", 2, "Invalid value for '--minutes': expected a valid number (see"),
    ("train --config missing.yaml", 2, "missing.yaml: cannot read the config"),
    ("train --config syntax.yaml", 2, "syntax.yaml, line 2, column 1: not valid YAML"),
    ("train --minutes 1 --set train.max_steps=1", 2, "because it is more than train.max_steps"),
    (
        "train --set data.val_source=a --set data.val_fraction=0.2",
        2,
        "data.val_fraction has no effect, because data.val_source is val",
    ),
    ("train latin.txt", 1, "latin.txt: byte 0xe9 at offset 3 is not UTF-8"),
    ("train full", 1, "full: expected text files, got none; skipped 1 empty (full/file)"),
    ("train --device cuda:77", 2, "device cuda:77: expected auto or cpu"),
    ("train --run-dir latin.txt/run", 1, "latin.txt: expected a folder that you may write to"),
    ("sample --prompt Éa!", 2, "outside the model's vocabulary: É !;"),
    ("sample nowhere", 2, "nowhere: expected the folder of a run with a checkpoint"),
    ("sample --temperature -1", 2, "--temperature"),
    ("sample --stop É", 2, "stop string has characters outside the model's vocabulary: É; the"),
    ("sample --prompt-file .", 2, "--prompt-file .: cannot read it (Is a directory)"),
    ("sample --prompt-file latin.txt", 2, "latin.txt: expected UTF-8 text, but "),
    ("sample --interactive --json", 2, "leave out --prompt, --prompt-file, --num-"),
    ("attend --text a --layer 3", 2, "--layer: expected 1 to 2, got 3"),
    ("attend --text a --head 1 --out a.png", 2, "a picture shows all heads; leave"),
    ("attend --text a --out a.jpg", 2, "a.jpg: expected a name that ends in .png or .html"),
    ("attend --text a --out full.png", 2, "full.png: expected a new name or a plain file"),
    ("attend --text aaaaaaaaaaaaaa", 2, "model.T = 13 characters"),
    ("eval small --by words", 2, "--by: expected position | script | character, got"),
    ("eval small one.txt", 1, "one.txt: expected at least 2 characters of the model's vocabulary"),
    ("explain Scalling", 2, "Scalling: no such lesson; lessons are counting, averaging"),
    ("explain folow", 2, "dropout, recipe, follow"),  # bug: follow was not in the list
    ("explain follow --run nowhere", 2, "nowhere: expected the folder of a run"),
    ("explain head --run nowhere", 2, "--run works only with the lesson follow"),
    ("explain head --text fox", 2, "--text works only with the lesson follow"),
    ("explain textbook", 2, "textbook: it is a program, not a lesson; add --write FILE.py"),
    ("data", 2, "Missing argument 'TEXT'"),
    ("data one.txt --set data.encodign=cp1252", 2, "did you mean data.encoding?"),
    ("data one.txt --html page.txt", 2, "--html page.txt: expected a name that ends in .html"),
]


@pytest.mark.parametrize(("command", "code", "message"), BAD_INPUT)
def test_bad_input_ends_in_one_message(gpt, trained, command, code, message):
    """Bug: messages of the parser had another form, below three lines of usage."""
    Path("syntax.yaml").write_text("model:\n\tT: 3\n")
    Path("latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    Path("one.txt").write_text("§§a§")
    Path("full.png").mkdir()
    Path("full").mkdir()
    Path("full/file").touch()
    words = shlex.split(command)
    if words[0] == "train" and "--config" not in words:
        words[1:1] = ["--config", "small.yaml"]
    got, out, err = gpt(*words)
    assert (got, out) == (code, "")
    last = err.splitlines()[-1]
    assert last.startswith("gpt: ")
    assert message in last
    assert "Traceback" not in err
    assert ([*Path("runs").iterdir()], Path("a.png").exists()) == ([trained], False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("arguments", [[], ["--run-dir", "kept"], ["--seeds", "2"]])
def test_a_folder_that_may_not_be_written_to_is_told_before_a_config_is_chosen(gpt, arguments):
    """A run was planned for 40 seconds, and then had no folder."""
    Path("text.txt").write_text("to be or not to be " * 100)
    for name in ("runs", "kept"):
        Path(name).mkdir()
    for name in ("config.yaml", "provenance.jsonl"):
        Path("kept", name).touch()
    for name in ("runs", "kept"):
        Path(name).chmod(0o555)
    overwrite = ["--overwrite"] if "--run-dir" in arguments else []
    code, _, err = gpt("train", "text.txt", *arguments, *overwrite)
    assert (code, "expected a folder that you may write to" in err) == (1, True)
    assert "model: " not in err


def test_the_program_ends_without_a_search_for_cycles():
    """Bug: on busy cores the prompt came back 2 to 5 s after the last line of output."""
    script = (
        "import atexit, gc, sys; from gpt.__main__ import main; sys.argv = ['gpt', '--version']; "
        "atexit.register(lambda: print(gc.get_freeze_count() > 0)); main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["True"]


def test_debug_shows_where(config_file):
    command = [sys.executable, "-m", "gpt", "train", "nowhere.txt", "--debug"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "Traceback" in done.stderr
    assert "nowhere.txt: no such text" in done.stderr


def test_sample_generates_a_new_text_each_time_and_names_what_repeats_it(gpt, trained):
    """It once generated the same text each time, and named neither run, step nor seed."""
    (_, text, line), (_, other, _) = (gpt("sample") for _ in range(2))
    assert text != other
    val_loss = next(r["val_loss"] for r in metrics_of(trained) if r["step"] == 11)
    assert line.startswith(f"runs/small, step 11, val loss {val_loss:.4f}, seed ")
    assert line.count("\n") == 1
    seed = line.split("seed ")[1].split()[0]
    assert f"(--seed {seed} repeats this)" in line
    _, again, line = gpt("sample", "--seed", seed)
    assert (again, line.endswith(f"seed {seed}\n")) == (text, True)
    _, out, _ = gpt("sample", "--json")
    result = json.loads(out)
    assert (result["step"], result["val_loss"]) == (11, val_loss)
    _, again, _ = gpt("sample", "--seed", result["seed"])
    assert again.strip("\n") == result["samples"][0]["text"].strip("\n")


def test_sample_as_json_says_how_likely_each_character_was(gpt, trained):
    arguments = ("--prompt", "the ", "--prompt", "fox", "--num-samples", 2, "--stop", "e")
    code, out, _ = gpt("sample", "--json", *arguments, "--length", 60, "--seed", 3)
    told = json.loads(out)
    assert (code, told["run"], told["step"], told["seed"]) == (0, "runs/small", 11, 3)
    assert [sample["prompt"] for sample in told["samples"]] == ["the ", "the ", "fox", "fox"]
    for one in told["samples"]:
        assert set(one) == {"prompt", "text", "stop", "log_probabilities"}
        assert len(one["text"]) == len(one["log_probabilities"])
        assert "e" not in one["text"]
        assert one["stop"] == "e" or (one["stop"], len(one["text"])) == (None, 60)
        assert all(value <= 0 for value in one["log_probabilities"])


def test_typed_escapes_are_newlines_tabs_and_backslashes(gpt, config_file, text_file):
    r"""Bug: \n in --prompt and --stop was a backslash and a letter, silently."""
    text_file.write_text("a\tb\\n\n\n" * 400)
    assert gpt("train", "--config", config_file)[0] == 0
    arguments = ("sample", "--seed", 3, "--length", 40, "--json")

    def prompt_and_stop(prompt: str, stop: str) -> tuple[str, str]:
        _, out, _ = gpt(*arguments, "--temperature", 1, "--prompt", prompt, "--stop", stop)
        (one,) = json.loads(out)["samples"]
        return one["prompt"], one["stop"]

    assert prompt_and_stop(r"a\tb\\n\n", r"\n") == ("a\tb\\n\n", "\n")
    assert prompt_and_stop("a\tb\n", r"\t") == ("a\tb\n", "\t")
    assert prompt_and_stop(r"b\b", "n") == (r"b\b", "n")


def test_sample_continues_a_file_or_from_standard_input(gpt, trained, monkeypatch):
    Path("prompt.txt").write_text("the lazy\n")
    sample = ("sample", "--seed", 3)
    expected = gpt(*sample, "--prompt", "the lazy\n")
    assert expected[0] == 0
    assert gpt(*sample, "--prompt-file", "prompt.txt") == expected
    Path("marked.txt").write_text("\ufeffthe lazy\n")  # as some editors do
    assert gpt(*sample, "--prompt-file", "marked.txt") == expected
    with Path("prompt.txt").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert gpt(*sample, "--prompt-file", "-") == expected


def test_a_conversation_is_held_on_standard_input(trained):
    """As `gpt sample --prompt` would continue each line; the end of the input leaves."""
    command = [sys.executable, "-m", "gpt", "sample", "--seed", "3", "--interactive"]
    command += ["--length", "9"]
    done = subprocess.run(
        command, input="the\nÉ\n/length 3\n/seed 4\nfox", capture_output=True, text=True
    )
    told = subprocess.run(
        [*command[:6], "--prompt", "the", "--length", "9"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, told.stderr)
    assert f"> {told.stdout}> the text has characters outside" in done.stdout
    assert "> length 3\n> seed 4\n> fox" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [("--prompt-file - <&-", 1), ("--interactive <&-", 1), (">&-", 1), ("2>&-", 0)],
)
def test_a_closed_stream_does_not_end_a_command(trained, arguments, lines):
    """Closed standard input once ended in Python's own words; it is an empty one."""
    command = f"{sys.executable} -m gpt sample --length 3 {arguments}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (0, lines)


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("\n", 1), ("", 1), ("no\n", 1)])
def test_delete_asks_in_a_terminal(gpt, trained, monkeypatch, typed, code):
    """Bug: `gpt runs --delete` deleted at once."""
    terminal = io.StringIO(typed)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    got, _, err = gpt("runs", "--delete", "small")
    assert (got, trained.exists()) == (code, code == 1)
    assert err.startswith("Delete runs/small and its checkpoints? [y/N] ")


def test_a_hostile_config_cannot_speak_to_the_terminal(gpt, trained):
    best = trained / "checkpoints/step-11"
    (best / "config.json").write_text('{"\\u001b[2Jevil": 1}')
    assert "config.json: its SHA-256 differs" in gpt("sample")[2]
    rehash(best)  # as a stranger can
    code, _, err = gpt("sample")
    assert (code, "no setting \\x1b[2Jevil with" in err, "\x1b" in err) == (1, True, False)


def test_a_moved_run_samples_on(gpt, trained):
    expected = gpt("sample", trained, "--seed", 3)[1]
    trained.rename("elsewhere")
    assert gpt("sample", "elsewhere", "--seed", 3)[1] == expected


def test_a_pipe_that_closes_ends_quietly(trained):
    command = f"{sys.executable} -m gpt sample --length 100000 --temperature 1 | head -c 5"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (len(done.stdout), done.stderr.count("\n")) == (5, 1)


def test_attend_draws_blocks_in_a_terminal(trained):
    """Blocks are drawn even if the environment declares an ASCII terminal: click uses UTF-8."""
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "gpt", "attend", "--text", "the fox"]
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    settings = {"COLUMNS": "80", "TERM": "xterm", "PYTHONIOENCODING": "ascii"}
    subprocess.run(command, stdout=follower, env=plain | settings, check=True)
    os.close(follower)
    shown = os.read(leader, 10_000).decode()
    os.close(leader)
    assert shown.splitlines()[3].startswith("t ██")  # the first character: weight 1 on itself


def test_attend_without_text_shows_a_passage_of_the_runs_val_split(gpt, trained):
    """Bug: it asked for --text; a passage of the run's own text is what its heads know."""
    code, out, err = gpt("attend")
    assert (code, err) == (0, "")
    text = PANGRAM * 29
    val = text[int(0.9 * len(text)) :]
    assert out == gpt("attend", "--text", val[:13])[1]  # T = 13
    Path(api.load("small").config.data.source).unlink()
    code, out, err = gpt("attend")
    assert (code, out) == (1, "")
    assert "to show the heads on another text, give --text" in err


def test_a_second_ctrl_c_ends_training_whatever_its_threads_compute(text_file, start):
    """Python waits for its threads at the exit: once for the rest of the step."""
    script = """
import os, sys, time, torch
from gpt.__main__ import main
from gpt.model.transformer import GPT
torch.set_num_threads(2)
def compute_for_long(module, inputs):
    if isinstance(module, GPT) and module.training:
        os.write(1, b"computing\\n")  # at once, also where two threads do
        time.sleep(10**6)
torch.nn.modules.module.register_module_forward_pre_hook(compute_for_long)
sys.argv = ["gpt", "train", sys.argv[1], "--set", "train.steps=9", "--set", "device=cpu"]
main()
"""
    command = (sys.executable, "-c", script, text_file)
    told = Path("told.txt")
    with told.open("w") as stderr:
        process = start(*command, stdout=subprocess.PIPE, stderr=stderr)
    assert process.stdout
    assert process.stdout.readline() == "computing\n"
    repeat_at = 0.0

    def is_stopping() -> bool:
        """Send SIGINT every 10 s: one just before the main thread waits takes the next one."""
        nonlocal repeat_at
        if time.monotonic() > repeat_at:
            process.send_signal(signal.SIGINT)
            repeat_at = time.monotonic() + 10
        return "stopping" in told.read_text()

    wait_until(is_stopping, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(HANGS_S) == 130
    err = told.read_text()
    assert "stopped at once" in err
    assert "Traceback" not in err


INTERRUPTED_IMPORT = """
import os, signal, sys
import gpt.__main__ as program

number = int(sys.argv.pop())

class Interrupt:
    left = int(sys.argv.pop())

    def find_spec(self, name, path, target=None):
        Interrupt.left -= 1
        if Interrupt.left == 0:
            os.kill(os.getpid(), number)

sys.meta_path.insert(0, Interrupt())
program.main()
"""


@pytest.mark.parametrize(
    ("module", "number"),
    [*product([1, 7, 101, 307, 907], [signal.SIGINT]), (7, signal.SIGTERM), (101, signal.SIGHUP)],
)
def test_a_signal_amid_an_import_ends_in_one_line(trained, module, number, start):
    """In 140 tries one was an abort in C++, one "cannot load module", eight had no message.

    Bug: SIGTERM and SIGHUP in the first second ended the program without a message.
    """
    arguments = ["attend", trained, "--text", "the", "--out", "a.html", module, int(number)]
    process = start(sys.executable, "-c", INTERRUPTED_IMPORT, *arguments, stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=HANGS_S)
    message = "".join(line for line in err.splitlines(True) if not line.endswith(" ...\n"))
    assert (process.returncode, message) == (128 + number, "\ngpt: stopped at once\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_training_ends_in_one_line(start, number):
    """Bug: outside of a training, SIGTERM and SIGHUP ended the program without a message."""
    process = start(
        *(sys.executable, "-c", SIGNAL_IN_A_COMMAND, int(number)), stderr=subprocess.PIPE
    )
    _, err = process.communicate(timeout=HANGS_S)
    assert (process.returncode, err) == (128 + number, "\ngpt: stopped at once\n")


SIGNAL_IN_A_COMMAND = """
import os, sys
import gpt.__main__ as program
import gpt.cli.main

number = int(sys.argv.pop())
sys.argv = ["gpt", "runs"]
gpt.cli.main.app = lambda *arguments, **options: os.kill(os.getpid(), number)
program.main()
"""


def test_a_file_name_makes_no_line_of_a_message(gpt, config_file):
    """Bug: a line end in a file's name began a line, which could pass for one of this program."""
    forged = "a\ngpt: all is well"
    Path("notes").mkdir()
    Path("notes/good.txt").write_text(PANGRAM * 29)
    Path(f"notes/{forged}.txt").write_bytes(b"\0\1\2" * 99)
    Path(f"{forged}.yaml").write_text("nonsense: 1\nfolly: 2\n")
    for arguments, lines in (
        (["train", f"{forged}.txt"], 1),
        (["train", "--config", f"{forged}.yaml"], 2),
        (["train", "--config", f"{forged}.yml"], 1),
        (["sample", forged], 1),
        (["train", "notes", "--config", config_file], None),
        (["no such command", forged], 1),
    ):
        _, _, err = gpt(*arguments)
        assert not re.search("^gpt: all is well", err, re.MULTILINE), err
        assert lines in (None, err.count("\n")), err


def test_standard_output_that_is_full_is_named(gpt, trained, monkeypatch):
    """Bug: `No space left on device: while reading or writing`, or `File too large: ...`."""
    for arguments in (["runs"], ["--version"], ["sample", trained, "--length", "5"]):
        full = Path("/dev/full").open("w")  # noqa: SIM115 (to close it fails, too)
        monkeypatch.setattr(sys, "stdout", full)
        code, _, err = gpt(*arguments)
        with suppress(OSError):
            full.close()
        assert (code, err.splitlines()[-1]) == (
            1,
            "gpt: a file or standard output: No space left on device",
        )


def test_too_little_memory_to_load_torch_is_told(config_file):
    """Bug: an ImportError of a shared object."""
    resource = pytest.importorskip("resource")
    done = subprocess.run(
        [sys.executable, "-m", "gpt", "train", "--config", str(config_file)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (300_000_000, 300_000_000)),
        capture_output=True,
        text=True,
    )
    message = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]
    assert (done.returncode, len(message)) == (1, 1), done.stderr
    assert "not enough memory" in message[0]


def test_a_command_line_that_nobody_would_type_ends_in_one_message(tmp_path, text_file):
    """Empty, huge and negative values, control characters, links, pipes, devices, junk on stdin.

    Bugs: a line that is not UTF-8 ended a conversation; /dev/zero was read until memory ran out.
    `scripts/soak.py --command-lines 2000` is the long form.
    """
    work = Work(tmp_path, load_corpus(open_source(str(text_file))))
    tally = fuzzed_command_lines(work, count=30, seed=1)
    assert tally.failures == []
    assert tally.outcomes.total() == 30


def test_without_a_terminal_a_line_from_time_to_time_shows_the_progress(
    gpt, config_file, monkeypatch
):
    """Bug: `2> log.txt` showed nothing between two evaluations, hours apart."""
    monkeypatch.setattr("gpt.training.progress_bar.LOG_S", 0)
    code, _, err = gpt("train", "--config", config_file)
    assert code == 0
    assert re.search(r"^step 11 of 11: val .*, train .*, about \d\d:\d\d left$", err, re.MULTILINE)


@pytest.mark.parametrize(
    ("numbers", "advice"),
    [
        ((1.0, 1.5, 1.4, 0.1, 40), "more text would help most: after 40 passes .* risen by 7%"),
        ((1.0, 1.2, 1.2, 0.1, 9), "more text would help most: .* is 20% above the train loss"),
        ((1.0, 1.2, 1.2, 0.1, 1), "more time would help most: .* was still falling"),
        ((1.2, 1.2, 1.2, 0.1, 9), "more time would help most: .* was still falling"),
        ((1.2, 1.2, 1.2, 0.01, 9), "neither more time nor more text"),
        ((1.2, 1.21, 1.2, 0.1, 9), "neither more time nor more text"),  # bug: "was still falling"
        ((2.0, 3.5, 3.5, -0.7, 0.1), "more time would help most: there were only 0.1 passes"),
        ((9.5, 20.0, 9.5, -0.7, 0.1), "a lower train.learning_rate would help most: .* of 4.00"),
    ],
)
def test_the_losses_of_a_run_decide_what_would_help_most(numbers, advice):
    """Bugs: more time was advised after a divergence, and for a text that was used up."""
    train_loss, val_loss, best, fall, passes = numbers
    progress = Progress(1 - fall, middle_loss=1.0, val_loss=val_loss, best_val_loss=best)
    trained = replace(progress, best_step=1)
    assert re.match(advice, advise(trained, train_loss, passes, 4.0, is_limited=False))
    fine_tuned = advise(progress, train_loss, passes, 4.0, is_limited=False)
    assert "train.learning_rate would help most" in fine_tuned, "bug: more time was advised"
    if (passes, "more time" in advice) == (9, True):
        limited = advise(trained, train_loss, passes, 4.0, is_limited=True)
        assert re.match("more text would help most: after 9.0 passes .* overfit", limited)
