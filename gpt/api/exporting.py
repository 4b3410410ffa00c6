"""Write a model in a format that can be used without this package."""

from pathlib import Path

from gpt.api.model import Model
from gpt.errors import UsageError, arguments
from gpt.export.html import html_page
from gpt.export.huggingface import export_huggingface
from gpt.files import check_out, write_atomically


def export(model: Model, to: str, out: str | Path, *, overwrite: bool = False) -> None:
    """Write the model in a format that can be used without this package.

    Args:
        model: the model, from `gpt.load`.
        to: the format: `html` or `huggingface`.
        out: the file to write; for `huggingface`, the folder.
        overwrite: whether to replace what exists at `out`.

    Raises:
        UsageError: there is no such format, `out` cannot be written or exists already, or a
            weight is too large for the page's float16.
    """
    out = Path(out)
    if to == "html":
        check_out(out, arguments("out"), [".html"], overwrite=overwrite)
        write_atomically(out, [html_page(model.run.resolve().name, model.checkpoint)])
    elif to == "huggingface":
        export_huggingface(model.run, model.checkpoint, out, overwrite=overwrite)
    else:
        raise UsageError(f"{arguments('to')} {to}: expected html or huggingface")
