"""What `gpt data` says of a text: each number against a slow count, a program or a formula."""

import json
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpt import api
from gpt.config.data_config import DataConfig
from gpt.evaluation import characters, text_report
from gpt.evaluation.characters import CountedText, find_suspicious, rare_characters
from gpt.evaluation.text_report import find_duplicates
from gpt.inspection.report_views import text_page, text_table
from gpt.reading.sources import open_source
from gpt.text.corpus import load_corpus
from gpt.text.vocabulary import Vocabulary
from tests.conftest import PANGRAM
from tests.test_text import any_text

words = st.text("ab \n", min_size=1, max_size=200)


def counted(text: str) -> CountedText:
    vocabulary = Vocabulary.of(text)
    return CountedText(vocabulary.encode(text), vocabulary)


def write(text: str, name: str = "text.txt") -> str:
    Path(name).write_bytes(text.encode())
    return name


# --- characters ---


@given(text=any_text.filter(len) | words, size=st.integers(1, 7))
def test_characters_are_counted_and_found_wherever_a_part_ends(text, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(characters, "PART_IDS", size)
        found = counted(text)
        lines = [found.line_of(i) for i in range(len(text))]
    assert dict(zip(found.characters, found.counts.tolist(), strict=True)) == Counter(text)
    assert [found.first[i] for i in range(len(found.characters))] == [
        text.index(c) for c in found.characters
    ]
    assert lines == [1 + text[:i].count("\n") for i in range(len(text))]


def test_rare_characters_are_listed_with_their_name_and_place():
    text = PANGRAM * 11 + "a line\nwith a ж in it\n"
    rare = rare_characters(counted(text))
    found, *others = rare.findings
    assert (found.text, found.name, found.count) == ("ж", "U+0436 CYRILLIC SMALL LETTER ZHE", 1)
    assert ("with a ж in it" in found.excerpt, found.line) == (True, 13)
    assert rare.distinct == 1 + len(others) == sum(n < 10 for n in Counter(text).values())


DIRTY = {  # a text, and the kind and the findings in it
    "a\0b\x1b[0m\0": ("control", {"\0": 2, "\x1b": 1}),
    "a\ufffd\ufffdb": ("replacement character", {"\ufffd": 2}),
    "ze\u200bro \u202eright\ufeff": (
        "invisible or direction",
        {"\u200b": 1, "\u202e": 1, "\ufeff": 1},
    ),
    "cafÃ© au lait, cafÃ©": ("mojibake", {"Ã©": 2}),
    "itâ€™s": ("mojibake", {"â€™": 1}),
    "Ð¿Ñ€": ("mojibake", {"Ð¿Ñ€": 1}),
    "РџСЂРёРІРµС‚!": ("mojibake", {"РџСЂРёРІРµС‚": 1}),
    "l'été, l'été".encode("mac_roman").decode("latin-1"): ("mojibake", {"\x8e": 4}),
}


@pytest.mark.parametrize("size", [2, 1000])
@pytest.mark.parametrize("text", DIRTY)
def test_what_is_suspicious_is_counted_by_kind(text, size, monkeypatch):
    monkeypatch.setattr(characters, "PART_IDS", size)
    kind, expected = DIRTY[text]
    by_kind = {suspicion.kind: suspicion for suspicion in find_suspicious(counted(text))}
    suspicion = by_kind[kind]
    assert {finding.text: finding.count for finding in suspicion.findings} == expected
    assert (suspicion.count, suspicion.distinct) == (sum(expected.values()), len(expected))
    assert all(finding.text in finding.excerpt for finding in suspicion.findings)


@pytest.mark.parametrize(
    "text",
    [
        "Привет, мир! Hello, world; Γειά.",  # scripts mixed, but not in a word
        "これはTシャツとDNAのβ線です。\u3000漢字かな",  # written without spaces
        "Un café à Zürich, à « L'ÎLE », ça coûte 3 €. ÀÂÃ",
        "आपका स्वागत है 👩\u200d👩\u200d👧 and ❤\ufe0f\u200d🔥",  # joiners between emoji
        "2√π r, ∞; CAFÉ» «ÉTÉ»; “École” — «СССР»… Рівне, мёд; Рјечник; ├── a\n│   └── b",
        "吾輩は猫である。名前はまだ無い。我们都是中国人，今天天气很好。" * 5,
    ],
)
def test_texts_in_order_are_not_suspicious(text):
    assert find_suspicious(counted(text)) == []


RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая. " * 3
GERMAN = "Die Würde des Menschen ist unantastbar. Straße größer schön. " * 3
FRENCH = "L’été dernier, j’ai vu un élève très doué — où ça ? à l’école, naïf, déçu. " * 3


@pytest.mark.parametrize(
    ("text", "written", "read"),
    [
        (RUSSIAN, "utf-8", "cp1251"),
        (RUSSIAN, "utf-8", "latin-1"),
        (GERMAN, "utf-8", "cp1252"),
        (GERMAN, "utf-8", "latin-1"),
        ("10 € — “Ja!, ½ 🎉", "utf-8", "cp1252"),
        (FRENCH, "utf-8", "mac_roman"),
        (FRENCH, "mac_roman", "latin-1"),
        (RUSSIAN, "cp1251", "latin-1"),
    ],
)
def test_a_text_decoded_in_a_wrong_encoding_is_found(text, written, read):
    """Bug: a French text of an old Macintosh was not recognised as damaged."""
    found = find_suspicious(counted(text.encode(written).decode(read, "replace")))
    assert "mojibake" in {suspicion.kind for suspicion in found}
    assert [s for s in find_suspicious(counted(text)) if s.kind == "mojibake"] == []


# --- duplicates ---

LETTERS = "abcdefghijklmnopqrstuvwxyzäあ漢"


def random_text(size: int, seed: int) -> str:
    draw = np.random.default_rng(seed)
    return "".join(draw.choice([*LETTERS, " ", "\n", ","], size=size))


@pytest.mark.parametrize("size", [7, 2**20])
def test_lines_of_val_that_train_has_are_found_wherever_a_part_ends(size, monkeypatch):
    monkeypatch.setattr(text_report, "TRAIN_PART_IDS", size)
    lines = [random_text(211, seed).replace("\n", " ") for seed in range(40)] + ["Ann", ""]
    twice = [lines[3], lines[17], "Bob", "Ann", "", lines[17][:59]]
    text = "\n".join([*lines, *twice, "end"])
    name = write(text)
    train = sum(len(line) + 1 for line in lines)
    corpus = load_corpus(open_source(name), DataConfig(val_fraction=1 - train / len(text)))
    in_lines = len(text[len(corpus.train) :].replace("\n", ""))
    shares = (422 + len("Ann")) / in_lines, 422 / in_lines
    assert find_duplicates(corpus) == pytest.approx(shares)


def test_short_lines_that_train_has_are_found_too():
    """Bug: duplicates were 0.0 % of a list of names, half of which train had, too."""
    names = [f"{name} {i}" for i in range(600) for name in ("ann", "bob")]
    report = api.describe(write("\n".join([*names[:1080], *names[:60], *names[1080:1140]])))
    assert (0.4 < report.duplicate_share < 0.5, report.long_duplicate_share) == (True, 0)
    assert "also occurs in train" in report.warnings[0]


# --- the report ---


def test_the_report_of_a_text_is_that_of_its_corpus():
    text = PANGRAM * 60 + random_text(5003, seed=1) + "\nthe end"
    name = write(text)
    report = api.describe(name)
    corpus, distinct = load_corpus(open_source(name)), len(set(text))
    assert (report.files, report.lines, report.unit) == (1, len(text.splitlines()), "characters")
    assert (report.characters, report.distinct, report.V) == (len(text), distinct, distinct)
    assert (report.train, report.val) == (len(corpus.train), len(corpus.val))
    val = text[report.train :]
    assert report.only_in_val == "".join(sorted({*val} - {*text[: report.train]}))


def test_a_text_of_bytes_is_described_by_character():
    text = "".join(np.random.default_rng(1).choice([*"あいうえおか\n"], size=5003))
    name = write(text)
    report, by_bytes = api.describe(name), api.describe(name, ["data.vocabulary=bytes"])
    assert (by_bytes.V, by_bytes.unit) == (256, "bytes")
    assert by_bytes.train + by_bytes.val == len(text.encode())
    for same in ("findings", "only_in_val", "duplicate_share"):
        assert getattr(by_bytes, same) == getattr(report, same)


def test_characters_that_train_lacks_are_told_unless_they_can_be_predicted():
    name = write("abc" * 300 + "\u00e9\u00e8" * 40)
    (warning,) = api.describe(name).warnings
    assert "not occur in train" in warning and "=bytes" in warning
    assert api.describe(name, ["data.vocabulary=bytes"]).warnings == []


@given(text=any_text, width=st.integers(40, 120))
@settings(max_examples=30)
def test_any_text_is_described_within_the_width(text, width):
    write(text)
    if not text.removeprefix("\ufeff"):
        return
    report = api.describe("text.txt")
    for line in text_table(report, width).splitlines():
        assert cell_len(line) <= width
        assert all(unicodedata.category(c) not in ("Cc", "Zl", "Zp") for c in line)
    json.dumps(text_page(report).decode())


def test_the_page_shows_the_numbers_and_a_hostile_text_stays_text():
    hostile = "</style><script>alert(1)</script>&amp;\x1b[31m \u202e<img src=x>"
    report = api.describe(write((hostile + PANGRAM) * 31, "<b>a&b.txt"))
    page = text_page(report).decode()
    assert not [tag for tag in ("<script", "<img", "<b>", "\x1b", "\u202e") if tag in page]
    assert "&lt;b&gt;a&amp;b.txt" in page
    assert f"{report.characters:,} in {report.lines:,} lines" in page
    assert "http" not in page.replace("http-equiv", "")


# --- the command ---


def test_the_command_prints_a_table_json_and_a_page(gpt):
    name = write(PANGRAM * 99)
    code, out, _ = gpt("data", name)
    report = api.describe(name)
    assert (code, out) == (0, f"{text_table(report)}\n")
    code, out, _ = gpt("data", name, "--json", "--set", "data.vocabulary=bytes")
    told = json.loads(out)
    assert (code, told["V"]) == (0, 256)
    assert told["duplicate_share"] > 0.8
    assert "of the val text also occurs in train" in told["warnings"][0]
    code, out, _ = gpt("data", name, "--html", "page.html")
    assert (code, out) == (0, "page.html\n")
    assert Path("page.html").read_bytes() == text_page(report)
