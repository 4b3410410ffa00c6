"""Settings of the text: its files, their encoding, and the split into train and val."""

import codecs
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gpt.config.section import ConfigSection, Text, TextName, check_utf8, resumable, setting


def _text_names(source: Any) -> object:
    names = (source,) if isinstance(source, str | Path) else source
    is_list = isinstance(names, list | tuple) and names
    if not is_list or not all(isinstance(name, str | Path) and name for name in names):
        raise ValueError("expected the name of a text, or a list of names")
    names = [*map(str, names)]
    check_utf8("".join(names))
    return tuple(names) if len(names) > 1 else names[0]


def _encoding(name: str) -> str:
    try:
        "".encode(name)  # fails for codecs that do not encode text, such as hex
        codecs.getincrementaldecoder(name)("replace").decode(b"\xff")  # fails for idna, punycode
    except (LookupError, ValueError):
        raise ValueError(
            "expected an encoding that Python knows, such as utf-8, cp1252 or utf-16"
        ) from None
    return name


TextNames = Annotated[str | tuple[str, ...], BeforeValidator(_text_names)]
Globs = Annotated[  # a list, or a single glob
    tuple[Text, ...],
    Field(strict=False),
    BeforeValidator(lambda globs: (globs,) if isinstance(globs, str) else globs),
]


class DataConfig(ConfigSection):
    """Settings of the text. A resume may change the path of the text and how files are read."""

    source: TextNames = resumable(
        "python-docs",
        "the text: python-docs, python-source, tinyshakespeare, a file, a folder, a glob, - for "
        "standard input, or a list of these",
        group="data",
    )
    include: Globs = resumable(
        (),
        'globs of the files to read in a folder, such as ["*.md", "src/**/*.py"]; a '
        "glob after ! excludes files; [] = all text files",
    )
    exclude: Globs = resumable((), "globs of the files or folders to skip, such as drafts")
    column: TextName | None = resumable(
        None,
        "column of .jsonl, .json, .csv, .tsv or .parquet that contains the documents, such as "
        "text, title,text or messages.content; null = read these files as plain text",
    )
    documents: Literal["files", "lines"] = setting(
        "files",
        "what a document is, for data.split=documents: a file (or a record of a table), or a line",
    )
    encoding: Annotated[str, AfterValidator(_encoding)] = resumable(
        "utf-8", "encoding of files that are not UTF-8 and have no byte-order mark, such as cp1252"
    )
    errors: Literal["strict", "replace"] = setting(
        "strict", "stop at bytes that are not in the encoding, or replace and count them"
    )
    val_source: TextNames | None = resumable(
        None, "a separate text for val; null = val is a part of data.source"
    )
    val_fraction: Annotated[float, Field(ge=1e-9, le=1 - 1e-9)] = setting(
        0.1, "fraction of the text's characters that is val, if data.val_source is null"
    )
    split: Literal["tail", "documents"] = setting(
        "tail", "val is the end of the text, or whole documents that the seed selects"
    )
    vocabulary: TextName = setting(
        "characters",
        "characters: those of the text; bytes: the 256 bytes of UTF-8; or a run, to use its own",
    )

    @property
    def globs(self) -> tuple[str, ...]:
        """All globs: those of `include`, then those of `exclude` with a `!` before each."""
        return (*self.include, *(f"!{glob}" for glob in self.exclude))

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.val_source is not None and self.split == "documents":
            raise ValueError(
                "data.split=documents cannot be combined with data.val_source, which already is "
                "val; leave data.split out"
            )
        return self
