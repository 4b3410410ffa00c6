"""Accessibility and pictures of exported pages and of `gpt attend`."""

import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from bench.browser import TIMEOUT_S, browser, resize
from bench.frame import GPT, SHAPES, untrained_run

WIDTHS = (1280, 360)  # of the window, in px
HEIGHT = 900  # of the window, in px
SAMPLE_CHARACTERS = 300
TIMED_CHARACTERS = 1000  # their context is cut several times
RUN_AXE = """
const done = arguments[0];
axe.run().then(({violations}) => done(violations.flatMap(({impact, id, nodes}) =>
  nodes.map(({html}) => `${impact}: ${id}: ${html.slice(0, 120)}`))));
"""
ATTENDED = "If the list is empty, return the empty list."
KEYS = Keys.HOME + (ATTENDED.rindex("empty") + 2) * Keys.ARROW_RIGHT


def accessibility(
    page: Path, axe: Path | None = None, out: Path | None = None
) -> dict[str, list[str]]:
    """List what is wrong with a page of `gpt export --to html`, at two widths, light and dark.

    The page generates a text and opens its inside view. Findings are those of axe-core, messages in
    the console, and sideways scrolling. Pictures are written to the folder `out`. To get axe-core:
    npm pack axe-core && tar xzf axe-core-*.tgz
    """
    found = {}
    with browser() as chrome:
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                resize(chrome, width, HEIGHT)
                _open(chrome, page, scheme)
                found[f"{width} px, {scheme}"] = _findings(chrome, width, axe)
                if out:
                    height = chrome.execute_script("return document.documentElement.scrollHeight")
                    resize(chrome, width, height)
                    chrome.save_screenshot(str(out / f"{width}-{scheme}.png"))
    return found


def page_speed() -> dict[str, int]:
    """Measure the characters/s of pages of models with random weights."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, browser() as chrome:
        for name, shape in SHAPES.items():
            page = Path(folder, f"{name}.html")
            with untrained_run(shape) as run:
                command = [*GPT, "export", str(run), "--to", "html", "--out", str(page)]
                subprocess.run(command, check=True, capture_output=True)
            status = _generate(chrome, page, TIMED_CHARACTERS)
            found[name] = round(TIMED_CHARACTERS / float(status.split(" in ")[1].split()[0]))
    return found


def _generate(chrome: Chrome, page: Path, characters: int) -> str:
    """Open `page` so that it generates a text; return its status when the text is complete."""
    chrome.get("about:blank")  # so that another fragment loads the page again
    fragment = urlencode({"prompt": "ROMEO:", "seed": 1, "length": characters})
    chrome.get(f"{page.absolute().as_uri()}#{fragment}")
    status = chrome.find_element(By.ID, "status")
    WebDriverWait(chrome, TIMEOUT_S).until(lambda _: "characters in" in status.text)
    return status.text


def _open(chrome: Chrome, page: Path, scheme: str) -> None:
    """Open `page` in `scheme`, wait for its text, and open the inside view."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    _generate(chrome, page, SAMPLE_CHARACTERS)
    chrome.execute_script("document.getElementById('inside').open = true")
    wait = WebDriverWait(chrome, TIMEOUT_S)
    wait.until(lambda _: chrome.find_elements(By.CSS_SELECTOR, "#steps .step"))


def _findings(chrome: Chrome, width: int, axe: Path | None) -> list[str]:
    """Return the findings on the open page, which is `width` px wide."""
    log = chrome.execute("getLog", {"type": "browser"})["value"]
    findings = [entry["message"] for entry in log]
    if chrome.execute_script("return document.documentElement.scrollWidth") > width:
        findings.append("the page scrolls sideways")
    if axe is not None:
        chrome.execute_script(axe.read_text())
        findings += chrome.execute_async_script(RUN_AXE)
    return findings


def attend_picture(run: Path, out: Path) -> str:
    """Write a picture of the page of `gpt attend`; the README's is of quickstart."""
    with tempfile.TemporaryDirectory() as folder, browser() as chrome:
        page = Path(folder) / "page.html"
        command = [*GPT, "attend", str(run), "--text", ATTENDED, "--out", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        resize(chrome, 1100, 860)
        chrome.get(page.as_uri())
        ActionChains(chrome).send_keys(KEYS).perform()
        chrome.save_screenshot(str(out))
    return str(out)
