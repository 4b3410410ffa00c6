"""One HTML file that needs no network: a template with its style and script embedded.

The page's policy (CSP) allows the style and the script whose hashes it names, and nothing else.
"""

import base64
import hashlib
from importlib.resources import files


def embedded(name: str) -> str:
    """NAME.html with base.css and NAME.css in place of {css}, and NAME.js, if any, of {js}.

    {css-hash} and {js-hash} become what a policy calls them.
    """
    folder = files(__package__)
    page, base, own = (
        (folder / file).read_text("utf-8") for file in (f"{name}.html", "base.css", f"{name}.css")
    )
    parts = {"css": base + own}
    if (script := folder / f"{name}.js").is_file():
        parts["js"] = script.read_text("utf-8")
    for kind, part in parts.items():
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        page = page.replace(f"{{{kind}-hash}}", f"sha256-{digest}").replace(f"{{{kind}}}", part)
    return page
