"""The commands: each parses, calls one function and chooses the exit code.

The only file that knows typer. Torch, and all that imports it, is imported inside the commands,
so that help and config errors appear at once.
"""

import enum
import io
import json
import logging
import math
import os
import shlex
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO, cast

import typer
from typer.core import TyperCommand

from gpt import __version__
from gpt.errors import INTERRUPTED, GPTError, UsageError
from gpt.text.display import visible

if TYPE_CHECKING:
    from gpt.config import Config
    from gpt.training.estimate import Estimate
    from gpt.training.loop import Outcome

app = typer.Typer(
    name="gpt",
    help="A character-level GPT: train it on any text, watch it learn, sample from it.",
    epilog="Start with: gpt train --config configs/quickstart.yaml",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help is up sooner
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


class Which(enum.StrEnum):
    """The checkpoint of a run to take."""

    best = "best"
    last = "last"


class Unknown(enum.StrEnum):
    """What becomes of the characters of a prompt that the vocabulary lacks."""

    refuse = "refuse"
    drop = "drop"


log = logging.getLogger("gpt")


def _debug(asked: bool) -> None:
    if asked:
        log.setLevel(logging.DEBUG)


DebugFlag = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", callback=_debug)
]
RunName = Annotated[
    str | None,
    typer.Argument(help="A run's folder, or its name under runs/; by default the newest run."),
]
AnyDevice = Annotated[
    str, typer.Option(help="auto, cpu, cuda, cuda:N or mps: any, whatever it was trained on.")
]
WhichOfRun = Annotated[
    Which, typer.Option(help="The model with the lowest val loss, or the newest.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")]


def main() -> NoReturn:
    """Run the command line; every way it can fail ends in one message and an exit code."""
    sys.stdin = sys.stdin or _nowhere("r")  # closed by whoever started us
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = cast(TextIO, _Told(sys.stderr or _nowhere()))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    log.handlers = [_Notices()]
    log.setLevel(logging.INFO)
    try:
        app(_with_resumed_run(sys.argv[1:]))
        sys.exit(0)
    except SystemExit as done:
        if done.code == INTERRUPTED:
            kept = "; a run keeps its last checkpoint" if sys.argv[1:2] == ["train"] else ""
            typer.echo(f"\ngpt: stopped at once{kept}", err=True)
        raise
    except Exception as error:
        if log.level == logging.DEBUG:
            raise
        typer.echo(f"gpt: {visible(_message(error))}", err=True)
        sys.exit(error.exit_code if isinstance(error, GPTError) else 1)


class _Told:
    """A stream whose reader may leave (`| head`, a closed terminal): no reason to lose a run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _with_resumed_run(arguments: list[str]) -> list[str]:
    """Options here have a value each; `train --resume` without one means the newest run."""
    if arguments[:1] != ["train"]:
        return arguments
    return [
        "--resume=" if argument == "--resume" and after.startswith("-") else argument
        for argument, after in zip(arguments, [*arguments[1:], "-"], strict=True)
    ]


def _nowhere(mode: str = "w") -> TextIO:
    return cast(TextIO, Path(os.devnull).open(mode, encoding="utf-8"))


def _message(error: Exception) -> str:
    if isinstance(error, GPTError):
        return str(error)
    first, *_ = str(error).splitlines() or [""]
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename or 'while reading or writing'}"
    if isinstance(error, MemoryError) or "alloc" in first or "out of memory" in first.lower():
        return (
            f"not enough memory ({first or 'MemoryError':.150}); use a smaller model.C, model.T or "
            f"train.batch_size, a larger train.accumulation, or fewer --num-samples"
        )
    return f"{type(error).__name__}: {first:.300} (--debug shows where)"


class _Notices(logging.Handler):
    """Writes notices to stderr, above the progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(visible(record.getMessage()), file=sys.stderr)


class _TrainCommand(TyperCommand):
    """Ends the help with every setting of a config."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from gpt.config import Config, fields

        rows = [(f"{key} [{value}]", text) for key, text, value in fields(Config())]
        with formatter.section("Settings (in the config file, or by --set; defaults in brackets)"):
            formatter.write_dl(rows, col_max=36)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"gpt {__version__}")
        raise typer.Exit


@app.command(cls=_TrainCommand)
def train(
    text: Annotated[
        str | None,
        typer.Argument(
            help="The text, in place of data.source: python-docs, tinyshakespeare, or the path of "
            "a UTF-8 file."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A YAML file of settings; those it leaves out have their defaults."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Change one setting, such as train.steps=500; repeat for more.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="In place of the config's device: auto, cpu, cuda, cuda:N, mps."),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="The folder for the run, new or empty; by default runs/NAME, after the config "
            "file, with a number if that is taken."
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="[RUN]",
            help="Go on with a run from its last checkpoint: its folder, or its name under runs/; "
            "by default the newest.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that is in the folder.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Train nothing: print the resolved config, and the parameters, memory and time "
            "that a short probe foretells.",
        ),
    ] = False,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Train a model on a text, and print a sample of what it has learnt."""
    from gpt.config import load_config
    from gpt.run import RUNS, check_free, check_plain, find_run, locked

    changes = [*(overrides or []), *([f"device={device}"] if device is not None else [])]
    if resume is not None:
        if config or run_dir or overwrite:
            raise UsageError(
                "--resume goes on in the run's folder with the run's config; leave out --config, "
                "--run-dir and --overwrite, and change settings by --set"
            )
        from gpt.stored import go_back_to_whole

        run = find_run(resume or None)
        check_plain(run)
        with locked(run):
            go_back_to_whole(run)
        settings = load_config(run / "checkpoints" / "last" / "config.yaml", changes, text)
    else:
        settings = load_config(config, changes, text)
        run = run_dir or RUNS / (config.stem if config else "run")
        if not dry_run and (run_dir or overwrite):
            check_free(run, overwrite=overwrite)

    from gpt.text.corpus import load_corpus
    from gpt.text.sources import open_text

    corpus = load_corpus(open_text(settings.data.source))
    corpus.check_fits(settings.model.T)
    if dry_run:
        from gpt.training.estimate import estimate

        _print_estimate(settings, estimate(settings, corpus), as_json)
        return

    from gpt.training.loop import train as train_model

    outcome = train_model(
        settings,
        corpus,
        run,
        resume=resume is not None,
        overwrite=overwrite,
        numbered=not (run_dir or overwrite or resume is not None),
    )
    _print_outcome(outcome, settings, as_json)


@app.command()
def sample(
    run: RunName = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="The text to go on from; repeat for more.")
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Go on from what is in this file; - is standard input."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=0, help="Characters to sample; default sample.length.")
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End a sample where it would write this text; repeat for more."),
    ] = None,
    until_stop: Annotated[
        bool,
        typer.Option(
            "--until-stop", help="Go on until a --stop, however long that takes, or to --length."
        ),
    ] = False,
    num_samples: Annotated[
        int, typer.Option(min=1, help="Samples of each prompt, drawn side by side.")
    ] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Below 1 bolder towards the likely, above 1 wilder, 0 always the likeliest; "
            "default sample.temperature.",
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=1, help="Draw only from the k likeliest characters; default sample.top_k."
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Draw only from the likeliest, which make up this probability."
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Draw only what is at least this many times as likely as the top."
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=100,
            help="Above 1, characters that are among the last 64 become rarer.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Another seed, another text; default the run's seed.")
    ] = None,
    device: AnyDevice = "auto",
    checkpoint: WhichOfRun = Which.best,
    unknown: Annotated[
        Unknown, typer.Option(help="What to do with characters the model has never seen.")
    ] = Unknown.refuse,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Type prompts, one a line; /help tells more.")
    ] = False,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Sample text from a trained model, shown as it comes."""
    from gpt.run import find_run

    if until_stop and not stop:
        raise UsageError("--until-stop: say with --stop which text ends the sample")
    if "" in (stop or []):
        raise UsageError("--stop: expected at least one character, got none")
    has_prompt = prompt is not None or prompt_file is not None
    if interactive and (has_prompt or as_json or num_samples > 1):
        raise UsageError(
            "--interactive asks for prompts and shows one sample of each; leave out --prompt, "
            "--prompt-file, --num-samples and --json"
        )
    prompts = prompt or []
    if prompt_file is not None:
        prompts = [*prompts, _read_prompt(prompt_file)]
    prompts = prompts or [""]
    folder = find_run(run)

    from gpt.sampling.decoding import Decoding
    from gpt.sampling.generator import (
        check_known,
        check_prompt,
        encode_prompt,
        in_order,
        whole_samples,
    )
    from gpt.sampling.samples import write_samples
    from gpt.stored import read_stored

    stored = read_stored(folder, checkpoint.value)
    vocabulary, defaults = stored.vocabulary, stored.config.sample
    drop = unknown is Unknown.drop
    length_or_default = defaults.length if length is None else length
    for text in stop or []:
        check_known(text, vocabulary, "a --stop with them would never come")
    options: dict[str, Any] = {
        "length": None if until_stop and length is None else length_or_default,
        "seed": stored.config.seed if seed is None else seed,
        "stops": stop or [],
        "decoding": Decoding.of(
            defaults,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
        ),
    }
    if interactive:
        from gpt.sampling.interactive import Conversation
        from gpt.sampling.reader import device_for, open_reader

        reader = open_reader(stored, device_for(stored, device, 1, options["length"]), 1)
        Conversation(reader, vocabulary, drop_unknown=drop, **options).hold(input, _show)
        return
    prompts = [check_prompt(text, vocabulary, drop_unknown=drop) for text in prompts]
    numbers = [number for _ in prompts for number in range(num_samples)]
    prompts = [text for text in prompts for _ in range(num_samples)]
    encoded = [encode_prompt(text, vocabulary) for text in prompts]
    pieces = write_samples(stored, device, encoded, numbers=numbers, **options)
    if as_json:
        head = {"run": str(folder), "step": stored.step, "seed": options["seed"]}
        samples = [asdict(sample) for sample in whole_samples(pieces, prompts)]
        typer.echo(json.dumps(head | {"samples": samples}))
    else:
        for text in in_order(pieces, prompts):
            _show(text)


@app.command()
def attend(
    run: RunName = None,
    text: Annotated[
        str, typer.Option(help="The text that the model reads, at most model.T characters.")
    ] = ...,  # type: ignore[assignment]
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="A picture of all heads (.png), or a page to explore them in a browser (.html).",
        ),
    ] = ...,  # type: ignore[assignment]
    device: AnyDevice = "auto",
    checkpoint: WhichOfRun = Which.best,
    debug: DebugFlag = False,
) -> None:
    """Show which earlier characters each head looks at, and what the model expects next."""
    from gpt.inspection.output import check_out, write_out
    from gpt.run import find_run

    check_out(out)
    if not text:
        raise UsageError("--text: expected at least one character, got none")
    folder = find_run(run)

    from gpt.checkpoint import load_checkpoint
    from gpt.device import select_device
    from gpt.inspection.attention import attend_text

    loaded = load_checkpoint(folder, checkpoint.value, select_device(device))
    attention = attend_text(loaded.model, loaded.vocabulary, text)
    title = f"{folder.resolve().name}, step {loaded.step}"
    if out.suffix.lower() == ".png":
        from gpt.inspection.picture import png

        content = png(attention, text, title)
    else:
        from gpt.inspection.page import html

        content = html(attention, text, title, loaded.vocabulary)
    write_out(out, content)
    typer.echo(out)


@app.command()
def explain(
    lesson: Annotated[
        str | None, typer.Argument(help="The lesson to tell; without a name, they are listed.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Look into this run's trained model too: its folder or name."
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**63 - 1, help="Other noise; 1337 gives the figures of the notebooks."
        ),
    ] = 1337,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Tell how attention works, one step at a time, with the real tensors."""
    from gpt.lessons import LESSONS

    if lesson is None and run is not None:
        raise UsageError(f"--run: name a lesson too; there are {', '.join(LESSONS)}")
    if lesson is None:
        listed = "\n".join(f"  gpt explain {name:<14} {title}" for name, title in LESSONS.items())
        typer.echo(
            json.dumps(LESSONS) if as_json else f"Lessons, each built on the last:\n\n{listed}"
        )
        return
    if lesson not in LESSONS:
        raise UsageError(f"{lesson}: no such lesson; there are {', '.join(LESSONS)}")
    trained = None
    if run is not None:
        from gpt.run import find_run

        folder = find_run(run)

        from gpt.checkpoint import load_checkpoint
        from gpt.device import select_device
        from gpt.lessons.trained import look_into

        loaded = load_checkpoint(folder, "best", select_device("cpu"))
        trained = look_into(folder.resolve().name, loaded, seed)

    from gpt.lessons.telling import tell

    page = tell(lesson, seed, trained)
    _show(json.dumps(page.to_dict()) if as_json else page.render())
    _show("\n")
    if not page.holds:
        raise GPTError(f"{lesson}: a claim does not hold here; see the page")


def _read_prompt(file: str) -> str:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return content.decode("utf-8").removeprefix("\ufeff")  # some editors begin files with it
    except OSError as error:
        raise UsageError(f"--prompt-file {file}: cannot read it ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--prompt-file {file}: expected UTF-8 text, got byte 0x{content[error.start]:02x} at "
            f"{error.start}"
        ) from None


def _show(text: str) -> None:
    """Write at once; what goes to a terminal is made safe, what goes to a file stays as it is."""
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _print_outcome(outcome: "Outcome", config: "Config", as_json: bool) -> None:
    """The run's scores and a sample of its best model; how to watch it and sample more."""
    from gpt.sampling.decoding import Decoding
    from gpt.sampling.generator import encode_prompt, in_order, whole_samples
    from gpt.sampling.samples import write_samples
    from gpt.stored import read_stored

    best = read_stored(Path(outcome.run), "best")
    pieces = write_samples(
        best,
        "auto",
        [encode_prompt("", best.vocabulary)],
        length=config.sample.length,
        decoding=Decoding.of(config.sample),
        seed=config.seed,
    )
    if as_json:
        typer.echo(json.dumps(asdict(outcome) | {"sample": whole_samples(pieces, [""])[0].text}))
        return
    bits = outcome.best_val_loss / math.log(2)
    typer.echo(
        f"\n{outcome.reason}: step {outcome.step} after {outcome.elapsed_s:.0f} s; best val loss "
        f"{outcome.best_val_loss:.4f} ({bits:.3f} bits per character) at step {outcome.best_step}"
    )
    folder = shlex.quote(str(Path(outcome.run).parent))
    typer.echo(f"watch:   tensorboard --logdir {folder}")
    typer.echo(f"sample:  gpt sample {shlex.quote(outcome.run)}\n")
    for text in in_order(pieces, [""]):
        _show(text)


def _print_estimate(config: "Config", estimate: "Estimate", as_json: bool) -> None:
    from gpt.config import to_yaml

    if as_json:
        typer.echo(json.dumps({"config": config.model_dump()} | asdict(estimate)))
        return
    total = sum(estimate.parameters.values())
    typer.echo(to_yaml(config))
    typer.echo(f"parameters  {total:>12,}")
    for part, count in estimate.parameters.items():
        typer.echo(f"  {part:<10}{count:>12,}")
    typer.echo(
        f"memory      {estimate.peak_bytes / 2**20:>12,.0f} MiB at most in the probe on "
        f"{estimate.device}, {estimate.state_bytes / 2**20:,.1f} of it weights, gradients and the "
        f"optimizers' averages"
    )
    typer.echo(
        f"time        {estimate.seconds:>12,.0f} s: {config.train.steps:,} steps of "
        f"{1000 * estimate.seconds_per_step:,.1f} ms ({estimate.precision}), and evaluations of "
        f"{estimate.seconds_per_evaluation:,.1f} s"
    )
