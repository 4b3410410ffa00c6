"""`gpt sample`."""

import errno
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gpt.cli.options import (
    AnyDevice,
    DebugFlag,
    JsonFlag,
    RunName,
    RunOption,
    Unknown,
    WhichCheckpoint,
    one_run,
    show,
)
from gpt.errors import UsageError
from gpt.files import read_bounded
from gpt.text.display import visible

LONGEST_PROMPT = 2**24  # bytes


def sample(
    run: RunName = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="The text to continue; repeat for more."),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Continue what is in this file; - is standard input."),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Characters to sample; default sample.length."),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="End a sample where this text would follow; repeat for more."
        ),
    ] = None,
    until_stop: Annotated[
        bool,
        typer.Option(
            "--until-stop", help="Continue until a --stop, however long that takes, or to --length."
        ),
    ] = False,
    num_samples: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Samples of each prompt, generated side by side."),
    ] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0,
            help="Above 1: more random, below: more predictable, 0: always the likeliest; "
            "default sample.temperature.",
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            help="Sample only from the K likeliest characters; default sample.top_k.",
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0,
            max=1,
            help="Sample only from the likeliest characters, which make up this probability; "
            "default sample.top_p.",
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0,
            max=1,
            help="Sample only characters this many times as likely as the likeliest; default "
            "sample.min_p.",
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0.01,
            max=100,
            help="Above 1, characters among the last 64 become less likely; default "
            "sample.repetition_penalty.",
        ),
    ] = None,
    context_after_overflow: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Characters of context left when a text outgrows model.T; default "
            "sample.context_after_overflow.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="The same seed repeats a text; default a new text each time."
        ),
    ] = None,
    device: AnyDevice = "auto",
    checkpoint: WhichCheckpoint = "best",
    unknown: Annotated[
        Unknown,
        typer.Option(
            metavar="refuse|drop",
            help="What to do with characters outside the vocabulary; with data.max_vocabulary, "
            "refuse lets them be the unknown id.",
        ),
    ] = Unknown.refuse,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Type prompts, one a line; /help tells more.")
    ] = False,
    as_json: JsonFlag = False,
    run_option: RunOption = None,
    debug: DebugFlag = False,
) -> None:
    """Sample text from a trained model, shown as it is generated.

    The run, step, val loss and seed go to stderr.
    """
    run = one_run(run, run_option)
    if until_stop and not stop:
        raise UsageError("--until-stop: name with --stop the text that ends the sample")
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

    from gpt import api

    model = api.load(run, checkpoint, device)
    new = seed is None
    seed = int.from_bytes(os.urandom(3)) if seed is None else seed
    rules: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "context_after_overflow": context_after_overflow,
    }
    drop = unknown is Unknown.drop
    if interactive:
        from gpt.cli.repl import Repl

        typer.echo(visible(f"{model.summary()}, seed {seed}"), err=True)
        given = {k: v for k, v in (rules | {"length": length}).items() if v is not None}
        Repl(
            model,
            seed,
            model.config.sample.model_copy(update=given),
            stops=stop or [],
            until_stop=until_stop and length is None,
            drop_unknown=drop,
        ).run(input, show)
        return
    prompts = [model.prepare(text, drop_unknown=drop) for text in prompts or [""]]
    chunks = model.sample(
        prompts,
        num_samples=num_samples,
        length=length,
        seed=seed,
        stops=stop or [],
        until_stop=until_stop,
        **rules,
    )
    repeats = f" (--seed {seed} repeats this)" if new else ""
    typer.echo(visible(f"{model.summary()}, seed {seed}{repeats}"), err=True)

    from gpt.sampling.samples import collect, in_order

    prompts = [text for text in prompts for _ in range(num_samples)]
    if as_json:
        result = {
            "run": str(model.run),
            "step": model.step,
            "val_loss": model.checkpoint.val_loss,
            "seed": seed,
            "samples": [asdict(sample) for sample in collect(chunks, prompts)],
        }
        typer.echo(json.dumps(result))
    else:
        for text in in_order(chunks, prompts):
            show(text)


def _read_prompt(file: str) -> str:
    try:
        if file == "-":
            content = sys.stdin.buffer.read(LONGEST_PROMPT + 1)
        else:
            content = read_bounded(Path(file), LONGEST_PROMPT)
        if len(content) > LONGEST_PROMPT:
            raise UsageError(
                f"--prompt-file {file}: expected at most {LONGEST_PROMPT:,} bytes, got more; the "
                f"model sees the last model.T characters of a prompt"
            )
        return content.decode("utf-8").removeprefix("\ufeff")  # some editors begin files with it
    except OSError as error:
        advice = "; what takes longer is read from stdin: --prompt-file -"
        raise UsageError(
            f"--prompt-file {file}: cannot read it ({error.strerror})"
            f"{advice if error.errno == errno.ETIMEDOUT else ''}"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--prompt-file {file}: expected UTF-8 text, got byte 0x{content[error.start]:02x} at "
            f"{error.start}"
        ) from None
