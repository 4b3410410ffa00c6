"""`gpt sample`."""

import json
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
    Unknown,
    Which,
    WhichOfRun,
    show,
)
from gpt.errors import UsageError


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
    from gpt.runs.folder import find_run

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

    from gpt.runs.checkpoint import read_checkpoint
    from gpt.sampling.parallel import generate_samples
    from gpt.sampling.prompt import check_known, check_prompt, encode_prompt
    from gpt.sampling.sampler import SamplingRules
    from gpt.sampling.samples import collect, in_order
    from gpt.text.newlines import unify_newlines

    data = read_checkpoint(folder, checkpoint.value)
    vocabulary, defaults = data.vocabulary, data.config.sample
    drop = unknown is Unknown.drop
    rule = data.config.data.newlines
    prompts = [unify_newlines(text, rule) for text in prompts]
    stop = [unify_newlines(text, rule) for text in stop or []]
    length_or_default = defaults.length if length is None else length
    for text in stop or []:
        check_known(text, vocabulary, "a --stop with them would never come")
    options: dict[str, Any] = {
        "length": None if until_stop and length is None else length_or_default,
        "seed": data.config.seed if seed is None else seed,
        "stops": stop or [],
        "rules": SamplingRules.from_config(
            defaults,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
        ),
    }
    if interactive:
        from gpt.cli.repl import Repl
        from gpt.sampling.engine import device_for, open_engine

        engine = open_engine(data, device_for(data, device, 1, options["length"]), 1)
        Repl(engine, vocabulary, drop_unknown=drop, **options).run(input, show)
        return
    prompts = [check_prompt(text, vocabulary, drop_unknown=drop) for text in prompts]
    indices = [index for _ in prompts for index in range(num_samples)]
    prompts = [text for text in prompts for _ in range(num_samples)]
    encoded = [encode_prompt(text, vocabulary) for text in prompts]
    chunks = generate_samples(data, device, encoded, indices=indices, **options)
    if as_json:
        head = {"run": str(folder), "step": data.step, "seed": options["seed"]}
        samples = [asdict(sample) for sample in collect(chunks, prompts)]
        typer.echo(json.dumps(head | {"samples": samples}))
    else:
        for text in in_order(chunks, prompts):
            show(text)


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
