"""Write a model in a format that can be used without this package."""

from pathlib import Path
from typing import TYPE_CHECKING

from gpt.export.export_formats import check_export

if TYPE_CHECKING:
    from gpt.api.model import Model


def export(model: "Model", to: str, out: str | Path, *, overwrite: bool = False) -> None:
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
    check_export(to, out, overwrite=overwrite)
    if to == "html":
        from gpt.export.html import html_page
        from gpt.inspection.output import write_out

        write_out(out, html_page(model.run.resolve().name, model.checkpoint))
    else:
        from gpt.export.huggingface import export_huggingface

        export_huggingface(model.run, model.checkpoint, out)
