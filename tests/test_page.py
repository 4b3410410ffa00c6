"""The pages of `gpt attend`, by mouse, finger and keyboard, and of `gpt data` in a real browser."""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpt.inspection.attention_views import attention_page
from tests.test_inspection import analysis_of

CHROMIUM, CHROMEDRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or CHROMEDRIVER is None:
    pytest.skip("no chromium and chromedriver installed here", allow_module_level=True)

from selenium.webdriver import ActionChains, Chrome, ChromeOptions, Keys  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

L, H = 2, 3
TEXT = ("The quick brown fox\njumps over the lazy dog. " * 12)[:503]


ANALYSIS, VOCABULARY = analysis_of(TEXT, L, H)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_argument("--headless=new")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # root has no other way
    started = Chrome(options=options, service=Service(str(CHROMEDRIVER)))
    yield started
    started.quit()


def emulate(browser: Chrome, width: int, height: int, scheme: str = "light") -> None:
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.fixture
def page(browser: Chrome, tmp_path: Path) -> Iterator[Chrome]:
    """The page of a text of 503 characters, in a window of 1280 x 800; no error in its console."""
    file = tmp_path / "page.html"
    file.write_bytes(attention_page(ANALYSIS, TEXT, "a run, step 7", VOCABULARY, chosen=(1, 0)))
    emulate(browser, 1280, 800)
    browser.get(file.as_uri())
    yield browser
    assert browser.get_log("browser") == []


def shown(page: Chrome, id_: str) -> str:
    return page.find_element(By.ID, id_).text


def query(page: Chrome) -> int:
    """The selected query position, from 0, as the status line names it."""
    match = re.search(r"query (\d+) of 503", shown(page, "status"))
    assert match
    return int(match[1]) - 1


def point_at(page: Chrome, t: int) -> None:
    ActionChains(page).move_to_element(page.find_element(By.ID, f"t{t}")).perform()


def click(page: Chrome, id_: str) -> None:
    ActionChains(page).move_to_element(page.find_element(By.ID, id_)).click().perform()


def press(page: Chrome, *keys: str) -> None:
    ActionChains(page).send_keys(*keys).perform()


def numbers(page: Chrome, selector: str) -> list[float]:
    found = page.find_elements(By.CSS_SELECTOR, selector)
    return [float(element.text.removesuffix(" %").replace("\u2212", "-")) for element in found]


def test_it_shows_the_largest_weights_and_probabilities(page):
    point_at(page, 37)
    click(page, "map1-2")
    assert shown(page, "status") == "Layer 2, head 3, query 38 of 503: “z”"
    weights = 100 * ANALYSIS.weights[1, 2, 37].sort(descending=True).values[:8]
    assert numbers(page, "#sources .percent") == pytest.approx(weights.tolist(), abs=6e-2)
    likeliest = 100 * ANALYSIS.probabilities[37].sort(descending=True).values[:8]
    assert numbers(page, "#predictions .percent") == pytest.approx(likeliest.tolist(), abs=6e-2)
    characters = VOCABULARY.characters
    p = ANALYSIS.probabilities[37, characters.index(TEXT[38])]
    assert shown(page, "actual").startswith(f"Actual next character “{TEXT[38]}”: {100 * p:.1f} %")


def test_all_heads_are_shown_with_their_cost_and_scores(page):
    rows = torch.stack([ANALYSIS.removal_costs, ANALYSIS.previous, ANALYSIS.induction], dim=1)
    expected = rows.flatten().tolist()  # layer by layer: costs, previous, induction of each head
    assert numbers(page, "#grid .score") == pytest.approx(expected, abs=6e-3)
    assert numbers(page, "#grid .score")[:H] == pytest.approx(expected[:H], abs=6e-4)
    score = page.find_elements(By.CSS_SELECTOR, "#grid .score")[-1]
    ActionChains(page).move_to_element(score).click().perform()
    assert shown(page, "name").upper() == "LAYER 2, HEAD 3"


def test_of_many_heads_the_chosen_one_is_in_sight(browser, tmp_path):
    """And a head without which the loss is lower was tinted as if it cost much."""
    analysis, vocabulary = analysis_of("the fox", 2, 19)
    analysis = replace(analysis, losses_without=analysis.losses_without - 1)  # all do harm
    file = tmp_path / "page.html"
    file.write_bytes(attention_page(analysis, "the fox", "t", vocabulary))
    emulate(browser, 1280, 800)
    browser.get(file.as_uri())
    assert in_sight(browser, "map0-0", "grid")
    assert not in_sight(browser, "map0-18", "grid")
    press(browser, *"]" * 18)
    assert in_sight(browser, "map0-18", "grid")
    tints = browser.execute_script(
        "return Array.from(document.querySelectorAll('#grid .score'),"
        "(score) => score.style.getPropertyValue('--strength'))"
    )
    assert tints[:19] == ["0"] * 19
    assert browser.get_log("browser") == []


def test_a_click_pins_a_character_and_escape_unpins_it(page):
    """Without, what was chosen was lost on the way of the mouse to the results."""
    point_at(page, 5)
    assert query(page) == 5
    click(page, "t20")
    assert "pinned" in shown(page, "status")
    point_at(page, 30)
    assert query(page) == 20
    press(page, Keys.ESCAPE)
    assert "pinned" not in shown(page, "status")
    point_at(page, 31)
    assert query(page) == 31
    click(page, "t40")
    click(page, "t41")  # another: the pin moves
    assert (query(page), "pinned" in shown(page, "status")) == (41, True)
    click(page, "t41")  # the same: unpinned
    assert "pinned" not in shown(page, "status")


def in_sight(page: Chrome, id_: str, within: str = "") -> bool:
    """Whether it is all inside the window, and inside another element if one is named."""
    inside: bool = page.execute_script(
        "const box = document.getElementById(arguments[0]).getBoundingClientRect();"
        "const frame = document.getElementById(arguments[1])?.getBoundingClientRect()"
        " ?? {top: 0, left: 0, bottom: innerHeight, right: innerWidth};"
        "return box.top >= frame.top && box.bottom <= frame.bottom"
        " && box.left >= frame.left - 1 && box.right <= frame.right + 1",
        id_,
        within,
    )
    return inside


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_results_stay_in_sight_beside_a_long_text(page, width, height):
    """At 503 characters they lay below the text, out of sight."""
    emulate(page, width, height)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    for t in (0, 251, 502):
        page.execute_script(f"document.getElementById('t{t}').scrollIntoView({{block: 'nearest'}})")
        assert in_sight(page, f"t{t}")
        assert in_sight(page, "results")
        covered = page.execute_script(
            "const [text, results] = Array.from(arguments).map("
            "(id) => document.getElementById(id).getBoundingClientRect());"
            "return text.bottom > results.top && text.top < results.bottom"
            " && text.right > results.left && text.left < results.right",
            f"t{t}",
            "results",
        )
        assert not covered
