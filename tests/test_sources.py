"""What TEXT may be: files in any encoding, compressed, in folders and archives, and tables."""

import bz2
import contextlib
import csv
import gzip
import importlib
import io
import json
import lzma
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import gpt as package
from gpt.config.data_config import DataConfig
from gpt.config.load import load_config
from gpt.errors import GPTError, TextError
from gpt.files import CHUNK_BYTES
from gpt.reading import entries
from gpt.reading.decoding import binary_format, encoding_of, has_utf8, likely_encoding
from gpt.reading.sources import open_source
from gpt.text.cache import cache_dir
from gpt.text.corpus import load_corpus
from tests.conftest import COMMAND
from tests.test_text import any_text, write

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def _zstd(content: bytes) -> bytes:
    return zstd.compress(content, options={zstd.CompressionParameter.checksum_flag: 1})


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": _zstd,
}
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def documents(source: str | tuple[str, ...], **data: Any) -> dict[str, str]:
    """The documents of a source, by their names, in their order."""
    opened = open_source(source, DataConfig(**data))
    return {each.name: b"".join(each.chunks()).decode() for each in opened.documents()}


def read(source: str, **data: Any) -> str:
    """The only document of a source."""
    (text,) = documents(source, **data).values()
    return text


def texts(content: bytes, name: str, column: str) -> list[str]:
    return [*documents(write(content, name), column=column).values()]


def refusal(source: str | tuple[str, ...], **data: Any) -> str:
    with pytest.raises(TextError) as caught:
        documents(source, **data)
    return str(caught.value)


def notices(source: str | tuple[str, ...], **data: Any) -> list[str]:
    opened = open_source(source, DataConfig(**data))
    for document in opened.documents():
        [*document.chunks()]
    return [*opened.notices()]


def make(*files: str, content: str = "text of {}") -> None:
    """Files, each with a text of its own."""
    for name in files:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.format(path.name))


def zipped(members: dict[str, bytes], name: str = "texts.zip") -> str:
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in members.items():
            archive.writestr(path, content)
    return name


def tarred(members: dict[str, bytes], suffix: str = "") -> str:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in members.items():
            header = tarfile.TarInfo(path)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    content = buffer.getvalue()
    return write(COMPRESS[suffix](content) if suffix else content, f"texts.tar{suffix}")


@contextlib.contextmanager
def in_chunks(size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "CHUNK_BYTES", size)
        yield


# --- one file ---


@given(text=any_text, size=st.integers(1, 11), suffix=st.sampled_from(["", *COMPRESS]))
def test_a_file_is_read_whole_however_its_bytes_are_cut(text, size, suffix):
    half = len(text) // 2  # two compressed streams, one after the other, are one file
    parts = [text[:half].encode(), text[half:].encode()]
    content = b"".join(map(COMPRESS[suffix], parts) if suffix else parts)
    with in_chunks(size):
        assert read(write(content, f"text.txt{suffix}")) == text.removeprefix("\ufeff")


def test_a_line_without_end_is_read_in_chunks():
    content = "日本".encode() * (CHUNK_BYTES // 2)
    source = open_source(write(content))
    chunks = [chunk for document in source.documents() for chunk in document.chunks()]
    assert b"".join(chunks) == content
    assert max(map(len, chunks)) <= CHUNK_BYTES + 3  # the rest of a character


def test_what_is_no_readable_file_is_told():
    assert "nowhere.txt: no such text; expected python-docs" in refusal("nowhere.txt")
    assert "no such text" in refusal("a" * 5000)
    os.mkfifo("pipe")
    for name in ("pipe", "/dev/null"):
        told = f"{name}: expected a file or folder, got a pipe or device; pipe it in"
        assert told in refusal(name)
    for content in (b"", "\ufeff".encode()):
        with pytest.raises(TextError, match=r"text\.txt: expected some text, got none"):
            load_corpus(open_source(write(content)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_or_folder_that_may_not_be_read_is_told():
    make("folder/secret.txt", "hidden/a.txt")
    Path("folder/secret.txt").chmod(0)
    Path("hidden").chmod(0)
    for name in ("folder/secret.txt", "folder", "hidden", "hidden/a.txt"):
        assert "cannot read the text: Permission denied" in refusal(name)


def test_what_is_no_name_of_a_text_is_told_in_short(gpt):
    """Bug: the text itself as `text=` came back in a message of 53,153 characters."""
    itself = r"(no such text|got none).*text itself, write it to a file"
    text = "does the lazy dog sleep? rain falls on [quiet] hills\n" * 1000
    for wrong in (text, ["first recipe", "second recipe"], text.replace(" ", ""), "a dog?"):
        with pytest.raises(TextError, match=itself) as told:
            package.train(text=wrong)
        assert len(str(told.value)) < 700
    assert "download it, for example by curl -LO" in refusal("https://example.org/a.txt?b=[c]")
    for name in ("a\0b", "a\ud800", text):
        with pytest.raises(GPTError, match="expected the folder of a run") as told:
            package.load(name)
        assert len(str(told.value)) < 300
    assert len(str(GPTError("a" * 10**6, 7))) < 1100


@pytest.mark.parametrize("name", ["日記\u3000一", "a\xa0b", "نوشته\u200cها", "c\u200dd", "e\xadf"])
def test_a_folder_of_any_name_is_trained_in(name, gpt):
    """Bug: no training was possible below a folder with U+3000 or ZWNJ in its name."""
    Path(name).mkdir()
    make(f"{name}/{name}.txt", content="the text of a folder\n" * 20)
    with contextlib.chdir(name):
        assert train(gpt, f"{name}.txt", "--set", "train.steps=2", "--run-dir", name)[0] == 0
        assert gpt("sample", name, "--length", "3")[0] == 0
        code, _, err = train(gpt, f"{name}.txt", "--run-dir", "a\x07b")
        assert (code, "expected a folder's name without control characters" in err) == (2, True)


def test_a_text_that_was_moved_is_named_on_resume(gpt):
    """Bug: of a text that was moved, only the kinds of TEXT were told."""
    make("a.txt", content="the text that is moved\n" * 20)
    assert train(gpt, "a.txt", "--set", "train.steps=2")[0] == 0
    Path("a.txt").rename("b.txt")
    code, _, err = gpt("train", "--resume", "a", "--set", "train.steps=3")
    assert code == 1
    assert "name a moved text: gpt train TEXT --resume RUN" in " ".join(err.split())
    assert gpt("train", "b.txt", "--resume", "--set", "train.steps=3")[0] == 0, "the newest run"


# --- encodings ---

ENCODINGS = (
    *("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-7"),
    *("cp1252", "latin-1", "koi8-r", "shift_jis", "euc_jp", "iso2022_jp", "gb18030", "cp037"),
)


@given(text=any_text, encoding=st.sampled_from(ENCODINGS), size=st.integers(1, 11))
def test_a_text_in_any_encoding_is_read_as_python_reads_it(text, encoding, size):
    content = text.lstrip("\ufeff").encode(encoding, "ignore")
    assume(not has_utf8([content]))  # very short texts can be valid in two encodings
    write(content)
    with in_chunks(size):
        assert read("text.txt", encoding=encoding) == content.decode(encoding)


@given(
    content=st.binary() | any_text.map(str.encode),
    encoding=st.sampled_from(["utf-8", "ascii", "cp1252", "shift_jis", "gb18030", "utf-16-le"]),
    size=st.integers(1, 11),
)
def test_the_first_wrong_byte_is_the_one_that_python_finds(content, encoding, size):
    """And if wrong bytes are replaced, each is replaced as Python does."""
    write(content)
    assume(binary_format(content, encoding) is None)
    assume(encoding == "utf-8" or not has_utf8([content]))
    encoding = encoding_of(content, encoding)  # a byte-order mark decides
    with in_chunks(size):
        try:
            oracle = content.decode(encoding)
        except UnicodeDecodeError as error:
            told = f"byte 0x{content[error.start]:02x} at offset {error.start} is not "
            assert told in refusal("text.txt", encoding=encoding)
            oracle = content.decode(encoding, "replace")
        assert read("text.txt", encoding=encoding, errors="replace") == oracle.removeprefix(
            "\ufeff"
        )


RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая "
GERMAN = "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen ist"
FRENCH = "L’été dernier, j’ai vu un élève très doué — où ça ? à l’école, naïf, déçu"
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "cp1252"),
        (GERMAN, "latin-1"),
        ("# Café\n\nDer Müller wäscht die Füße im Fluß. Où est la forêt? ", "latin-1"),
        ("Não há mal que sempre dure, nem bem que não se acabe. A ação é a razão. ", "cp1252"),
        ("Nel mezzo del cammin di nostra vita, ché la diritta via era smarrita. ", "cp1252"),
        ("El niño comió la piña; ¿dónde está el corazón? ", "cp1252"),
        (FRENCH, "cp1252"),
        (FRENCH, "mac_roman"),
        ("Zażółć gęślą jaźń. Litwo! Ojczyzno moja! ty jesteś jak zdrowie. ", "cp1250"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8_r"),
        (RUSSIAN, "cp866"),
        ("Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια. ", "cp1253"),
        ("Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. ", "cp1254"),
        ("Benim adım Kırmızı. Şimdi bir ölüyüm ben, bir ceset, bir kuyunun dibinde. ", "cp1254"),
        (JAPANESE, "cp932"),
        (JAPANESE, "euc_jp"),
        ("我们都是中国人，今天天气很好。学而时习之，不亦说乎？", "gb18030"),
        ("我們都是中國人，今天天氣很好。學而時習之，不亦說乎？", "big5"),
        ("모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.", "cp949"),
    ],
)
def test_the_likely_encoding_is_found(text, encoding):
    """Bug: Turkish in cp1254 was called cp1252, and two languages in one text were no text."""
    for content in ((text * n).encode(encoding, "ignore") for n in (1, 9, 60)):
        assert content.decode(likely_encoding(content) or "") == content.decode(encoding)
    told = refusal(write(content))
    likely = likely_encoding(content)
    expected = f"; it is probably {likely}; convert it to UTF-8, or add "
    assert f'{expected}settings=["data.encoding={likely}"] or ' in told


def test_a_few_bytes_that_are_not_utf8_are_counted_and_can_be_replaced():
    """Bug: for UTF-8 with one Latin-1 line, or cut inside a character, cp1252 was advised."""
    line = "“Café,” she said.\n".encode()
    name = write(line * 9 + b"caf\xe9\n" + line * 9)
    told = (
        f"byte 0xe9 at offset {9 * len(line) + 3} is not UTF-8, although most others are; "
        'convert it to UTF-8, or add settings=["data.errors=replace"]'
    )
    assert refusal(name) == f"text.txt: {told}"
    text = (line * 9).decode()
    assert read(name, errors="replace") == f"{text}caf\ufffd\n{text}"
    for cut in (line[1:], line * 9 + b"\xc3"):
        assert "is not UTF-8, although most others are" in refusal(write(cut))
    assert "data.encoding=cp1252" in refusal(write(b"A cafe, she said.\n" * 9 + b"caf\xe9"))
    late = b"A cafe, she said. " * 5003 + (RUSSIAN * 599).encode("cp1251")
    assert "cp1251" in refusal(write(late)), "bug: cp1252, for the beginning of a long line"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32"])
@pytest.mark.parametrize(
    "text", ["The people said so. ", "Все счастливые семьи. ", JAPANESE + "a\n"]
)
def test_wide_text_is_recognised_with_and_without_a_mark(text, encoding):
    """Bug: without a mark, a text that is half NUL characters was learnt, silently."""
    name = write((text * 9).encode(encoding))
    assert read(name) == text * 9
    assert notices(name) == [f"text.txt: read as {encoding.upper()}"]


def test_valid_utf8_is_read_without_the_libraries_that_judge_encodings():
    program = (
        "import sys\nfrom gpt.reading.sources import open_source\n"
        "print([b''.join(d.chunks()).decode() for d in open_source('text.txt').documents()])\n"
        "assert not {'charset_normalizer', 'ftfy'} & {*sys.modules}"
    )
    write("“Größe” не 日本".encode())
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("['“Größe” не 日本']\n", "")


def test_each_file_of_several_is_decoded_by_itself():
    """Bug: data.encoding=cp1252, which was advised for one of them, garbled the other files."""
    Path("f").mkdir()
    texts = {"f/a.txt": "Größe", "f/b.txt": "René", "f/c.txt": "naïve", "f/d.txt": "plain"}
    for name, encoding in zip(texts, ("utf8", "cp1252", "utf-16", "ascii"), strict=True):
        write(texts[name].encode(encoding), name)
    assert "f/b.txt: byte 0xe9 at offset 3 is not UTF-8; it is probably cp1252" in refusal("f")
    members = {name: Path(name).read_bytes() for name in texts}
    for source in ("f", "f/*.txt", tuple(texts), zipped(members), tarred(members, ".xz")):
        assert [*documents(source, encoding="cp1252").values()] == [*texts.values()]
    assert read("f/a.txt", encoding="cp1252") == "Größe"  # named alone


# --- what is not text ---


def test_a_binary_file_is_not_learnt_as_text(caplog):
    """Bug: nanoGPT's train.bin was learnt as NULs, a database after the advised errors=replace."""
    caplog.set_level("INFO", "gpt")
    f = io.BytesIO()
    np.save(f, np.arange(999.0))
    line = b"words and words\n"
    binary = {
        "ids.bin": np.array([1, 5, 31, 65] * 99, np.uint16).tobytes(),
        "gpt2.bin": np.minimum(np.random.default_rng(1).zipf(1.2, 9999), 50_256).astype(np.uint16),
        "notes.db": b"SQLite format 3\0" + line * 9 + "é\xda".encode("latin-1"),
        "x.npy": f.getvalue(),
        "x.pkl": pickle.dumps([{"text": "words"}] * 9),
        "x.arrow": b"ARROW1\0\0" + line * 9,
        "controls.txt": line * 999 + b"\x01\x02\x03" * 99,
        "late.txt": line * 9999 + b"\0" + line,
        "x.png": PNG,
    }
    Path("f").mkdir()
    make("f/a.txt")
    for name, content in binary.items():
        write(bytes(content), name)
        for data in ({}, {"errors": "replace"}, {"encoding": "latin-1"}):
            told = f"{name}: expected plain text, got binary data; convert it to plain text"
            assert told in refusal(name, **data)
        assert "data.vocabulary=bytes" in refusal(name)
        if name not in ("late.txt", "controls.txt"):  # their first 8 KiB are text
            shutil.copy(name, "f")
    assert [*documents("f")] == ["f/a.txt"]
    assert f"skipped {len(binary) - 2} binary data (" in caplog.text
    assert read(write(b"\x1b[1mbold\x1b[0m\f" + line * 99 + b"\x1a")).startswith("\x1b[1mbold")


def test_a_format_that_is_not_text_is_named_with_how_to_convert_it(caplog):
    """Bug: of an EPUB it was said that its name must end in .zip, and then its tags were learnt."""
    caplog.set_level("INFO", "gpt")
    epub = {"mimetype": b"application/epub+zip", "OEBPS/ch1.xhtml": b"<p>text</p>"}
    told = refusal(zipped(epub, "book.epub"))
    assert "book.epub: expected plain text, got DOCX, EPUB or another ZIP file; convert it" in told
    Path("f").mkdir()
    zipped(epub, "f/book.epub")
    zipped({"[Content_Types].xml": b"", "word/document.xml": b"<w:t>text</w:t>"}, "f/letter.docx")
    write(b"%PDF-1.4\ntext", "f/paper.pdf")
    write(b"GIF89a is how a GIF begins", "f/a.txt")
    assert [*documents("f")] == ["f/a.txt"]
    skips = "2 DOCX, EPUB or another ZIP file (f/book.epub, f/letter.docx), 1 PDF (f/paper.pdf)"
    assert skips in caplog.text
    assert "got PDF; convert it to plain text" in refusal("f/paper.pdf")


def test_a_pointer_of_git_lfs_is_not_a_text(caplog):
    """Bug: the pointer was learnt instead of the book that it stands for."""
    caplog.set_level("INFO", "gpt")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0a0a\nsize 1048576\n"
    make("f/notes.txt")
    told = refusal(write(pointer, "f/book.txt"))
    assert told == (
        "f/book.txt: expected plain text, got Git LFS pointer; fetch the text by git lfs pull"
    )
    assert [*documents("f")] == ["f/notes.txt"]
    assert "skipped 1 Git LFS pointer (f/book.txt)" in caplog.text


def test_any_file_is_read_as_bytes():
    """Bytes that are not UTF-8, CR LF and a byte-order mark keep their ids."""
    data = DataConfig(vocabulary="bytes")
    Path("f").mkdir()
    for content in (PNG * 9, bytes(range(256)) * 9, b"caf\xe9 " * 99, b"\xff\xd8\xff\0\r\n" * 99):
        for name in ("x.png", "f/y.bin"):
            corpus = load_corpus(open_source(write(content, name), data), data)
            assert corpus.ids.tobytes() == content
            assert len(corpus.train) + len(corpus.val) == len(content)


# --- compressed files and archives ---

some_members = st.dictionaries(
    st.text("abcAB12-_é", min_size=1, max_size=3).map(lambda name: f"{name}.txt")
    | st.text("abcAB12-_é", min_size=1, max_size=3).map(lambda name: f"{name}/{name}.txt"),
    any_text.filter(lambda text: text.strip("\ufeff") != "").map(str.encode),
    min_size=1,
    max_size=7,
)


@given(members=some_members, suffix=st.sampled_from(["", *COMPRESS]))
def test_a_folder_its_zip_and_its_tar_are_the_same_text(members, suffix):
    with zipfile.ZipFile(zipped(members)) as archive:
        by_path = sorted(archive.namelist(), key=lambda name: name.split("/"))
        oracle = [archive.read(name).decode().removeprefix("\ufeff") for name in by_path]
    assert list(documents("texts.zip").items()) == [
        (f"texts.zip!{name}", text) for name, text in zip(by_path, oracle, strict=True)
    ]
    in_order = {name: members[name] for name in by_path}  # a .tar is read as it is stored
    assert list(documents(tarred(in_order, suffix)).values()) == oracle


def damaged(content: bytes) -> dict[str, bytes]:
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
    return {"cut": content[:-2], "changed": changed, "none of it": b"plain text" * 101}


@pytest.mark.parametrize("suffix", sorted(COMPRESS))
def test_a_damaged_compressed_file_is_told(suffix):
    for content in damaged(COMPRESS[suffix](bytes(range(32, 127)) * 101)).values():
        name = write(content, f"text.txt{suffix}")
        assert f"{name}: is damaged or was cut short (" in refusal(name)


@pytest.mark.parametrize("suffix", ["", *COMPRESS])
def test_a_damaged_tar_is_told(suffix):
    """tarfile takes a wrong header for the end of an archive, and what follows was not read."""
    members = {name: name.encode() * 1009 for name in ("a.txt", "b.txt", "c.txt")}
    plain = Path(tarred(members)).read_bytes()
    wrong_header = plain.replace(b"b.txt\0", b"x.txt\0")
    for content in (wrong_header, plain[:3500], plain + b"garbage", plain * 2):
        name = write(COMPRESS[suffix](content) if suffix else content, f"texts.tar{suffix}")
        assert f"texts.tar{suffix}" in (told := refusal(name))
        assert "is damaged or was cut short (" in told


def test_a_damaged_or_encrypted_zip_is_told():
    content = Path(zipped({"a.txt": b"secret" * 101})).read_bytes()
    for part in (content[:-9], content[9:60], b"plain text" * 101):
        assert "x.zip: is damaged or was cut short (" in refusal(write(part, "x.zip"))
    with zipfile.ZipFile("stored.zip", "w") as archive:
        archive.writestr("a.txt", "secret")
    stored = Path("stored.zip").read_bytes()
    wrong = write(stored.replace(b"secret", b"public"), "x.zip")
    assert "x.zip!a.txt: is damaged or was cut short (Bad CRC-32" in refusal(wrong)
    flags = content.index(b"PK\1\2") + 8
    locked = write(content[:flags] + b"\1" + content[flags + 1 :], "locked.zip")
    assert "locked.zip!a.txt: is encrypted; decrypt the archive first" in refusal(locked)


def test_what_is_no_text_in_an_archive_is_skipped_and_told():
    members = {"a.txt": b"abc", "b.png": PNG, ".hidden/c.txt": b"c", "__MACOSX/._a.txt": b"m"}
    members |= {"d.txt": b"", "e.txt": "wide".encode("utf-16"), "j.gz": gzip.compress(b"abc")}
    inner = "archive, compressed file or Parquet in an archive"
    for name in (zipped(members), tarred(members, ".gz")):
        source = open_source(name)
        for _ in range(2):
            found = [document.name for document in source.documents()]
            assert found == [f"{name}!a.txt", f"{name}!e.txt"]
        assert source.notices() == [
            f"{name}: 2 documents; skipped 1 binary data ({name}!b.png), 1 empty ({name}!d.txt), "
            f"1 {inner} ({name}!j.gz)"
        ]
    tables = {"a.csv": b"text\nabc", "b.parquet": b"PAR1", "c.txt": b"c"}
    assert documents(zipped(tables), column="text") == {"texts.zip!a.csv:2": "abc"}
    told = refusal(zipped({"b.png": PNG}))
    assert (
        told == "texts.zip: expected some text, got none; skipped 1 binary data (texts.zip!b.png)"
    )


# --- tables ---

values = st.lists(any_text.filter(lambda text: text != ""), min_size=1, max_size=7)


@given(rows=st.lists(st.text('ab",;\n\r\t '), max_size=9), size=st.integers(1, 9))
def test_any_text_is_the_same_table_to_us_and_to_the_csv_module(rows, size):
    content = "text,b\n" + "\n".join(rows)
    write(content.encode(), "t.csv")
    try:
        oracle = [*csv.reader(io.StringIO(content, newline=""), strict=True)][1:]
        expected = [row[0] for row in oracle if row]
        assert all(len(row) in (0, 2) for row in oracle)
    except (csv.Error, AssertionError):
        refusal("t.csv", column="text")
        return
    with in_chunks(size):
        if expected:
            assert [*documents("t.csv", column="text").values()] == expected


def test_rows_of_tables_are_numbered_and_their_fields_found(gpt):
    """Bug: a .tsv was read with the quotation marks of a .csv, so that rows merged silently."""
    write(b'text\n\na\r\n\r\n""\nb\n\n', "t.csv")
    assert documents("t.csv", column="text") == {"t.csv:3": "a", "t.csv:5": "", "t.csv:6": "b"}
    rows = ['"So it begins.', "A line.", 'The screen is 20"', '"Quoted."', 'He said ""no"".']
    content = "id\ttext\n" + "".join(f"{i}\t{row}\n" for i, row in enumerate(rows))
    assert texts(content.encode(), "t.tsv", "text") == rows
    for content in ("id;text\n1;a, b\n", "id\ttext\n1\ta, b\n", '"id"|"text"\n1|"a, b"\n'):
        assert texts(content.encode(), "t.csv", "text") == ["a, b"]
    # the csv module reads 131,072 characters unless the command line raises its limit
    write(b"text\n" + b"a book " * 30_000, "t.csv")
    assert gpt("data", "t.csv", "--set", "data.column=text")[0] == 0


BAD = {  # a bad record in a table, with its number, and the message about it
    "t.csv:3": (b"id,text\n1,a\n2\n3,b\n", "expected 2 columns, as in the first row, got fewer"),
    "v.csv:3": (b'text,id\na,1\n"x" y,2\nb,3', "expected CSV, got ',' expected after '\"'"),
    "y.csv:3": (b'text\n"a\nb', "expected CSV, got unexpected end of data"),
    "t.tsv:3": (b"id\ttext\n1\ta\n\tx\ty", "expected 2 columns, as in the first row, got more"),
    "t.jsonl:2": (
        b'{"text": "a"}\n{"id": 2, "tags": ["x"]}',
        "expected a text at text (data.column can name another column)",
    ),
    "u.jsonl:2": (b'{"text": "a"}\n{"text": \n{"text": "b"}', "expected JSON, got Expecting value"),
    "w.jsonl:2": (b'{"text": "a"}\n{"text": "\\ud83d"}', "expected Unicode text"),
    "x.jsonl:2": (b"\n" + b"[" * 10**5, "expected JSON, got "),
    "t.json:2": (b'[{"text": "a"}, {"text": {}}]', "expected a text at text (data.column "),
    "u.json:1": (b'[{"text": "a"}, {"text": "b"', "expected JSON, got Expecting ','"),
    "w.json:1": (b'[{"text": "a"}] x', "expected JSON, got Extra data"),
}


@pytest.mark.parametrize("place", BAD)
def test_a_bad_record_is_refused_with_its_number(place):
    """Bug: a row with too many fields was cut silently; a lone surrogate was no such column."""
    content, told = BAD[place]
    refused = refusal(write(content, place.partition(":")[0]), column="text")
    assert refused.startswith(f"{place}: bad record: {told}")
    assert refused.endswith("; correct or remove it")


def test_what_is_wrong_with_a_table_is_told():
    told = refusal(write(b'{"text": "\xff"}', "t.jsonl"), column="text")
    assert ": byte 0xff at offset 10 is not UTF-8" in told
    told = refusal(write(b"text\n", "t.csv"), column="text")
    assert "t.csv: expected some text, got none" in told
    told = refusal(write(b"text", "t.txt"), column="text")
    assert "t.txt: data.column is for .jsonl, .json, .csv, .tsv and .parqu" in told
    assert read(write(b"id,text\n1,a", "t.csv")) == "id,text\n1,a"  # without data.column


def test_a_column_that_occurs_twice_is_named():
    """Bug: the message was that records lack the column."""
    name = write(b"text,id,text\na,1,b\n", "t.csv")
    assert refusal(name, column="id,text") == "t.csv: the column text occurs twice; rename one"
    assert documents(name, column="id") == {"t.csv:2": "1"}


RICH = ["See ", {"type": "bold", "text": "this"}, " and that."]
CHAT = {"messages": [{"text": "Hello."}, {"text": RICH}, {"type": "photo"}, {"text": "Fine."}]}
NODES = {"a1": {"message": None}, "b2": {"message": {"content": {"parts": ["Hi", "there"]}}}}
PARTS = [{"type": "text", "text": "Look!"}, {"type": "image_url", "image_url": {"url": "x"}}]
COLUMNS: list[tuple[str, Any, str | None]] = [
    ("text", {"text": 1.50}, "1.5"),
    ("0", {"0": "a"}, "a"),
    ("author,text", {"text": "a", "author": "b"}, "b\na"),
    ("author,text", {"author,text": "exact", "text": "a", "author": "b"}, "exact"),
    ("post.text", {"post.text": "exact", "post": {"text": "a"}}, "exact"),
    ("id,post.text.plain", {"id": 7, "post": {"text": {"plain": "a"}}}, "7\na"),
    ("post.text", {"post": None}, None),
    ("text", {"text": ["a", None, "b"]}, "a\nb"),
    ("text", {"text": []}, None),
    ("messages.content", {"messages": [{"content": "a"}, {"content": None}]}, "a"),
    ("messages.content", {"messages": [{"content": PARTS}, {"content": "b"}]}, "Look!\nb"),
    ("m.c.text", {"m": [{"c": [{"text": "a"}, {"text": "b"}]}, {"c": [{"text": "c"}]}]}, "a\nb\nc"),
    ("messages.text", CHAT, "Hello.\nSee this and that.\nFine."),
    ("mapping.message.content.parts", {"mapping": NODES}, "Hi\nthere"),
    ("cells.source", {"cells": [{"source": ["# A\n", "b"]}, {"source": ["c"]}]}, "# A\nb\nc"),
    ("text", "a line", "a line"),
]


@pytest.mark.parametrize(("column", "record", "text"), COLUMNS)
def test_columns_are_paths_through_objects_and_lists(column, record, text):
    """Bug: chat exports, notebooks and arrays of strings were bad records."""
    for name, content in (("t.jsonl", record), ("t.json", [record])):
        write(json.dumps(content).encode(), name)
        if text is None:
            assert refusal(name, column=column) == f"{name}: expected some text, got none"
        else:
            assert documents(name, column=column) == {f"{name}:1": text}


@given(contents=values, size=st.integers(1, 64), ascii_only=st.booleans())
def test_json_is_read_as_the_json_module_reads_it(contents, size, ascii_only):
    records = [{"id": i, "text": text, "more": [text, -1.5]} for i, text in enumerate(contents)]
    lines = [json.dumps(record, ensure_ascii=ascii_only) for record in records]
    write("\n\n".join(lines).encode(), "t.jsonl")
    write(gzip.compress("\n".join(lines).encode()), "u.jsonl.gz")
    write("\n".join(lines).encode(), "u.json")
    write(json.dumps(records, ensure_ascii=ascii_only, indent=2).encode(), "t.json")
    with in_chunks(size):
        for name in ("t.jsonl", "u.jsonl.gz", "u.json", "t.json"):
            assert [*documents(name, column="text").values()] == contents
    assert [*documents("t.jsonl", column="text")] == [
        f"t.jsonl:{2 * i + 1}" for i in range(len(contents))
    ]
    assert [*documents("t.json", column="text")] == [f"t.json:{i + 1}" for i in range(len(records))]


def test_a_column_of_parquet_is_read():
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"id": range(4), "text": ["abc", None, "日本\r\n", "é" * 3001]})
    parquet.write_table(table, "t.parquet", row_group_size=3)
    assert documents("t.parquet", column="text") == {
        "t.parquet:1": "abc",
        "t.parquet:3": "日本\r\n",
        "t.parquet:4": "é" * 3001,
    }
    assert refusal("t.parquet") == (
        't.parquet: add settings=["data.column=NAME"]; its columns are id, text'
    )
    told = refusal("t.parquet", column="body")
    assert told.startswith("t.parquet:1: bad record: expected a text at body (data.column can name")
    assert [*documents("t.parquet", column="id").values()] == ["0", "1", "2", "3"]
    cut = write(Path("t.parquet").read_bytes()[:-9], "t.parquet")
    assert "t.parquet: is damaged or was cut short" in refusal(cut, column="text")
    rows = {
        "chat": [[{"role": "u", "content": "a"}, {"role": "v", "content": "b"}], None, []],
        "post": [{"text": "x", "id": 1}, {"text": None, "id": 2}, {"text": "y", "id": 3}],
    }
    parquet.write_table(arrow.table(rows), "t.parquet")
    assert [*documents("t.parquet", column="chat.content").values()] == ["a\nb"]
    assert [*documents("t.parquet", column="post.id,post.text").values()] == ["1\nx", "2", "3\ny"]
    assert [*documents("t.parquet", column="post").values()] == ["x", "y"]
    told = "t.parquet:1: bad record: expected a text at post.body (data.column "
    assert refusal("t.parquet", column="post.body").startswith(told)


# --- folders, globs, several ---


def test_a_folder_is_read_in_a_stable_order_without_what_is_hidden(caplog):
    caplog.set_level("INFO", "gpt")
    make("f/b.txt", "f/a/z.md", "f/a.txt", "f/.git/x.txt", "f/.hidden.txt", "f/B.txt", "f/a/ä.txt")
    write(gzip.compress(b"text of d"), "f/d.gz")
    zipped({"y.txt": b"text of y", "x.txt": b"text of x"}, "f/c.zip")
    # a run is no text: `gpt train .` would learn its records, and each resume find another text
    make("f/runs/b/config.yaml", "f/runs/b/checkpoints/x.json", "f/runs/b/provenance.jsonl")
    make("f/runs/c/config.yaml", "f/runs/c/provenance.jsonl")  # Bug: without a checkpoint, it was
    found = documents("f")
    assert [*found] == [
        *("f/B.txt", "f/a/z.md", "f/a/ä.txt", "f/a.txt", "f/b.txt"),
        *("f/c.zip!x.txt", "f/c.zip!y.txt", "f/d.gz"),
    ]
    assert found["f/a/z.md"] == "text of z.md"
    source = open_source("f")
    assert [str(path) for path in source.files] == [
        *("f/B.txt", "f/a/z.md", "f/a/ä.txt", "f/a.txt", "f/b.txt", "f/c.zip", "f/d.gz")
    ]
    assert "skipped 2 run (f/runs/b, f/runs/c)" in caplog.text


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"include": ("*.md",)}, ["a.md", "src/a.md", "src/x/a.md"]),
        ({"include": ("src/*.md",)}, ["src/a.md"]),
        ({"include": ("src/**/*.md",)}, ["src/a.md", "src/x/a.md"]),
        ({"include": ("a.m*", "[b]*")}, ["a.md", "src/a.md", "src/x/a.md", "src/x/b.txt"]),
        ({"include": ("!*.md",)}, ["a.txt", "src/x/b.txt"]),
        ({"include": ("*.md", "!src/*.md")}, ["a.md", "src/x/a.md"]),
        ({"exclude": ("x",)}, ["a.md", "a.txt", "src/a.md"]),
        ({"exclude": ("/a.*",)}, ["src/a.md", "src/x/a.md", "src/x/b.txt"]),
        ({"include": ("*.md",), "exclude": ("src/x",)}, ["a.md", "src/a.md"]),
    ],
)
def test_globs_say_which_files_are_read(data, expected):
    """Bug: `data.include=["!*.c"]` matched nothing, and nothing could be excluded."""
    make("f/a.md", "f/a.txt", "f/src/a.md", "f/src/x/a.md", "f/src/x/b.txt")
    for source in ("f", "f/**"):
        assert [*documents(source, **data)] == [f"f/{name}" for name in expected]


def test_globs_choose_files_in_folders_and_not_in_archives():
    make("f/a.md", "f/b.txt")
    zipped({"c.md": b"c", "d.txt": b"d"}, "f/e.zip")
    for source, data in (("f", {"exclude": ("*.md",)}), ("f/*", {"include": ("!*.md",)})):
        assert [*documents(source, **data)] == ["f/b.txt", "f/e.zip!c.md", "f/e.zip!d.txt"]
    assert "choose files in folders, not in archives; un" in refusal("f/e.zip", include=("*.md",))
    assert "chosen by data.include and data.exclude, got none" in refusal("f", include=("*.c",))
    assert "data.include or data.exclude: Invalid git pattern: '!'" in refusal("f", exclude=("!",))


def test_what_is_read_and_what_is_skipped_is_told_in_one_line(caplog):
    caplog.set_level("INFO", "gpt")
    make("f/a.txt", "f/b.txt", "f/c.parquet", "f/d.csv")
    write(PNG, "f/x.png")
    write(b"", "f/e.txt")
    open_source("f")
    assert caplog.messages == [
        "f: 3 files, 39 bytes; skipped 1 Parquet without data.column (f/c.parquet), 1 empty "
        "(f/e.txt), 1 binary data (f/x.png)"
    ]
    open_source("f", DataConfig(column="text", include=("*.csv", "*.txt")))
    assert "skipped 3 not .jsonl, .json, .csv, .tsv and .parquet (f/a.txt" in caplog.text


def test_a_folder_without_text_says_what_is_in_it():
    Path("f").mkdir()
    for name in "abcd":
        write(PNG, f"f/{name}.png")
    os.mkfifo("f/pipe")
    assert refusal("f") == (
        "f: expected text files, got none; "
        "skipped 4 binary data (f/a.png, f/b.png, f/c.png and 1 more), 1 pipe or device (f/pipe); "
        "name a text file, or a folder with text files"
    )


def test_a_loop_of_links_ends_and_each_file_is_read_once(caplog):
    """Bug: a glob with `**` followed links, so that it read a file 41 times, or never ended."""
    caplog.set_level("INFO", "gpt")
    make("f/a/b.txt", "f/c.txt", "real/g.txt")
    Path("f/a/loop").symlink_to("..")
    Path("f/a/loop2").symlink_to("../a")
    Path("f/d.txt").symlink_to("c.txt")
    Path("f/e").symlink_to("a")
    Path("f/h").symlink_to("../real")
    Path("f/self").symlink_to("self")
    Path("f/nowhere.txt").symlink_to("gone.txt")
    for source in ("f", "f/**", "f/**/*.txt", "**/*.txt"):
        assert sorted(documents(source))[:3] == ["f/a/b.txt", "f/c.txt", "f/h/g.txt"]
    assert [*documents("f/*")] == ["f/a/b.txt", "f/c.txt", "f/h/g.txt"]
    assert [*documents("f/h")] == ["f/h/g.txt"]  # a link to a folder, named
    assert "skipped 4 already found by another path (f/a/loop, f/a/loop2, f/d.txt" in caplog.text
    assert "2 link to nowhere (f/nowhere.txt, f/self)" in caplog.text


def test_a_file_whose_name_is_no_utf8_is_read():
    Path("f").mkdir()
    name = os.fsdecode(b"f/caf\xe9.txt")
    try:
        write(b"abc", name)
    except OSError:
        pytest.skip("a file's name must be UTF-8 here")
    assert documents("f") == {"f/caf\\udce9.txt": "abc"}
    assert len(load_corpus(open_source("f")).ids) == 3


def test_many_small_files_are_one_text():
    make(*(f"f/{i % 7}/{i:04}.txt" for i in range(211)))
    corpus = load_corpus(open_source("f"))
    text = corpus.vocabulary.decode(corpus.ids)
    names = sorted(f"{i % 7}/{i:04}.txt" for i in range(211))
    assert text.split("\n\n") == [f"text of {name[2:]}" for name in names]


def test_a_glob_is_read_as_a_folder_is():
    make("t/a.txt", "t/b.md", "t/f/c.txt", "t/[x].txt", "t/f/.d.txt")
    write(PNG, "t/d.txt")
    assert [*documents("t/*.txt")] == ["t/[x].txt", "t/a.txt"]
    assert [*documents("t/**/*.txt")] == ["t/[x].txt", "t/a.txt", "t/f/c.txt"]
    assert [*documents("t/**/[cx].txt")] == [*documents("t/?")] == ["t/f/c.txt"]
    assert [*documents(str(Path("t/[ab]*").absolute()))] == [
        str(Path(name).absolute()) for name in ("t/a.txt", "t/b.md")
    ]
    assert [*documents("t/[x].txt")] == ["t/[x].txt"]  # it is there, so it is no glob
    for name in ("t/*.png", "gone/*.txt", "t/**/*.png"):
        assert f"{name}: expected text files, got none" in refusal(name)


# --- named ---


def test_python_source_is_the_library_that_this_python_runs():
    modules = documents("python-source")
    for module in (csv, importlib, tarfile):
        path = Path(str(module.__file__))
        name = f"python-source!{path.relative_to(Path(os.__file__).parent).as_posix()}"
        assert modules[name] == path.read_text("utf-8")
    assert [*modules] == sorted(modules, key=lambda name: name.split("/"))
    assert 8e6 < sum(map(len, modules.values())) < 16e6
    assert not [name for name in modules if "test" in name.split("/") or "site-packages" in name]


# --- the command ---

TINY = (
    *("--set", "model.T=7", "--set", "model.C=16", "--set", "model.n_layer=1"),
    *("--set", "train.sample_length=0", "--set", "sample.length=3", "--device", "cpu"),
)


def train(gpt: Any, *arguments: str) -> Any:
    return gpt("train", *arguments, *TINY)


def test_several_texts_are_trained_on_and_the_run_is_named_after_the_first(gpt):
    make("b.txt", "f/c.txt", content="long enough: {}" + "." * 151)
    corpus = load_corpus(open_source(("b.txt", "f")))
    text = f"long enough: b.txt{'.' * 151}\n\nlong enough: c.txt{'.' * 151}"
    assert corpus.vocabulary.decode(corpus.ids) == text
    assert "gone.txt: no such text" in refusal(("b.txt", "gone.txt"))
    code, _, err = train(gpt, "b.txt", "f", "--set", "train.steps=2")
    assert (code, "b.txt and 1 more" in err) == (0, True), err
    assert load_config(Path("runs/b/config.yaml")).data.source == ("b.txt", "f")
    assert gpt("train", "--resume", "b", "--set", "train.steps=3")[0] == 0
    (run,) = json.loads(gpt("runs", "--json")[1])["runs"]
    assert (run["text"], run["step"]) == ("b.txt and 1 more", 3)


def piped(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_standard_input_is_stored_in_each_run(gpt, monkeypatch):
    text = b"what came through a pipe\n" * 11
    for name in ("stdin", "stdin-2"):
        piped(monkeypatch, text)
        assert train(gpt, "-", "--set", "train.steps=2")[0] == 0
        assert load_config(Path("runs") / name / "config.yaml").data.source == "-"
        assert Path("runs", name, "standard_input.txt").read_bytes() == text
    shutil.rmtree(cache_dir())
    piped(monkeypatch, b"")
    Path("runs/stdin").rename("runs/moved")
    assert gpt("train", "--resume", "moved", "--set", "train.steps=3")[0] == 0
    assert gpt("attend", "moved")[0] == 0
    assert gpt("runs", "--yes", "--delete", "moved")[0] == 0
    assert not Path("runs/moved").exists()


def test_a_text_that_is_gone_is_piped_in_again(gpt, monkeypatch):
    text = b"what came through a pipe\n" * 11
    piped(monkeypatch, text)
    assert train(gpt, "-", "--set", "train.steps=2")[0] == 0
    Path("runs/stdin/standard_input.txt").unlink()
    more = ("--resume", "stdin", "--set", "train.steps=3")
    for content, expected in ((b"", 1), (b"another text " * 11, 2), (text, 0)):
        piped(monkeypatch, content)
        code, _, err = gpt("train", "-", *more)
        assert code == expected, err
    assert Path("runs/stdin/standard_input.txt").read_bytes() == text


def test_binary_data_on_standard_input_is_named_as_such(gpt, monkeypatch):
    """Bug: the message named a file in the cache."""
    piped(monkeypatch, PNG)
    code, _, err = train(gpt, "-")
    assert (code, "gpt: -: expected plain text, got binary data" in err) == (1, True)


def test_standard_input_that_nobody_writes_to_is_refused(gpt, start, monkeypatch):
    piped(monkeypatch, b"")
    code, _, err = train(gpt, "-")
    assert (code, "-: expected a text on standard input, got nothing; pipe" in err) == (1, True)
    command = ("sh", "-c", 'exec "$0" "$@" <&-', *COMMAND, "train", "-")
    assert "got nothing; pipe one in" in start(*command, stderr=subprocess.PIPE).communicate()[1]
    terminal, end = os.openpty()
    process = start(*COMMAND, "train", "-", stdin=end, stderr=subprocess.PIPE)
    assert "got a terminal; pipe one in, such as: gpt train - < my.txt" in process.communicate()[1]
    assert process.returncode == 1
    os.close(terminal)
    os.close(end)
    assert not Path("runs").exists()
