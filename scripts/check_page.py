"""Check the accessibility of a page of `gpt export --to html`, and take screenshots of it.

    npm pack axe-core && tar xzf axe-core-*.tgz
    python scripts/check_page.py my_model.html --axe package/axe.min.js --pictures FOLDER

The page generates a text and opens its inside view. It is checked at 1280 and 360 px, light and
dark. The script prints each finding of axe-core with its impact, and exits with 1 if there are any,
if the page scrolls sideways, or if its console has an error. It needs Chromium and chromedriver.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path
from urllib.parse import urlencode

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

WIDTHS = (1280, 360)  # of the window, in px
HEIGHT = 900  # of the window, in px
SCHEMES = ("light", "dark")
TIMEOUT_S = 120  # longest time to load the model and to generate a text
RUN_AXE = """
const done = arguments[0];
axe.run().then(({violations}) => done(violations.flatMap(({impact, id, nodes}) =>
  nodes.map(({html}) => `${impact}: ${id}: ${html.slice(0, 120)}`))));
"""


def start_browser() -> Chrome:
    """Start headless Chromium."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("install chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_argument("--headless=new")
    options.add_argument("--hide-scrollbars")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium does not run as root otherwise
    driver = shutil.which("chromedriver") or sys.exit("install chromedriver")
    return Chrome(options=options, service=Service(driver))


def resize(browser: Chrome, width: int, height: int) -> None:
    """Set the size of the window, in px."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)


def open_page(browser: Chrome, page: Path, prompt: str, scheme: str) -> None:
    """Open `page`, wait for the text after `prompt`, and open the inside view."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get("about:blank")  # so that another fragment loads the page again
    fragment = urlencode({"prompt": prompt, "seed": 1, "length": 300})
    browser.get(f"{page.absolute().as_uri()}#{fragment}")
    wait = WebDriverWait(browser, TIMEOUT_S)
    wait.until(lambda _: "characters in" in browser.find_element(By.ID, "status").text)
    browser.execute_script("document.getElementById('inside').open = true")
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, "#steps .step"))


def check(browser: Chrome, width: int, axe: Path | None) -> list[str]:
    """Return the findings on the open page, which is `width` px wide."""
    log = browser.execute("getLog", {"type": "browser"})["value"]
    findings = [entry["message"] for entry in log]
    if browser.execute_script("return document.documentElement.scrollWidth") > width:
        findings.append("the page scrolls sideways")
    if axe is not None:
        browser.execute_script(axe.read_text())
        findings += browser.execute_async_script(RUN_AXE)
    return findings


def main() -> int:
    """Check the page of the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--axe", type=Path, help="axe.min.js of the npm package axe-core")
    parser.add_argument("--pictures", type=Path, help="folder for the screenshots")
    parser.add_argument("--prompt", default="ROMEO:", help="the beginning of the text")
    arguments = parser.parse_args()
    browser = start_browser()
    total = 0
    try:
        for width in WIDTHS:
            for scheme in SCHEMES:
                resize(browser, width, HEIGHT)
                open_page(browser, arguments.page, arguments.prompt, scheme)
                findings = check(browser, width, arguments.axe)
                total += len(findings)
                print(f"{width} px, {scheme}: {len(findings)} findings", *findings, sep="\n  ")
                if arguments.pictures:
                    height = browser.execute_script("return document.documentElement.scrollHeight")
                    resize(browser, width, height)
                    picture = arguments.pictures / f"{width}-{scheme}.png"
                    browser.save_screenshot(str(picture))
    finally:
        browser.quit()
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
