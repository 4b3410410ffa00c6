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
    wrapped,
)
from gpt.errors import UsageError, unescaped
from gpt.files import read_bounded
from gpt.text.display import visible

LONGEST_PROMPT = 2**24  # bytes


def sample(
    run: RunName = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="The text to continue; repeat for more."),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Continue each line of this file, without its line end; empty lines are skipped; "
            "- is standard input.",
        ),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Continue the whole text of this file; - is standard input."
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Characters to sample; default sample.length."),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End a sample before this text; repeat for more."),
    ] = None,
    until_stop: Annotated[
        bool,
        typer.Option(
            "--until-stop",
            help="Ignore sample.length: a sample ends only before a --stop, or at --length if that "
            "is given.",
        ),
    ] = False,
    ban: Annotated[
        str, typer.Option(metavar="CHARACTERS", help="Never sample any of these characters.")
    ] = "",
    num_samples: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Samples of each prompt, generated side by side."),
    ] = 1,
    separator: Annotated[
        str, typer.Option(metavar="TEXT", help="The line between two samples.")
    ] = "---",
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
            help="Drop characters less likely than X times the most likely one; default "
            "sample.min_p.",
        ),
    ] = None,
    presence_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=-100,
            max=100,
            help="Subtract X from the logit of each character among the last 64 of prompt and "
            "sample; default sample.presence_penalty.",
        ),
    ] = None,
    frequency_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=-100,
            max=100,
            help="Subtract X from a character's logit for each time that it is among the last 64: "
            "3 times and X = 0.2 are 0.6; default sample.frequency_penalty.",
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
    r"""Sample text from a trained model, shown as it is generated.

    The run, step, val loss and seed go to stderr. In --prompt, --stop, --ban, --separator and the
    lines of --prompts, \n is a newline, \t a tab and \\ a backslash.
    """
    run = one_run(run, run_option)
    prompt, stop = ([unescaped(text) for text in texts or []] for texts in (prompt, stop))
    if until_stop and not stop:
        raise UsageError("--until-stop: name with --stop the text that ends the sample")
    if "" in stop:
        raise UsageError("--stop: expected at least one character, got none")
    has_prompt = prompt or prompts is not None or prompt_file is not None
    if interactive and (has_prompt or as_json or num_samples > 1):
        raise UsageError(
            "--interactive asks for prompts and shows one sample of each; leave out --prompt, "
            "--prompts, --prompt-file, --num-samples and --json"
        )
    texts = prompt
    if prompts is not None:
        lines = _read("--prompts", prompts).replace("\r\n", "\n").split("\n")
        texts += [unescaped(line) for line in lines if line]
        if not any(lines):
            raise UsageError(f"--prompts {prompts}: expected a prompt on each line, got no text")
    if prompt_file is not None:
        texts.append(_read("--prompt-file", prompt_file))

    from gpt import api

    model = api.load(run, checkpoint, device)
    new = seed is None
    seed = int.from_bytes(os.urandom(3)) if seed is None else seed
    rules: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
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
            stops=stop,
            until_stop=until_stop and length is None,
            ban=unescaped(ban),
            drop_unknown=drop,
        ).run(input, show)
        return
    advice = "leave them out, or add --unknown drop"
    texts = [model.prepare(text, drop_unknown=drop, advice=advice) for text in texts or [""]]
    chunks = model.sample(
        texts,
        num_samples=num_samples,
        length=length,
        seed=seed,
        stops=stop,
        until_stop=until_stop,
        ban=unescaped(ban),
        **rules,
    )
    repeats = f" (--seed {seed} repeats this)" if new else ""
    summary = visible(f"{model.summary()}, seed {seed}{repeats}")
    typer.echo(wrapped(summary, sys.stderr), err=True)

    from gpt.sampling.samples import collect, in_order

    texts = [text for text in texts for _ in range(num_samples)]
    if as_json:
        result = {
            "run": str(model.run),
            "step": model.step,
            "val_loss": model.checkpoint.val_loss,
            "seed": seed,
            "samples": [asdict(sample) for sample in collect(chunks, texts)],
        }
        typer.echo(json.dumps(result))
    else:
        for text in in_order(chunks, texts, unescaped(separator)):
            show(text)


def _read(option: str, file: str) -> str:
    """Return the text of a file that is given by the option; `-` is standard input."""
    try:
        if file == "-":
            content = sys.stdin.buffer.read(LONGEST_PROMPT + 1)
        else:
            content = read_bounded(Path(file), LONGEST_PROMPT)
        if len(content) > LONGEST_PROMPT:
            raise UsageError(
                f"{option} {file}: expected at most {LONGEST_PROMPT:,} bytes, got more; the "
                f"model sees the last model.T characters of a prompt"
            )
        return content.decode("utf-8").removeprefix("\ufeff")  # some editors begin files with it
    except OSError as error:
        advice = f"; what takes longer is read from stdin: {option} -"
        raise UsageError(
            f"{option} {file}: cannot read it ({error.strerror})"
            f"{advice if error.errno == errno.ETIMEDOUT else ''}"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{option} {file}: expected UTF-8 text, got byte 0x{content[error.start]:02x} at "
            f"{error.start}"
        ) from None
