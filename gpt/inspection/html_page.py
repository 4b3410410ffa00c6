"""Render a page as one HTML file that needs no network, with jinja2."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from gpt.text.display import in_one_line, symbol

PAGE_TEMPLATES = files("gpt.inspection") / "templates"


def render_page(
    name: str,
    *,
    folder: Traversable = PAGE_TEMPLATES,
    scripts: Sequence[str] = (),
    **values: object,
) -> bytes:
    """Render the template `name`.html in `folder`, with the style `name`.css and the `scripts`.

    jinja2 escapes all `values`, so that a text cannot become markup. The content security policy of
    the page allows no other style or script.
    """
    from jinja2 import DictLoader, Environment, StrictUndefined
    from markupsafe import Markup

    def read(path: Traversable) -> str:
        return path.read_text("utf-8")

    templates = {
        "layout.html": read(PAGE_TEMPLATES / "layout.html"),
        f"{name}.html": read(folder / f"{name}.html"),
    }
    environment = Environment(
        loader=DictLoader(templates), autoescape=True, undefined=StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"in_one_line": in_one_line, "symbol": symbol, "csp_hash": _csp_hash}
    embedded: dict[str, Any] = {
        "css": Markup(read(PAGE_TEMPLATES / "base.css") + read(folder / f"{name}.css")),
        "js": Markup("".join(read(folder / script) for script in scripts)),
    }
    return environment.get_template(f"{name}.html").render(**embedded, **values).encode()


def _csp_hash(content: str) -> str:
    """Return the hash of a style or script in the format of a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
