"""The command `gpt eval`: measure how well a model predicts a text."""

import json
from dataclasses import asdict

from gpt.cli.options import (
    AnyDevice,
    DebugFlag,
    JsonFlag,
    RunName,
    TextNames,
    WhichCheckpoint,
    flag,
    option,
    show,
    terminal_width,
)
from gpt.status import phase


def evaluate(
    run: RunName = None,
    text: TextNames = None,
    stride: int | None = option(
        "N",
        "Predict each character from at least model.T - N characters before it, in windows that "
        "overlap; default windows that do not, as in training.",
        min=1,
    ),
    by: list[str] | None = option(
        "WHAT",
        "Also show losses by word-length, script, position or character; repeat for more.",
    ),
    memorisation: bool = flag(
        "--memorisation",
        "Also show how much of its train split the model repeats, compared with the text.",
    ),
    device: AnyDevice = "auto",
    checkpoint: WhichCheckpoint = "best",
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Measure how well a model predicts a text.

    The text is the val split of the run, or TEXT. The loss is shown with a confidence interval, and
    compared with compressors.
    """
    from gpt import api

    with phase("loading the run"):
        model = api.load(run, checkpoint, device)
    report = api.evaluate(model, text, stride=stride, by=by or (), memorisation=memorisation)
    if as_json:
        result = {"run": str(model.run), "step": model.step} | asdict(report)
        show(json.dumps(result) + "\n")
        return
    from gpt.inspection.evaluation_table import evaluation_table

    title = f"{model.run.resolve().name}, step {model.step}"
    show(evaluation_table(report, title, terminal_width()) + "\n")
