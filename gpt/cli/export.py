"""The command `gpt export`: write a model as a page that runs it, or for another library."""

from pathlib import Path

import typer

from gpt.cli.options import RunName, WhichCheckpoint, flag, option
from gpt.terminal import phase


def export(
    run: RunName = None,
    to: str = option("html|huggingface", "The format to write.", default=...),
    out: Path = option("PATH", "The file to write, or the folder for huggingface.", default=...),
    overwrite: bool = flag("--overwrite", "Replace what exists at PATH."),
    checkpoint: WhichCheckpoint = "best",
) -> None:
    """Export a model as one web page, or for the transformers library."""
    from gpt import api

    with phase("loading the run"):
        model = api.load(run, checkpoint)
    api.export(model, to, out, overwrite=overwrite)
    typer.echo(out)
