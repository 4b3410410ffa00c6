"""Render a page as one HTML file that needs no network, with jinja2."""

import base64
import hashlib
from importlib.resources import files
from typing import Any

from gpt.text.display import in_one_line, symbol


def render_page(name: str, **values: object) -> bytes:
    """Render the template `name` as an HTML file that includes its style and its script.

    `values` are the variables of the template. jinja2 escapes them, so that a text cannot become
    markup. The content security policy of the page allows only this style and this script.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("gpt.inspection"), autoescape=True, undefined=StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"in_one_line": in_one_line, "symbol": symbol, "csp_hash": _csp_hash}
    folder = files("gpt.inspection") / "templates"
    script = folder / f"{name}.js"
    embedded: dict[str, Any] = {
        "css": Markup((folder / "base.css").read_text("utf-8"))
        + Markup((folder / f"{name}.css").read_text("utf-8")),
        "js": Markup(script.read_text("utf-8")) if script.is_file() else "",
    }
    return environment.get_template(f"{name}.html").render(**embedded, **values).encode()


def _csp_hash(content: str) -> str:
    """Return the hash of a style or script in the format of a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
