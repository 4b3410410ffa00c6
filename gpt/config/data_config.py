"""Settings of the text: where it is read from, how it is decoded, split and encoded as ids."""

import codecs
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gpt.config.section import MAX_COUNT, Section, Text, TextName, check_text_name, setting

Newlines = Literal["lf", "keep"]


def _text_names(source: object) -> object:
    """Return one name as a text, several as a tuple."""
    names = [source] if isinstance(source, str) else source
    if (
        not isinstance(names, list | tuple)
        or not names
        or not all(isinstance(name, str) and name for name in names)
    ):
        raise ValueError("expected the name of a text, or a list of names")
    names = tuple(map(check_text_name, names))
    return names if len(names) > 1 else names[0]


def _globs(include: object) -> object:
    """Return a list of globs, or a single one, as a tuple."""
    globs = (include,) if isinstance(include, str) else include
    if not isinstance(globs, list | tuple) or not all(isinstance(each, str) for each in globs):
        raise ValueError("expected a glob for the names of files, or a list of globs")
    return tuple(globs)


def _encoding(name: str) -> str:
    try:
        if codecs.lookup(name).name in ("idna", "punycode", "undefined"):  # not for files
            raise LookupError
        b"a".decode(name)
    except UnicodeError:  # in UTF-16, for example, one byte is half a character
        return name
    except (LookupError, ValueError):
        raise ValueError(
            "expected an encoding that Python knows, such as utf-8, cp1252 or utf-16"
        ) from None
    return name


TextNames = Annotated[str | tuple[str, ...], BeforeValidator(_text_names)]
Globs = Annotated[tuple[Text, ...], BeforeValidator(_globs)]
Encoding = Annotated[str, AfterValidator(_encoding)]


class DataConfig(Section):
    """The text to train on."""

    source: TextNames = setting(
        "python-docs",
        "the text: python-docs, python-source, tinyshakespeare, a file, a folder, a glob, - for "
        "standard input, or a list of these",
        heading="data",
        resumable=True,  # the text is compared by its hash
        other_names="dataset corpus input text",
    )
    include: Globs = setting(
        (),
        "globs of the files to read in a folder or archive, such as "
        '["*.md", "src/**/*.py"]; a glob after ! excludes files; [] = all text files',
        resumable=True,
    )
    exclude: Globs = setting(
        (), "globs of the files or folders to skip, such as drafts", resumable=True
    )
    column: Annotated[Text, Field(min_length=1)] | None = setting(
        None,
        "column of .jsonl, .json, .csv, .tsv or .parquet that contains the documents, such as "
        "text, title,text or messages.content; null = read these files as plain text",
        resumable=True,
    )
    bad_records: Literal["refuse", "skip"] = setting(
        "refuse",
        "report a table record that cannot be read, such as a row with too few columns, as an "
        "error, or skip and count it",
        resumable=True,
    )
    separator: Text = setting(
        "\n\n", "text between two documents; in --set, \\n is a line end and \\t a tab"
    )
    documents: Literal["files", "lines", "separator"] = setting(
        "files",
        "unit of data.split documents: a file (or a record of a table), a line, or the text "
        "between two data.separator",
    )
    encoding: Encoding = setting(
        "utf-8",
        "encoding of files without a byte-order mark, such as cp1252; among several files, those "
        "that are valid UTF-8 are read as UTF-8",
        resumable=True,
    )
    errors: Literal["strict", "replace"] = setting(
        "strict",
        "report bytes that are not in the encoding as an error, or replace them by U+FFFD and "
        "count them",
    )
    newlines: Newlines = setting(
        "lf", "read CRLF and CR as LF, also in prompts, or keep them", fine_tuning="inherited"
    )
    normalize: Literal["none", "NFC", "NFD", "NFKC"] = setting(
        "none", "Unicode normal form of the text and of prompts", fine_tuning="inherited"
    )
    lowercase: bool = setting(
        False, "convert the text and prompts to lowercase", fine_tuning="inherited"
    )
    val_source: TextNames | None = setting(
        None, "a separate text for val; null = val is a part of data.source", resumable=True
    )
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = setting(
        0.1, "fraction of the text's characters that is val, if data.val_source is null"
    )
    split: Literal["tail", "documents"] = setting(
        "tail", "val is the end of the text, or whole documents that the seed selects"
    )
    vocabulary: TextName = setting(
        "characters",
        "characters: those of the text; bytes: the 256 bytes of UTF-8; or the name of a run, to "
        "use its vocabulary",
    )
    max_vocabulary: Annotated[int, Field(ge=2, le=MAX_COUNT)] | None = setting(
        None,
        "largest number of ids; the rarest characters share one id, which is never sampled; "
        "null = one id for each character",
    )

    @property
    def globs(self) -> tuple[str, ...]:
        """`include` and `exclude` as one list, in which `!` marks the globs that exclude."""
        return (*self.include, *(f"!{glob}" for glob in self.exclude))

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.documents == "separator" and not self.separator:
            raise ValueError(
                "data.separator: expected the text between two documents, which data.documents "
                "separator needs, got an empty text"
            )
        if self.max_vocabulary is not None and self.vocabulary != "characters":
            raise ValueError(
                f"data.max_vocabulary: expected data.vocabulary characters, got "
                f"{self.vocabulary}; leave out one of the two"
            )
        if self.val_source is not None and self.split == "documents":
            raise ValueError(
                "data.split: expected tail (the default), as all of data.val_source is val, got "
                "documents; leave out one of the two"
            )
        return self

    def unused_settings(self) -> dict[str, str]:
        """Return the settings that have no effect beside the others, each with advice."""
        if self.val_source is None:
            return {}
        return {"data.val_fraction": "all of data.val_source is val; leave out one of the two"}
