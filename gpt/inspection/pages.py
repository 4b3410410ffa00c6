"""Render a page as one HTML file that needs no network."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gpt.terminal import in_one_line, symbol

PAGE_TEMPLATES = Path(__file__).with_name("templates")


def render_page(
    name: str, *, folder: Path = PAGE_TEMPLATES, scripts: Sequence[str] = (), **values: object
) -> bytes:
    """Render the template `name`.html in `folder`, with the style `name`.css and the `scripts`.

    base.css and base.js come before these. jinja2 escapes all `values`, so that a text cannot
    become markup. The content security policy of the page allows no other style or script.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader([folder, PAGE_TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"in_one_line": in_one_line, "symbol": symbol, "csp_hash": _csp_hash}
    css = contents_of([PAGE_TEMPLATES / "base.css", folder / f"{name}.css"])
    shared = [PAGE_TEMPLATES / "base.js"] if scripts else []
    js = contents_of([*shared, *(folder / script for script in scripts)])
    template = environment.get_template(f"{name}.html")
    return template.render(css=Markup(css), js=Markup(js), **values).encode()


def contents_of(files: Sequence[Path]) -> str:
    """Return the contents of UTF-8 files, one after the other."""
    return "".join(file.read_text("utf-8") for file in files)


def in_base64(*arrays: NDArray[Any]) -> str:
    """Return the little-endian numbers of `arrays`, one array after the other, in base64."""
    ordered = (array.astype(array.dtype.newbyteorder("<")) for array in arrays)
    return base64.b64encode(b"".join(array.tobytes() for array in ordered)).decode()


def _csp_hash(content: str) -> str:
    """Return the hash of a style or script in the format of a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
