"""Find the lines of samples that the model did not copy from its train split."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt.api.resolve import run_text
from gpt.errors import GPTError

if TYPE_CHECKING:
    from gpt.api.model import Model
    from gpt.sampling.stopping import Sample


def new_lines(model: "Model", samples: "Sequence[Sample]") -> list[str]:
    """Find the lines of samples that do not occur in the model's train split.

    The first line of a sample includes the last line of its prompt. The last line of a sample is
    left out, unless a stop string that begins with a line end has ended the sample.

    Args:
        model: the model, whose text is read again.
        samples: its samples, from `gpt.sampling.stopping.collect`.

    Returns:
        The new lines, each once, in the order of the samples.

    Raises:
        GPTError: the text is missing or has changed.
    """
    from gpt.evaluation.text_report import lines_in

    try:
        corpus = run_text(model)
    except GPTError as error:
        raise type(error)(f"{error}; put the text back, or leave out --new") from None
    lines: dict[str, None] = {}
    for sample in samples:
        *whole, last = (sample.prompt.rpartition("\n")[2] + sample.text).split("\n")
        is_last_whole = sample.stop is not None and sample.stop.startswith("\n")
        lines |= dict.fromkeys([*whole, last] if is_last_whole else whole)
    known = lines_in(corpus.train, corpus.vocabulary, lines.keys())
    return [line for line in lines if line and line not in known]
