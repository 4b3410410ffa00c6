"""Recognise formats that are not plain text, and advise how to convert them."""

import re
import shlex
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from gpt.text.utf8 import is_utf8_start

ZIP = b"PK\x03\x04"
PANDOC = "pandoc -t plain --wrap=none {file} -o {text}"
OFFICE = "soffice --headless --convert-to txt:Text {file}"
SPREADSHEET = "save the sheet as .csv, and read one column by --set data.column=COLUMN"


@dataclass(frozen=True)
class Format:
    """A format that is not plain text.

    Attributes:
        name: its name in messages.
        how: how to convert it to text: a command with {file}, or a sentence; "" if it has no text.
    """

    name: str
    how: str = ""

    def advice(self, name: str) -> str:
        """Return advice on how to read the file `name`."""
        if not self.how:
            return "its bytes are read by --set data.vocabulary=bytes"
        text = f"{PurePath(name).stem}.txt"
        how = self.how.format(file=shlex.quote(name), text=shlex.quote(text))
        return f"convert it to text: {how}" if "{file}" in self.how else how

    @property
    def reason(self) -> str:
        """Return why such a file is skipped in a folder."""
        if not self.how:
            return "binary"
        tool, _, rest = self.how.partition(" ")
        return f"{self.name} that {tool} can convert" if "{file}" in rest else self.name


EPUB, DOCX, ODT = Format("EPUB", PANDOC), Format("DOCX", PANDOC), Format("ODT", PANDOC)
XLSX, ODS = Format("XLSX", SPREADSHEET), Format("ODS", SPREADSHEET)
IN_ZIP = {  # by bytes of a .zip that the first kilobytes or the names of members contain
    b"application/epub+zip": EPUB,
    b"META-INF/container.xml": EPUB,
    b"OEBPS/": EPUB,
    b"opendocument.text": ODT,
    b"opendocument.spreadsheet": ODS,
    b"opendocument.presentation": Format("ODP", OFFICE.replace("txt:Text", "pdf")),
    b"word/document": DOCX,
    b"xl/workbook": XLSX,
    b"ppt/presentation": Format("PPTX", PANDOC),
    b"Index/Document.iwa": Format("Pages", "export it as text from Pages"),
}
BY_SUFFIX = {".epub": EPUB, ".docx": DOCX, ".odt": ODT, ".xlsx": XLSX, ".ods": ODS}
BINARY_MAGIC: dict[tuple[int, bytes], Format] = {  # by offset and bytes
    (0, b"%PDF-"): Format("PDF", "pdftotext {file} {text}"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"): Format("Word or Excel 97 (OLE)", OFFICE),
    (60, b"BOOKMOBI"): Format("MOBI", "ebook-convert {file} {text}"),
    (0, b"ITOLITLS"): Format("LIT", "ebook-convert {file} {text}"),
    (0, b"ITSF"): Format("CHM", "ebook-convert {file} {text}"),
    (0, b"AT&TFORM"): Format("DjVu", "djvutxt {file} {text}"),
    (0, b"%!PS"): Format("PostScript", "ps2ascii {file} {text}"),
    (0, b"SQLite format 3\0"): Format("SQLite", "export a table as .csv: sqlite3 -header -csv"),
    (0, b"7z\xbc\xaf\x27\x1c"): Format("7z archive", "7z x {file}"),
    (0, b"Rar!\x1a\x07"): Format("RAR archive", "unrar x {file}"),
    (0, b"\x1f\x9d"): Format("compress (.Z)", "uncompress -c {file} > {text}"),
    (0, b"\x04\x22\x4d\x18"): Format("LZ4", "lz4 -d {file} {text}"),
    (0, b"LZIP"): Format("lzip", "lzip -dk {file}"),
    (0, b"bplist00"): Format("binary property list", "plutil -convert xml1 {file} -o {text}"),
    (0, b"\x89PNG\r\n"): Format("PNG image"),
    (0, b"\xff\xd8\xff"): Format("JPEG image"),
    (0, b"GIF8"): Format("GIF image"),
    (8, b"WEBP"): Format("WebP image"),
    (0, b"II*\0"): Format("TIFF image"),
    (0, b"MM\0*"): Format("TIFF image"),
    (4, b"ftyp"): Format("MP4 video or audio"),
    (8, b"WAVE"): Format("WAV audio"),
    (0, b"ID3"): Format("MP3 audio"),
    (0, b"OggS"): Format("Ogg audio"),
    (0, b"fLaC"): Format("FLAC audio"),
    (0, b"\x1aE\xdf\xa3"): Format("Matroska video"),
    (0, b"\x7fELF"): Format("ELF program"),
    (0, b"\x93NUMPY"): Format("NumPy array"),
    (0, b"GGUF"): Format("GGUF model"),
    (0, b"\x89HDF\r\n"): Format("HDF5 data"),
    (0, b"wOF2"): Format("font"),
}
_LEARNT_BESIDES = {  # what a model learns besides the text, by kind of markup
    "table": "its delimiters and all columns are learnt; to learn one: --set data.column=COLUMN",
    "subtitles": "its numbers and times are learnt; to leave them out: "
    r"grep -vE '^[0-9]+\s*$|-->|^WEBVTT' FILE > text.txt",
    "HTML": "its tags are learnt; for the text alone: pandoc -t plain --wrap=none FILE -o text.txt",
    "XML": "its tags are learnt; for the text alone: xmllint --xpath 'string(/)' FILE > text.txt",
    "RTF": "its markup is learnt; for the text alone: pandoc -t plain --wrap=none FILE -o text.txt",
    "JSON": "its keys, quotes and escapes are learnt; to learn the texts of one key: "
    "--set data.column=KEY, such as 'messages[].content'",
    "mail": "its headers and encoded parts are learnt; export the text alone",
}
_SUFFIXES = {  # by kind of markup
    "table": (".csv", ".tsv", ".jsonl", ".ndjson"),
    "subtitles": (".srt", ".vtt"),
    "HTML": (".html", ".htm", ".xhtml"),
    "XML": (".xml", ".fb2", ".svg", ".enex"),
    "RTF": (".rtf",),
    "JSON": (".json", ".ipynb"),
    "mail": (".eml", ".mbox"),
}
_BY_SUFFIX = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes}
_BY_CONTENT = {
    "RTF": rb"\{\\rtf\d",
    "HTML": rb"(?i)(<\?xml[^>]*>\s*)?<(!doctype html|html)\b",
    "XML": rb"<\?xml\b",
    "subtitles": rb"WEBVTT|\d+\r?\n\d\d:\d\d:\d\d,\d+ -->",
    "JSON": rb'\{\s*"[^"\n]*"\s*:|\[\s*\{\s*"',
    "mail": rb"From \S+@|Return-Path: <|Received: from ",
}


def binary_format(head: bytes, name: str, members: Iterable[str] = ()) -> Format | None:
    """Return the format of a file that is not plain text; None if no known format matches.

    Args:
        head: the first kilobytes of the file.
        name: its name; the suffix decides for a zip file that `head` does not identify.
        members: the names of the members of a zip file.
    """
    if head.startswith(ZIP):
        parts = head + "\n".join(members).encode(errors="replace")
        found = next((format for part, format in IN_ZIP.items() if part in parts), None)
        return found or BY_SUFFIX.get(PurePath(name).suffix.lower())
    found = next(
        (each for (at, magic), each in BINARY_MAGIC.items() if head.startswith(magic, at)), None
    )
    may_be_text = b"\0" not in head and not head.startswith((b"%PDF-1.", b"%!PS-"))
    return (
        None if may_be_text and is_utf8_start(head) else found
    )  # a text may begin like one of these


def markup_notice(head: bytes, suffix: str) -> str:
    """Return a notice about the markup in a file of text; "" if it has none."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    by_content = (name for name, each in _BY_CONTENT.items() if re.match(each, start))
    found = _BY_SUFFIX.get(suffix) or next(by_content, None)
    return f"{found} read as plain text: {_LEARNT_BESIDES[found]}" if found else ""


def is_tar(head: bytes) -> bool:
    """Return whether `head` starts with a .tar header that has the right checksum."""
    try:
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True
