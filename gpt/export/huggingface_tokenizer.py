"""Convert a vocabulary to a tokenizer of the tokenizers library, without custom code."""

from typing import Any

from gpt.text.vocabulary import Vocabulary

PADDING = "[PAD]"  # its id is V; the model masks it
UNKNOWN = "[UNK]"  # no id has this name, so a character without an id is an error
LINE_ENDS = {"type": "Replace", "pattern": {"Regex": r"\r\n?"}, "content": "\n"}
EACH_CHARACTER = {  # splits a text into characters
    "type": "Split",
    "pattern": {"Regex": r"[\s\S]"},
    "behavior": "Isolated",
    "invert": False,
}
BYTE_LEVEL = {  # writes each byte of UTF-8 as a visible character, as GPT-2's tokenizer does
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the content of tokenizer.json.

    The tokenizer changes line ends to LF, then encodes a text as `Vocabulary.encode` does. It
    raises an error for characters without an id.
    """
    names = [*vocabulary.characters]
    split: dict[str, Any] = EACH_CHARACTER
    decoder: dict[str, Any] = {"type": "Fuse"}
    if vocabulary.is_bytes:
        names, decoder = BYTE_SYMBOLS, BYTE_LEVEL
        split = {"type": "Sequence", "pretokenizers": [BYTE_LEVEL, EACH_CHARACTER]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(PADDING, len(names))],
        "normalizer": LINE_ENDS,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "WordLevel",
            "vocab": {name: id_ for id_, name in enumerate(names)},
            "unk_token": UNKNOWN,
        },
    }


def _special(name: str, id_: int) -> dict[str, Any]:
    return {"id": id_, "content": name, "special": True, "normalized": False} | dict.fromkeys(
        ("single_word", "lstrip", "rstrip"), False
    )


def _byte_symbols() -> list[str]:
    """Return the character that stands for each of the 256 bytes in GPT-2's tokenizer.

    A byte that is a visible character of Latin-1 is that character. The other bytes, in ascending
    order, are U+0100, U+0101 and so on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(code) for code in range(0x100, 0x200))
    return [chr(byte) if byte in visible else next(others) for byte in range(256)]


BYTE_SYMBOLS = _byte_symbols()
