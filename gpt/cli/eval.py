"""The command `gpt eval`: measure how well a model predicts a text."""

from dataclasses import asdict, replace
from pathlib import Path

from gpt.cli.options import (
    AnyDevice,
    JsonFlag,
    OverwriteFlag,
    RunName,
    TextNames,
    WhichCheckpoint,
    flag,
    option,
    show,
    show_json,
    terminal_width,
)
from gpt.files import check_out, write_atomically
from gpt.terminal import phase


def evaluate(
    run: RunName = None,
    text: TextNames = None,
    by: list[str] | None = option(
        "WHAT", "Also show losses by script, position or character; repeat for more."
    ),
    memorisation: bool = flag(
        "--memorisation",
        "Also show how much of the model's samples, and of the text, is in its train split.",
    ),
    html: Path | None = option(
        "FILE", "Write a page for a browser that shows how surprising each character was."
    ),
    overwrite: OverwriteFlag = False,
    device: AnyDevice = "auto",
    checkpoint: WhichCheckpoint = "best",
    as_json: JsonFlag = False,
) -> None:
    """Measure how well a model predicts a text.

    The text is the val split of the run, or TEXT. The loss is shown with a confidence interval, and
    compared with n-gram models and compressors.
    """
    from gpt import api
    from gpt.inspection.report_views import evaluation_page, evaluation_table

    if html is not None:
        check_out(html, "--html", [".html"], overwrite=overwrite)
    with phase("loading the run"):
        model = api.load(run, checkpoint, device)
        # imported here, so that a wrong name of a run is reported before torch is imported
        from gpt.api.evaluation import evaluate as evaluate_model
    report = evaluate_model(
        model, text, by=by or (), memorisation=memorisation, surprise=html is not None
    )
    title = f"{model.run.resolve().name}, step {model.step}"
    if html is not None:
        write_atomically(html, [evaluation_page(report, title)])
    if as_json:
        fields = asdict(replace(report, surprise=None))
        del fields["surprise"]  # its millions of numbers are only in the HTML page
        show_json({"run": str(model.run), "step": model.step} | fields)
        return
    show(evaluation_table(report, title, terminal_width()) + "\n")
    if html is not None:
        show(f"\n{html}\n")
