"""The command `gpt sample`: generate text with a trained model."""

import os
import sys
from dataclasses import asdict
from pathlib import Path

import typer

from gpt.cli.options import (
    AnyDevice,
    JsonFlag,
    RunName,
    WhichCheckpoint,
    flag,
    log,
    option,
    show,
    show_json,
    wrapped,
)
from gpt.errors import UsageError, unescaped
from gpt.files import read_bounded
from gpt.terminal import visible

LONGEST_PROMPT = 2**24  # largest size of a prompt file, in bytes


def sample(
    run: RunName = None,
    prompt: list[str] | None = option("TEXT", "The text to continue; repeat for more."),
    prompt_file: str | None = option("FILE", "Continue the whole text of FILE (- is stdin)."),
    length: int | None = option("N", "Characters to sample.", min=0),
    stop: list[str] | None = option("TEXT", "End a sample before this text; repeat for more."),
    keep_stop: bool = flag("--keep-stop", "Also show the text of --stop that ended a sample."),
    no_prompt: bool = flag("--no-prompt", "Show the samples without their prompts."),
    new: bool = flag(
        "--new",
        "Show only whole lines, such as names, that are not in the run's text (it is read again).",
    ),
    num_samples: int = option("N", "Samples of each prompt.", default=1, min=1),
    temperature: float | None = option(
        "X", "Above 1: more random; 0: always the likeliest.", min=0
    ),
    top_k: int | None = option("K", "Keep only the K likeliest characters.", min=1),
    top_p: float | None = option(
        "X",
        "Keep the fewest, likeliest characters whose probabilities sum to X or more.",
        min=0,
        max=1,
    ),
    min_p: float | None = option(
        "X", "Drop characters less likely than X times the likeliest.", min=0, max=1
    ),
    seed: int | None = option("N", "Seed of the random draws; default random.", min=0),
    device: AnyDevice = "auto",
    checkpoint: WhichCheckpoint = "best",
    interactive: bool = flag("--interactive", "Type prompts, one a line; /help explains more."),
    as_json: JsonFlag = False,
) -> None:
    r"""Sample text from a trained model, shown as it is generated.

    --length and the options from --temperature to --min-p default to the `sample`
    settings of the run. The run, step, val loss and seed are printed to stderr.

    In --prompt and --stop, \n is a newline, \t a tab and \\ a backslash.
    """
    stop = [unescaped(text) for text in stop or []]
    shown_otherwise = as_json or num_samples > 1 or new or no_prompt or keep_stop
    if interactive and (prompt or prompt_file is not None or shown_otherwise):
        raise UsageError(
            "--interactive asks for prompts and shows one sample of each; leave out --prompt, "
            "--prompt-file, --num-samples, --new, --no-prompt, --keep-stop and --json"
        )
    texts = [unescaped(text) for text in prompt or []]
    if prompt_file is not None:
        texts.append(_read(prompt_file))
    rules = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}

    from gpt import api

    model = api.load(run, checkpoint, device)
    is_random = seed is None
    seed = int.from_bytes(os.urandom(3)) if seed is None else seed
    repeats = f" (--seed {seed} repeats this)" if is_random and not interactive else ""
    summary = visible(f"{model.summary()}, seed {seed}{repeats}")
    if interactive:
        from gpt.cli.repl import Repl

        typer.echo(summary, err=True)
        given = {k: v for k, v in {"length": length, **rules}.items() if v is not None}
        start = model.config.sample.model_copy(update=given)
        Repl(model, seed, start, stop).run(input, show)
        return
    corpus = None
    if new:
        from gpt.api.run_text import new_lines, run_text

        corpus = run_text(model, "put the text back, or leave out --new")
    texts = [model.prepare(text) for text in texts or [""]]
    chunks = model.sample(
        texts,
        num_samples=num_samples,
        length=length,
        seed=seed,
        stops=stop,
        keep_stop=keep_stop,
        rules=rules,
    )
    typer.echo(wrapped(summary, sys.stderr), err=True)

    from gpt.sampling.stopping import collect, in_order

    texts = [text for text in texts for _ in range(num_samples)]
    if not (as_json or new):
        for text in in_order(chunks, [""] * len(texts) if no_prompt else texts):
            show(text)
        return
    samples = collect(chunks, texts)
    lines = [] if corpus is None else new_lines(corpus, samples)
    if not as_json:
        show("".join(f"{line}\n" for line in lines))
        if not lines:
            log.warning("no complete line is new; sample more, by --length or --num-samples")
        return
    result = {
        "run": str(model.run),
        "step": model.step,
        "val_loss": model.checkpoint.val_loss,
        "seed": seed,
        "samples": [asdict(sample) for sample in samples],
    }
    show_json(result | ({"new_lines": lines} if new else {}))


def _read(file: str) -> str:
    """Read the UTF-8 text of a prompt file; `-` is standard input."""
    where = f"--prompt-file {file}"
    try:
        is_stdin = file == "-"
        content = sys.stdin.buffer.read() if is_stdin else read_bounded(Path(file), LONGEST_PROMPT)
        return content.decode("utf-8-sig")  # removes a byte-order mark
    except OSError as error:
        raise UsageError(f"{where}: cannot read it ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: expected UTF-8 text, but {error}; convert the file") from None
