"""A text as ids: the rules by which it is read, its vocabulary, its splits, what is kept of it."""

import hashlib
import io
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.config.data_config import DataConfig
from gpt.errors import CheckpointError, TextError
from gpt.reading.sources import open_source
from gpt.text.cache import cache_dir
from gpt.text.corpus import Corpus, load_corpus
from gpt.text.documents import Document, Normalizer, Source, document_lengths
from gpt.text.preparation import Part
from gpt.text.vocabulary import BYTES, Vocabulary, normalized
from tests.test_text import any_text, write

lines = st.text(st.sampled_from("ab\r\n")) | any_text


def source_of(*documents: Iterable[str], files: tuple[Path, ...] = ()) -> Source:
    """A source of documents of which the chunks are given."""

    def opened(chunks: Iterable[str]) -> Iterator[bytes]:
        return (chunk.encode() for chunk in chunks)

    return Source(
        "t",
        lambda: iter([Document(str(i), lambda d=d: opened(d)) for i, d in enumerate(documents)]),
        files,
    )


def cut(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def with_line_feeds(text: str) -> str:
    """Apply Python's own universal newlines."""
    return io.StringIO(text, newline=None).read()


def load(content: bytes, **data: Any) -> Corpus:
    return load_corpus(open_source(write(content)), DataConfig(**data))


# --- the rules ---


@given(text=lines, size=st.integers(1, 5))
def test_line_ends_become_LF_wherever_a_chunk_ends(text, size):
    """A CR at the end of a chunk and the LF at the start of the next are one line end."""
    normalizer = Normalizer()
    read = b"".join(normalizer(chunk.encode() for chunk in cut(text, size))).decode()
    assert read == with_line_feeds(text) == normalized(text, BYTES)
    assert normalizer.line_ends == len(re.findall(r"\r\n?", text))


def test_a_text_from_windows_is_the_same_corpus(caplog):
    """Its CR were learnt as characters, and stood in every sample."""
    caplog.set_level("INFO", "gpt")
    unix = load(b"ab\ncd\n\nef\n" * 7)
    assert caplog.messages == []
    for _ in range(2):  # also from the cache
        windows = load(b"ab\r\ncd\r\n\r\nef\r\n" * 7)
        assert windows.ids.tolist() == unix.ids.tolist()
        assert (windows.sha256, windows.vocabulary) == (unix.sha256, unix.vocabulary)
        assert caplog.messages.pop() == ("text.txt: 28 line ends (CRLF or CR) were changed to LF")
        caplog.clear()


# --- the vocabulary ---


@pytest.mark.parametrize(
    "content",
    [
        *("", "{}", "[]", "[" * 100_000, '{"characters": ""}', '{"characters": 3}'),
        *('{"characters": "ba"}', '{"characters": "aa"}', '{"characters": ["a", "b"]}'),
        *('{"characters": "ab\\ud800"}', '{"characters": "ab", "more": 1}', '"ab"', "null"),
        *('{"bytes": false}', '{"bytes": 1}', '{"bytes": true, "characters": "ab"}'),
        '{"characters": "ab", "unknown": 3}',
    ],
)
def test_a_vocabulary_file_that_is_none_is_refused(content):
    with pytest.raises(CheckpointError, match="not a vocabulary"):
        Vocabulary.from_json(content)


@given(text=any_text, size=st.integers(1, 300))
def test_chunks_of_utf8_are_encoded_as_their_characters_are(text, size):
    for more in ("", "abc", "".join(map(chr, range(0x4E00, 0x4E00 + size)))):
        for vocabulary in (Vocabulary.of(text + more), BYTES):
            ids = vocabulary.encode_utf8(text.encode())
            assert ids.tolist() == vocabulary.encode(text).tolist()
            assert ids.dtype == vocabulary.dtype


@given(text=any_text)
def test_every_kind_of_vocabulary_gives_a_text_back(text):
    for vocabulary in (BYTES, Vocabulary.of(text)):
        assert vocabulary.decode(vocabulary.encode(text)) == text
        assert len(vocabulary.names) == len(vocabulary)
        if vocabulary.is_bytes or vocabulary.characters:
            assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary


# --- the corpus ---


@given(
    texts=st.lists(lines, min_size=1, max_size=3).filter(lambda ts: any(ts)),
    size=st.integers(1, 7),
    vocabulary=st.sampled_from(["characters", "bytes"]),
)
def test_a_corpus_holds_every_character_of_the_text(texts, size, vocabulary):
    data = DataConfig(vocabulary=vocabulary)
    text = "\n\n".join(map(with_line_feeds, texts))
    corpus = load_corpus(source_of(*(cut(text, size) for text in texts)), data)
    assert corpus.vocabulary.decode(corpus.ids) == text
    assert corpus.sha256 == hashlib.sha256(text.encode()).hexdigest()
    at = int(0.9 * len(text))
    assert corpus.vocabulary.decode(corpus.train) == text[:at]
    assert corpus.vocabulary.decode(corpus.val) == text[at:]
    assert (corpus.characters, corpus.val_characters) == (len(text), len(text) - at)
    assert corpus.val_bytes == len(text[at:].encode())


def test_a_text_of_its_own_can_be_val():
    """Its characters are in the vocabulary, too."""
    corpus = load_corpus(source_of(["abc" * 7]), val_source=source_of(["xaé" * 3]))
    assert corpus.vocabulary.characters == "abcxé"
    assert corpus.vocabulary.decode(corpus.train) == "abc" * 7
    assert corpus.vocabulary.decode(corpus.val) == "xaé" * 3
    assert (corpus.val_characters, corpus.val_bytes) == (9, 12)
    assert corpus.sha256 != load_corpus(source_of(["abc" * 7 + "xaé" * 3])).sha256


def test_a_part_of_the_text_can_be_val():
    corpus = load(b"0123456789" * 3, val_fraction=0.3)
    assert corpus.vocabulary.decode(corpus.val) == "123456789"


def test_whole_documents_can_be_val():
    texts = ["".join(chr(0x61 + i) for _ in range(5 + i)) for i in range(20)]
    data, chosen = DataConfig(split="documents", val_fraction=0.2), set()
    for seed in range(5):
        corpus = load_corpus(source_of(*([text] for text in texts)), data, seed=seed)
        train, val = (
            corpus.vocabulary.decode(ids).split("\n\n") for ids in (corpus.train, corpus.val)
        )
        assert sorted(train + val) == sorted(texts)
        assert train == sorted(train) and val == sorted(val)  # in their order
        assert 0.1 < len("".join(val)) / len("".join(texts)) <= 0.3
        again = load_corpus(source_of(*([text] for text in texts)), data, seed=seed)
        assert again.sha256 == corpus.sha256
        chosen.add(tuple(val))
    assert len(chosen) == 5
    with pytest.raises(TextError, match="expected at least 2, got 1"):
        load_corpus(source_of(["abc"]), data)


@given(texts=st.lists(st.text("ab\n\ré"), min_size=1, max_size=4), size=st.integers(1, 4))
def test_a_text_is_divided_into_lines_wherever_a_chunk_ends(texts, size):
    data = DataConfig(documents="lines", split="documents")
    source = source_of(*(cut(text, size) for text in texts))
    oracle = [re.findall(r"[^\n]*\n|[^\n]+", with_line_feeds(text)) for text in texts]
    lengths = document_lengths(source, data)
    assert lengths == [len(document) for file in oracle for document in file]
    for chosen in (np.ones(len(lengths), bool), np.arange(len(lengths)) % 2 == 1):
        index = iter(chosen.tolist())
        kept = ["".join(document for document in file if next(index)) for file in oracle]
        text = b"".join(Part(source, data, chosen).chunks()).decode()
        assert text == "\n\n".join(filter(None, kept))


def test_lines_can_be_held_out():
    """Bug: for a text of one line, data.documents=lines was advised, also where it was set."""
    content = "".join(f"{i:04}\n" for i in range(500)).encode()
    whole = load(content, documents="lines")
    assert whole.sha256 == hashlib.sha256(content).hexdigest()
    with pytest.raises(TextError, match=r"got 1; use .*data\.documents=lines.*, so each line"):
        load(content, split="documents")
    corpus = load(content, split="documents", documents="lines")
    train, val = (corpus.vocabulary.decode(ids).splitlines() for ids in (corpus.train, corpus.val))
    assert sorted(train + val) == [f"{i:04}" for i in range(500)]
    assert (train, val) == (sorted(train), sorted(val))
    assert 48 <= len(val) <= 52
    assert val[0] < train[-1]
    data = DataConfig(split="documents", documents="lines", vocabulary="bytes")
    binary = load_corpus(open_source(write(b"\xff\0\n" * 99), data), data)
    assert len(binary.ids) == 297, "bug: it ended in a UnicodeDecodeError"
    with pytest.raises(TextError, match=r"got 1; a text of one line cannot be divided into"):
        load(b"one line " * 99, split="documents", documents="lines")


def test_a_document_remains_for_train_and_its_line_ends_are_counted_once(caplog):
    """Bug: with data.val_fraction=0.9, train was empty, and the line ends were counted twice."""
    caplog.set_level("INFO", "gpt")
    content = b"seven\r\n" * 53
    corpus = load(content, split="documents", documents="lines", val_fraction=0.99)
    assert (corpus.characters, len(corpus.train)) == (6 * 53, 6)
    assert "text.txt: 53 line ends" in caplog.text


def test_a_vocabulary_that_is_given_is_used():
    given_ = Vocabulary("abcd")
    assert load_corpus(source_of(["cab"]), vocabulary=given_).ids.tolist() == [2, 0, 1]
    with pytest.raises(TextError, match=r"2 of its characters are not in the given voc.*: x ü;"):
        load_corpus(source_of(["cüabx"]), vocabulary=given_)


def test_what_is_kept_is_for_one_way_of_reading():
    """The hash of the text alone was the key: with another vocabulary the ids were wrong."""
    ways: list[dict[str, Any]] = [{}, {"vocabulary": "bytes"}, {"val_fraction": 0.5}]
    first = [load("aAbB\r\nﬁ".encode() * 3, **data) for data in ways]
    for corpus, data in zip(first, ways, strict=True):
        again = load("aAbB\r\nﬁ".encode() * 3, **data)
        assert again.ids.tolist() == corpus.ids.tolist()
        assert (again.vocabulary, again.train_ids) == (corpus.vocabulary, corpus.train_ids)
    assert len({(*corpus.ids.tolist(), corpus.train_ids) for corpus in first}) == len(ways)


def kept() -> Path:
    """The ids in the cache."""
    (path,) = (cache_dir() / "corpora").glob("*/*.npy")
    return path


def test_the_encoded_text_is_found_again_and_a_changed_text_is_not_mistaken_for_it():
    load(b"abcabc")
    before = kept().stat().st_mtime_ns
    load(b"abcabc")
    assert kept().stat().st_mtime_ns == before
    assert load(b"abcabd").vocabulary.characters == "abcd"
    assert kept().stat().st_mtime_ns > before  # in place of the old ids


def test_a_damaged_cache_is_written_anew():
    """Changed ids were once trained on, under the hash of the text."""
    load(b"abcabc")
    ids, record = kept(), kept().with_name("corpus.json")
    written, recorded = ids.read_bytes(), record.read_bytes()
    changed = written.replace(b"\0\1\2\0\1\2", b"\0\1\2\1\0\2")
    pickle = b"\x80\x04K\x01."
    damaged = [(ids, each) for each in (changed, written[:-1], written + b"\0", pickle, b"")]
    damaged += [(record, each) for each in (b"", b"[]", b'{"format": 1}', b"\xff", b"[" * 100_000)]
    for path, content in damaged:
        path.write_bytes(content)
        assert load(b"abcabc").ids.tolist() == [0, 1, 2, 0, 1, 2]
        assert (ids.read_bytes(), record.read_bytes()) == (written, recorded)


@pytest.mark.parametrize("second", ["abd", "ab", "abcc", "acb", "", "é"])
def test_a_text_that_changes_while_it_is_read_is_told(second):
    """A text cut short between its two readings was once kept, padded, under its old hash."""
    path, contents = Path("text.txt"), iter([b"abc", second.encode()])
    path.write_bytes(b"abc")

    def documents() -> Iterator[Document]:
        path.write_bytes(next(contents))
        return open_source("text.txt").documents()

    with pytest.raises(TextError, match="changed while it was being read"):
        load_corpus(Source("t", documents, (path,)))
    assert load_corpus(
        Source("t", open_source("text.txt").documents, (path,)) if second else source_of(["x"])
    ).characters


def test_a_text_that_grows_by_a_document_is_told():
    """Bug: with data.split=documents, a log that grew meanwhile raised an IndexError."""
    path, lines = Path("text.txt"), ["ab\n", "cd\n"]

    def documents() -> Iterator[Document]:
        lines.append("ef\n")
        path.write_text("".join(lines))
        return open_source("text.txt").documents()

    by_lines = DataConfig(split="documents", documents="lines")
    with pytest.raises(TextError, match="changed while it was being read"):
        load_corpus(Source("t", documents), by_lines)


def test_two_that_prepare_the_same_text_do_not_collide():
    """The second waits for the first, and finds its ids."""
    path, first_reads, go_on = Path("text.txt"), threading.Event(), threading.Event()
    path.write_bytes(b"abcabc")
    readings = []

    def documents() -> Iterator[Document]:
        readings.append(1)
        first_reads.set()
        assert go_on.wait(60)
        return open_source("text.txt").documents()

    source, corpora = Source("t", documents, (path,)), []
    threads = [
        threading.Thread(target=lambda: corpora.append(load_corpus(source))) for _ in range(2)
    ]
    threads[0].start()
    assert first_reads.wait(60)
    threads[1].start()
    threads[1].join(0.3)
    assert threads[1].is_alive()
    go_on.set()
    for thread in threads:
        thread.join()
    assert [corpus.ids.tolist() for corpus in corpora] == [[0, 1, 2, 0, 1, 2]] * 2
    assert len(readings) == 2  # one to count, one to encode


@pytest.mark.parametrize(("T", "fraction"), [(1, 0.1), (8, 0.1), (110, 0.1), (13, 0.9), (7, 0.37)])
def test_a_short_text_is_told_the_number_of_characters_that_are_needed(T, fraction):
    """Bug: it was "some thousands", a smaller model.T, or an OverflowError during training."""
    data = DataConfig(val_fraction=fraction)
    with pytest.raises(TextError) as caught:
        load(b"a", val_fraction=fraction).check_fits(T, data)
    told = re.match(r"text\.txt: 1 characters are too few: ([\d,]+) are needed", str(caught.value))
    assert told and "model.T=" not in str(caught.value)
    needed = int(told[1].replace(",", ""))
    load(b"ab" * (needed // 2) + b"a" * (needed % 2), val_fraction=fraction).check_fits(T, data)
    with pytest.raises(TextError, match=rf"{needed - 1:,} char.* more than model.T = {T}; use"):
        load(b"a" * (needed - 1), val_fraction=fraction).check_fits(T, data)


def test_T_must_fit_into_the_shorter_split(gpt):
    corpus = load(b"ab" * 555)  # 999 train, 111 val
    with pytest.raises(
        TextError, match=r"val 111 char.* model\.T = 111; .*, or at most .*model\.T=110"
    ):
        corpus.check_fits(111, DataConfig())
    separate = load_corpus(source_of(["abc" * 70]), val_source=source_of(["xaé" * 3]))
    expected = r"t \(val: t\): 219 .* too few; train has 210, val 9 .*longer text, or"
    with pytest.raises(TextError, match=expected):  # bug: the val text was not named
        separate.check_fits(9, DataConfig(val_source="other.txt"))
    for length, expected in ((60, "60 characters are too few: 81 are"), (81, "too short for")):
        code, _, err = gpt("train", write(b"abc" * (length // 3)), "--minutes", "0.001")
        assert (code > 0, expected in err) == (True, True), err


def test_a_tiny_val_fraction_is_refused_at_once():
    """Bug: the needed number of characters was counted one by one, for hours."""
    for fraction in (1e-9, 1 - 1e-9):
        data = DataConfig(val_fraction=fraction)
        with pytest.raises(TextError, match="characters are too few"):
            load(b"a short text", val_fraction=fraction).check_fits(13, data)
    with pytest.raises(ValueError, match="greater than or equal to"):
        DataConfig(val_fraction=1e-300)


def test_an_unwritable_cache_is_replaced_by_a_temporary_one(monkeypatch, caplog):
    """Bug: a container's user without a home could not train."""
    Path("blocked").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("blocked").absolute()))
    assert len(load(b"a text\n" * 9).ids) == 63
    assert caplog.text.count("cannot write the cache folder; using a temporary one") == 1
