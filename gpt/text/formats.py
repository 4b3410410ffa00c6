"""Recognise formats that are not plain text."""

import tarfile
from collections.abc import Iterable
from pathlib import PurePath

from gpt.text.utf8 import is_utf8_start

ZIP = b"PK\x03\x04"
CONVERT = (
    "convert it to plain text, for example by pandoc, pdftotext or LibreOffice, or read its bytes "
    "by --set data.vocabulary=bytes"
)
IN_ZIP = {  # by bytes of a .zip that the first kilobytes or the names of members contain
    b"application/epub+zip": "EPUB",
    b"META-INF/container.xml": "EPUB",
    b"OEBPS/": "EPUB",
    b"opendocument.text": "ODT",
    b"opendocument.spreadsheet": "ODS",
    b"opendocument.presentation": "ODP",
    b"word/document": "DOCX",
    b"xl/workbook": "XLSX",
    b"ppt/presentation": "PPTX",
}
ZIP_SUFFIXES = (".epub", ".docx", ".odt", ".xlsx", ".ods")
BINARY_MAGIC = (  # offset, bytes and name
    (0, b"%PDF-", "PDF"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Word or Excel 97"),
    (60, b"BOOKMOBI", "MOBI"),
    (0, b"%!PS", "PostScript"),
    (0, b"SQLite format 3\0", "SQLite"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z archive"),
    (0, b"Rar!\x1a\x07", "RAR archive"),
    (0, b"\x89PNG\r\n", "PNG image"),
    (0, b"\xff\xd8\xff", "JPEG image"),
    (0, b"GIF8", "GIF image"),
    (8, b"WEBP", "WebP image"),
    (0, b"II*\0", "TIFF image"),
    (0, b"MM\0*", "TIFF image"),
    (4, b"ftyp", "MP4 video or audio"),
    (8, b"WAVE", "WAV audio"),
    (0, b"ID3", "MP3 audio"),
    (0, b"OggS", "Ogg audio"),
    (0, b"fLaC", "FLAC audio"),
    (0, b"\x1aE\xdf\xa3", "Matroska video"),
    (0, b"\x7fELF", "ELF program"),
    (0, b"\x93NUMPY", "NumPy array"),
    (0, b"GGUF", "GGUF model"),
    (0, b"\x89HDF\r\n", "HDF5 data"),
)


def binary_format(head: bytes, name: str, members: Iterable[str] = ()) -> str | None:
    """Return the name of a file's format if it is not plain text; None if no known one matches.

    Args:
        head: the first kilobytes of the file.
        name: its name; the suffix decides for a zip file that `head` does not identify.
        members: the names of the members of a zip file.
    """
    if head.startswith(ZIP):
        parts = head + "\n".join(members).encode(errors="replace")
        suffix = PurePath(name).suffix.lower()
        by_suffix = suffix[1:].upper() if suffix in ZIP_SUFFIXES else None
        return next((format for part, format in IN_ZIP.items() if part in parts), by_suffix)
    if b"\0" not in head and not head.startswith((b"%PDF-1.", b"%!PS-")) and is_utf8_start(head):
        return None  # a text may begin like one of these
    return next((name for at, magic, name in BINARY_MAGIC if head.startswith(magic, at)), None)


def is_tar(head: bytes) -> bool:
    """Return whether `head` starts with a .tar header that has the right checksum."""
    try:
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True
