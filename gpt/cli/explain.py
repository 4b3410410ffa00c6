"""`gpt explain`."""

import json
from typing import Annotated

import typer

from gpt.cli.options import DebugFlag, JsonFlag, show
from gpt.errors import GPTError, UsageError


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
        from gpt.runs.folder import find_run

        folder = find_run(run)

        from gpt.device import select_device
        from gpt.lessons.trained import look_into
        from gpt.runs.checkpoint import load_checkpoint

        loaded = load_checkpoint(folder, "best", select_device("cpu"))
        trained = look_into(folder.resolve().name, loaded, seed)

    from gpt.lessons.telling import tell

    page = tell(lesson, seed, trained)
    show(json.dumps(page.to_dict()) if as_json else page.render())
    show("\n")
    if not page.holds:
        raise GPTError(f"{lesson}: a claim does not hold here; see the page")
