"""Headless Chromium, for measurements and pictures of pages."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.remote_connection import RemoteConnection

TIMEOUT_S = 600  # longest time of a request


@contextmanager
def browser() -> Iterator[Chrome]:
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


def resize(chrome: Chrome, width: int, height: int) -> None:
    """Set the size of the window, in px."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
