"""Pages of `gpt export` and `gpt eval` in headless Chromium."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.remote_connection import RemoteConnection
from selenium.webdriver.support.wait import WebDriverWait

from bench.frame import GPT, SHAPES, untrained_run
from gpt import api
from gpt.api.run_text import read_text

TIMEOUT_S = 600  # longest time of a request
WIDTHS = (1280, 360)  # of the window, in px
HEIGHT = 900  # of the window, in px
SAMPLE_CHARACTERS = 300
TIMED_CHARACTERS = 1000  # their context is cut several times
SCORED_CHARACTERS = 10_000  # of the val split whose loss is compared
PROMPT_CHARACTERS, SAMPLED_CHARACTERS = 100, 500  # of the sample that is compared
REQUEST = """
const [request, done] = arguments, parts = [];
const plain = (key, value) => ArrayBuffer.isView(value) ? Array.from(value) : value;
client.start(request, (part) => parts.push(part)).finished
  .then(() => done(JSON.stringify(parts, plain)));
"""
LOAD_MILLISECONDS = (  # JavaScript
    "return performance.timing.loadEventEnd - performance.timing.navigationStart"
)
RUN_AXE = """
const done = arguments[0];
axe.run().then(({violations}) => done(violations.flatMap(({impact, id, nodes}) =>
  nodes.map(({html}) => `${impact}: ${id}: ${html.slice(0, 120)}`))));
"""


@contextmanager
def _browser() -> Iterator[Chrome]:
    """Start headless Chromium; it is ended after the context."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("install chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_argument("--headless=new")
    options.add_argument("--hide-scrollbars")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium does not run as root otherwise
    driver = shutil.which("chromedriver") or sys.exit("install chromedriver")
    chrome = Chrome(options=options, service=Service(driver))
    chrome.set_script_timeout(TIMEOUT_S)
    assert isinstance(chrome.command_executor, RemoteConnection)
    chrome.command_executor.client_config.timeout = TIMEOUT_S
    try:
        yield chrome
    finally:
        chrome.quit()


def _resize(chrome: Chrome, width: int, height: int) -> None:
    """Set the size of the window, in px."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)


def eval_page(page: Path) -> dict[str, float]:
    """Measure the seconds from opening a page of `gpt eval --html` to its load event."""
    milliseconds = []
    with _browser() as chrome:
        for _ in range(5):
            chrome.get(page.resolve().as_uri())
            milliseconds.append(chrome.execute_script(LOAD_MILLISECONDS))
    return {"mb": page.stat().st_size / 1e6, "s": statistics.median(milliseconds) / 1000}


def page_speed() -> dict[str, int]:
    """Measure the characters/s of pages of models with random weights."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, _browser() as chrome:
        for name, shape in SHAPES.items():
            with untrained_run(shape) as run:
                page = _exported(run, Path(folder, f"{name}.html"))
            status = _generate(chrome, page, TIMED_CHARACTERS)
            found[name] = round(TIMED_CHARACTERS / float(status.split(" in ")[1].split()[0]))
    return found


def page_equal(run: Path) -> dict[str, Any]:
    """Compare the page of `run`, which rounds weights, with `gpt`: a loss and a sample."""
    model = api.load(run)
    ids = read_text(model.config, model.vocabulary, model.run).val[: SCORED_CHARACTERS + 1]
    text = model.vocabulary.decode(ids)
    sample = {"seed": 1, "length": SAMPLED_CHARACTERS, "rules": model.config.sample.model_dump()}
    with tempfile.TemporaryDirectory() as folder, _browser() as chrome:
        _generate(chrome, _exported(run, Path(folder, "page.html")), 1)
        scored = _ask(chrome, {"op": "score", "ids": ids.tolist()})
        prompt = ids[:PROMPT_CHARACTERS].tolist()
        sampled = _ask(chrome, {"op": "generate", "ids": prompt, **sample})
    probabilities = np.concatenate([part["probabilities"] for part in scored])
    ours = model.generate(text[:PROMPT_CHARACTERS], length=SAMPLED_CHARACTERS, seed=1)
    return {
        "loss_of_the_page": -np.log(probabilities[1:].astype(float)).mean(),
        "loss": model.loss(text),
        "same_sample": "".join(part["text"] for part in sampled) == "".join(ours),
    }


def _exported(run: Path, page: Path) -> Path:
    command = [*GPT, "export", str(run), "--to", "html", "--out", str(page)]
    subprocess.run(command, check=True, capture_output=True)
    return page


def _ask(chrome: Chrome, request: dict[str, Any]) -> Any:
    """Send a request to the worker of the open page; return its answers but the last."""
    return json.loads(chrome.execute_async_script(REQUEST, request))


def accessibility(
    page: Path, axe: Path | None = None, out: Path | None = None
) -> dict[str, list[str]]:
    """List what is wrong with a page of `gpt export --to html`, at two widths, light and dark.

    The page generates a text and opens its inside view. Findings are those of axe-core, messages in
    the console, and sideways scrolling. Pictures are written to the folder `out`. To get axe-core:
    npm pack axe-core && tar xzf axe-core-*.tgz
    """
    found = {}
    with _browser() as chrome:
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                _resize(chrome, width, HEIGHT)
                _open(chrome, page, scheme)
                found[f"{width} px, {scheme}"] = _findings(chrome, width, axe)
                if out:
                    height = chrome.execute_script("return document.documentElement.scrollHeight")
                    _resize(chrome, width, height)
                    chrome.save_screenshot(str(out / f"{width}-{scheme}.png"))
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
