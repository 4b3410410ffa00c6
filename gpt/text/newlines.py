"""Line ends: LF, CRLF and CR all become LF, or every character stays (`data.newlines`)."""

import io
from collections.abc import Iterable, Iterator

from gpt.config.schema import Newlines


def unify_newlines(text: str, newlines: Newlines) -> str:
    """The text as training on it would have read it; for prompts and stop strings, too."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if newlines == "lf" else text


def unified(chunks: Iterable[str], newlines: Newlines) -> Iterator[tuple[str, int]]:
    """The chunks of a text by the same rule, each with how many line ends were changed in it.

    A CR that ends a chunk waits for the next one, which may begin with its LF.
    """
    decoder = io.IncrementalNewlineDecoder(None, translate=newlines == "lf")
    for chunk in chunks:
        yield decoder.decode(chunk), chunk.count("\r") if newlines == "lf" else 0
    yield decoder.decode("", final=True), 0
