"""Recognise files that are not plain text."""

from pathlib import PurePath

from gpt.text.decoding import encoding_of

ZIP = b"PK\x03\x04"
DOCUMENTS = {  # name of the first file in a ZIP archive: the format of the archive
    b"mimetype": "EPUB or OpenDocument",
    b"[Content_Types].xml": "document of Word, Excel or PowerPoint",
}
ZIP_HEADER_BYTES = 30  # size of the header before the name of the first file
ZIP_SUFFIXES = (".epub", ".docx", ".odt", ".xlsx", ".ods", ".pptx", ".odp")
CONVERT = (
    "convert it to plain text, for example by pandoc, pdftotext or LibreOffice, or train on its "
    "bytes by data.vocabulary=bytes"
)
LFS_POINTER = "Git LFS pointer"
BINARY_MAGIC = {  # first bytes of a file: name of its format
    b"%PDF-1.": "PDF",
    b"%!PS-": "PostScript",
    b"version https://git-lfs.github.com/spec/": LFS_POINTER,
    ZIP: "ZIP archive without the suffix .zip",
    b"\x1f\x8b\x08": "compressed file without the suffix .gz",
    b"\xfd7zXZ\0": "compressed file without the suffix .xz",
    b"\x28\xb5\x2f\xfd": "compressed file without the suffix .zst",
}
BINARY = "binary data"
CONTROLS = bytes({*range(0x20)} - {*b"\t\n\f\r\x1b"})  # control characters that are rare in text
MAX_CONTROLS = 0.001  # largest fraction of CONTROLS in text
COUNTED_BYTES = 2**16  # CONTROLS are counted in this many bytes at the beginning of a chunk


def advice(found: str) -> str:
    """Return what to do with a file, given its format from `binary_format`."""
    if found == LFS_POINTER:
        return "fetch the text by git lfs pull"
    return "add the suffix to its name" if "without the suffix" in found else CONVERT


def binary_format(head: bytes, name: str, encoding: str) -> str | None:
    """Return the format of a file that is not text; None if it is text in `encoding`."""
    suffix = PurePath(name).suffix.lower()
    if head.startswith(ZIP) and suffix in ZIP_SUFFIXES:
        return suffix[1:].upper()
    for first, found in DOCUMENTS.items():
        if head.startswith(ZIP) and head.startswith(first, ZIP_HEADER_BYTES):
            return found
    for magic, found in BINARY_MAGIC.items():
        if head.startswith(magic):
            return found
    text = head.decode(encoding_of(head, encoding), "replace").encode(errors="replace")
    return BINARY if is_binary(text) else None


def is_binary(text: bytes) -> bool:
    """Return whether `text` has a NUL, or more than MAX_CONTROLS (but at least 2) of CONTROLS.

    To save time, controls are counted in the first COUNTED_BYTES only.
    """
    beginning = text[:COUNTED_BYTES]
    controls = len(beginning) - len(beginning.translate(None, CONTROLS))
    return b"\0" in text or controls > max(1, MAX_CONTROLS * len(beginning))
