"""The page of `gpt export --to html` in a real browser: the same texts as `gpt sample`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from gpt import api
from gpt.terminal import symbol
from tests.conftest import PANGRAM, trained
from tests.test_export import rounded
from tests.test_page import By, Chrome, Keys, browser, emulate, press, shown  # noqa: F401

TEXT = PANGRAM * 19 + PANGRAM.swapcase() * 7 + PANGRAM[::-1] * 5
HOSTILE = "<b>fox</b></script><script>document.title = 'x'</script>\x1b\u202e שלום 😀"
DONE = "characters in"  # stands in the status line when a text is written


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"), TEXT, train__steps=41)


@pytest.fixture
def page(browser: Chrome, run: Path) -> Iterator[Chrome]:  # noqa: F811
    file = run.parent / "page.html"
    if not file.exists():
        api.export(api.load(run), "html", file)
    emulate(browser, 1280, 800)
    yield browser
    assert browser.get_log("browser") == []


def wait(page: Chrome, condition: Callable[[], object]) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(page, 10, 0.05).until(lambda _: condition())


def visit(page: Chrome, file: Path, **settings: object) -> None:
    """Open a page by a link with `settings`, and wait until it has written a text."""
    page.get("about:blank")
    page.get(f"{file.as_uri()}#{urlencode(settings)}")
    wait(page, lambda: DONE in shown(page, "status") or "ready" in shown(page, "status"))
    wait(page, lambda: page.find_elements(By.CSS_SELECTOR, "#text .here") or not settings)


def text_of(page: Chrome) -> str:
    """Return the text on the page, as its characters or their symbols."""
    return str(page.execute_script(
        "return Array.from(document.querySelectorAll('#text span:not(.end)'),"
        "(span) => span.textContent).join('')"
    ))  # fmt: skip


def as_shown(text: str) -> str:
    return "".join(c if c == " " else symbol(c) for c in text)


def sampled(
    run: Path, prompt: str, seed: int, length: int, temperature: float | None = None
) -> str:
    """The prompt and the text that `gpt sample` adds, with weights rounded like the page's.

    Bug: a draw that this rounding decides differed on another CPU.
    """
    model = api.load(run)
    model.checkpoint = rounded(model.checkpoint)
    rules = {"temperature": temperature}
    chunks = model.sample([prompt], num_samples=1, length=length, seed=seed, rules=rules)
    return prompt + "".join(chunk.text for chunk in chunks)


@pytest.mark.parametrize("prompt", ["", "the quick", PANGRAM])
def test_a_seed_writes_the_text_of_gpt_sample(page, run, prompt):
    visit(page, run.parent / "page.html", prompt=prompt, seed=8, length=61, temperature=0.9)
    expected = sampled(run, prompt, 8, 61, 0.9)
    assert text_of(page) == as_shown(expected)


def test_continuing_writes_what_the_whole_length_does(page, run):
    visit(page, run.parent / "page.html", prompt="fox", seed=5, length=29)
    written = text_of(page)
    page.find_element(By.ID, "continue").click()
    wait(page, lambda: text_of(page) != written and DONE in shown(page, "status"))
    assert text_of(page) == as_shown(sampled(run, "fox", 5, 58))
    page.find_element(By.ID, "link").click()  # its length is that of the whole text
    before, link = text_of(page), page.current_url
    page.get("about:blank")
    page.get(link)
    wait(page, lambda: DONE in shown(page, "status"))
    assert text_of(page) == before


def test_a_bar_branches_where_a_character_was_clicked(page, run):
    visit(page, run.parent / "page.html", prompt="fox", seed=5, length=43)
    text = text_of(page)
    page.find_element(By.ID, "t19").click()
    wait(page, lambda: shown(page, "place").startswith("Character 20"))
    choices = page.find_elements(By.CSS_SELECTOR, "#likely button:not(.actual)")
    choice = choices[0].find_element(By.CSS_SELECTOR, ".hidden").get_property("textContent")
    character = {"space": " ", "newline": "\n"}.get(str(choice), str(choice))
    choices[0].click()
    wait(page, lambda: DONE in shown(page, "status") and text_of(page) != text)
    prompt = str(page.find_element(By.ID, "prompt").get_property("value"))
    assert as_shown(prompt) == text[:19] + as_shown(character)
    assert text_of(page) == as_shown(sampled(run, prompt, 5, 43))


def test_markup_and_unknown_characters_stay_text(page, run):
    visit(page, run.parent / "page.html", prompt=HOSTILE, seed=1, length=3)
    assert page.title == "run"
    known = api.load(run).vocabulary.characters
    kept = "".join(c for c in HOSTILE if c in known)
    assert text_of(page).startswith(as_shown(kept))
    notice = shown(page, "notice")
    assert all(symbol(c) in notice for c in "<>/\x1b\u202eש😀")
    assert page.find_elements(By.CSS_SELECTOR, "#text b, #notice b, #place b") == []


def test_a_byte_model_writes_characters_and_measures_them(page):
    """The text also has bytes that are not UTF-8: one byte can then show two characters."""
    changes = {"data__vocabulary": "bytes", "train__steps": 23}
    run = trained(Path(), "日本語 fox\n" * 199, **changes)
    api.export(api.load(run), "html", Path("page.html"))
    visit(page, Path("page.html").absolute(), prompt="日", seed=3, length=31)
    assert text_of(page) == as_shown(sampled(run, "日", 3, 31))
    text = "語日 fox 本\n" * 7
    page.execute_script("document.getElementById('prompt').value = arguments[0]", text)
    page.find_element(By.ID, "measure").click()
    wait(page, lambda: shown(page, "place").startswith("Byte 4:"))
    assert text_of(page) == as_shown(text)
    nats = float(shown(page, "status").split("mean surprise ")[1].split()[0])
    assert nats == pytest.approx(api.load(run).loss(text), rel=2e-3)


def test_it_uses_no_network_and_fits_a_phone(page, run):
    emulate(page, 360, 780)
    visit(page, run.parent / "page.html", prompt="the", seed=1, length=97)
    page.find_element(By.CSS_SELECTOR, "#inside summary").click()
    wait(page, lambda: page.find_elements(By.CSS_SELECTOR, "#steps .step"))
    assert page.execute_script("return document.documentElement.scrollWidth") <= 360
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    refused = page.execute_async_script(
        "const done = arguments[0];"
        "fetch('data:,x').then(() => done('allowed'), (error) => done(error.name))"
    )
    assert refused == "TypeError"
    messages = [json.dumps(entry) for entry in page.get_log("browser")]  # of this fetch alone
    assert all("Content Security Policy" in message for message in messages)
