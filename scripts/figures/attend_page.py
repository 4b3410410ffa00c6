"""Take a screenshot of the page of `gpt attend`.

    python scripts/figures/attend_page.py RUN OUT.png

It needs Chromium and chromedriver. The README's picture is of configs/quickstart.yaml.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from selenium.webdriver import ActionChains, Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service

TEXT = "If the list is empty, return the empty list."
QUERY = TEXT.rindex("empty") + 2
KEYS = Keys.HOME + QUERY * Keys.ARROW_RIGHT


def take_screenshot(page: Path, out: Path) -> None:
    """Press the KEYS and write a picture of the page, 1100 x 860."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("install chromium")
    options.add_argument("--headless=new")
    options.add_argument("--hide-scrollbars")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium does not run as root otherwise
    driver = shutil.which("chromedriver") or sys.exit("install chromedriver")
    browser = Chrome(options=options, service=Service(driver))
    try:
        screen = {"width": 1100, "height": 860, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get(page.as_uri())
        ActionChains(browser).send_keys(KEYS).perform()
        browser.save_screenshot(str(out))
    finally:
        browser.quit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        command = [sys.executable, "-m", "gpt", "attend", arguments.run]
        command += ["--text", TEXT, "--out", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        take_screenshot(page, arguments.out)
