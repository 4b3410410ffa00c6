"""`gpt sample`."""

import errno
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

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

LONGEST_PROMPT = 2**24  # bytes of a prompt file


def sample(
    run: RunName = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="The text to continue; repeat for more."),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Continue each non-empty line of FILE (- is stdin)."),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Continue the whole text of FILE (- is stdin)."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Characters to sample.")
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End a sample before this text; repeat for more."),
    ] = None,
    until_stop: Annotated[
        bool,
        typer.Option("--until-stop", help="End at --stop or --length, not at sample.length."),
    ] = False,
    ban: Annotated[
        str, typer.Option(metavar="CHARACTERS", help="Never sample any of these characters.")
    ] = "",
    num_samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="Samples of each prompt.")
    ] = 1,
    separator: Annotated[
        str, typer.Option(metavar="TEXT", help="The line between two samples.")
    ] = "---",
    temperature: Annotated[
        float | None,
        typer.Option(metavar="X", min=0, help="Above 1: more random; 0: always the likeliest."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="Keep only the K likeliest characters.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(metavar="X", min=0, max=1, help="Keep the likeliest of total probability X."),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(metavar="X", min=0, max=1, help="Drop those below X times the likeliest."),
    ] = None,
    presence_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=-100,
            max=100,
            help="Subtract X from the logit of each character among the last 64.",
        ),
    ] = None,
    frequency_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=-100,
            max=100,
            help="Subtract X from a character's logit for each time it is among the last 64.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Repeat the text of this seed; default a random seed."
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
        bool, typer.Option("--interactive", help="Type prompts, one a line; /help explains more.")
    ] = False,
    as_json: JsonFlag = False,
    run_option: RunOption = None,
    debug: DebugFlag = False,
) -> None:
    r"""Sample text from a trained model, shown as it is generated.

    The length and the rules from --temperature to --frequency-penalty default to the `sample`
    settings of the run. The run, step, val loss and seed are printed to stderr.

    In --prompt, --stop, --ban, --separator and the lines of --prompts, \n is a newline, \t a tab
    and \\ a backslash.
    """
    run = one_run(run, run_option)
    stop = [unescaped(text) for text in stop or []]
    ban, separator = unescaped(ban), unescaped(separator)
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
    texts = _texts(prompt, prompts, prompt_file)
    rules = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
    }
    drop = unknown is Unknown.drop

    from gpt import api

    model = api.load(run, checkpoint, device)
    is_new = seed is None
    seed = int.from_bytes(os.urandom(3)) if seed is None else seed
    repeats = f" (--seed {seed} repeats this)" if is_new and not interactive else ""
    summary = visible(f"{model.summary()}, seed {seed}{repeats}")
    if interactive:
        from gpt.cli.repl import Repl

        typer.echo(summary, err=True)
        given = {k: v for k, v in {"length": length, **rules}.items() if v is not None}
        Repl(
            model,
            seed,
            model.config.sample.model_copy(update=given),
            stops=stop,
            until_stop=until_stop and length is None,
            ban=ban,
            drop_unknown=drop,
        ).run(input, show)
        return
    advice = "leave them out, or add --unknown drop"
    texts = [model.prepare(text, drop_unknown=drop, advice=advice) for text in texts]
    chunks = model.sample(
        texts,
        num_samples=num_samples,
        length=length,
        seed=seed,
        stops=stop,
        until_stop=until_stop,
        ban=ban,
        rules=rules,
    )
    typer.echo(wrapped(summary, sys.stderr), err=True)

    from gpt.sampling.stopping import collect, in_order

    texts = [text for text in texts for _ in range(num_samples)]
    if not as_json:
        for text in in_order(chunks, texts, separator):
            show(text)
        return
    result = {
        "run": str(model.run),
        "step": model.step,
        "val_loss": model.checkpoint.val_loss,
        "seed": seed,
        "samples": [asdict(sample) for sample in collect(chunks, texts)],
    }
    typer.echo(json.dumps(result))


def _texts(prompt: list[str] | None, prompts: str | None, prompt_file: str | None) -> list[str]:
    """Return the prompts of all three options; one empty prompt if none is given."""
    texts = [unescaped(text) for text in prompt or []]
    if prompts is not None:
        lines = _read("--prompts", prompts).replace("\r\n", "\n").split("\n")
        if not any(lines):
            raise UsageError(f"--prompts {prompts}: expected a prompt on each line, got no text")
        texts += [unescaped(line) for line in lines if line]
    if prompt_file is not None:
        texts.append(_read("--prompt-file", prompt_file))
    return texts or [""]


def _read(option: str, file: str) -> str:
    """Read the UTF-8 text of the file that `option` names; `-` is standard input."""
    where = f"{option} {file}"
    try:
        if file == "-":
            content = sys.stdin.buffer.read(LONGEST_PROMPT + 1)
        else:
            content = read_bounded(Path(file), LONGEST_PROMPT)
        if len(content) > LONGEST_PROMPT:
            raise UsageError(
                f"{where}: expected at most {LONGEST_PROMPT:,} bytes, got more; the model sees "
                f"only the last model.T characters of a prompt"
            )
        return content.decode("utf-8").removeprefix("\ufeff")  # a byte-order mark
    except OSError as error:
        slow = error.errno == errno.ETIMEDOUT
        advice = f"; pipe a slow source to standard input: {option} -" if slow else ""
        raise UsageError(f"{where}: cannot read it ({error.strerror}){advice}") from None
    except UnicodeDecodeError as error:
        found = f"byte 0x{content[error.start]:02x} at {error.start}"
        raise UsageError(f"{where}: expected UTF-8 text, got {found}") from None
