"""Recognise formats that are not plain text."""

from pathlib import PurePath

from gpt.text.decoding import ascii_or_utf8

ZIP = b"PK\x03\x04"
ZIP_SUFFIXES = (".epub", ".docx", ".odt", ".xlsx", ".ods", ".pptx", ".odp")
CONVERT = (
    "convert it to plain text, for example by pandoc, pdftotext or LibreOffice, or read its bytes "
    "by --set data.vocabulary=bytes"
)
RENAME = "add the suffix to its name"
BINARY_MAGIC = (  # (offset, bytes at that offset, name of the format)
    (0, b"%PDF-", "PDF"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Word or Excel 97"),
    (60, b"BOOKMOBI", "MOBI"),
    (0, b"%!PS", "PostScript"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z archive"),
    (0, b"Rar!\x1a\x07", "RAR archive"),
    (0, ZIP, "ZIP archive without the suffix .zip"),
    (257, b"ustar", "tar archive without the suffix .tar"),
    (0, b"\x1f\x8b\x08", "compressed file without the suffix .gz"),
    (0, b"\xfd7zXZ\0", "compressed file without the suffix .xz"),
    (0, b"\x28\xb5\x2f\xfd", "compressed file without the suffix .zst"),
    (0, b"\x89PNG\r\n", "PNG image"),
    (0, b"\xff\xd8\xff", "JPEG image"),
)


def advice(found: str) -> str:
    """Return what to do with a file, given its format from `binary_format`."""
    return RENAME if found.startswith(("tar", "compressed")) else CONVERT


def binary_format(head: bytes, name: str) -> str | None:
    """Return the format of the file `name` that begins with `head`; None if it is unknown."""
    suffix = PurePath(name).suffix.lower()
    if head.startswith(ZIP) and suffix in ZIP_SUFFIXES:
        return suffix[1:].upper()
    if b"\0" not in head and not head.startswith((b"%PDF-1.", b"%!PS-")) and ascii_or_utf8([head]):
        return None  # text can contain the bytes in BINARY_MAGIC, for example `ustar`
    return next((name for at, magic, name in BINARY_MAGIC if head.startswith(magic, at)), None)
