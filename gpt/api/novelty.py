"""Find the lines of samples that the model did not copy from its train split."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpt.api.resolve import run_text
from gpt.errors import GPTError, counted
from gpt.status import phase

if TYPE_CHECKING:
    from gpt.api.model import Model
    from gpt.sampling.stopping import Sample


def find_new_lines(model: "Model") -> "Callable[[Sequence[Sample]], list[str]]":
    """Read the text of a run; return a function that returns the new lines of samples.

    Args:
        model: the model, from `gpt.load`.

    Returns:
        A function from samples to their new lines. It returns the whole lines that do not occur in
        the train split, each once. The first line of a sample includes the last line of its prompt.
        The last line is whole only if a stop string that begins with a line end has ended the
        sample.

    Raises:
        GPTError: the text is missing or has changed.
    """
    from gpt.evaluation.text_report import lines_in

    try:
        corpus = run_text(model)
    except GPTError as error:
        needed = "new lines (--new) are those that the run's text does not have"
        raise type(error)(f"{error}; {needed}, so put that text back") from None

    def new_lines(samples: "Sequence[Sample]") -> list[str]:
        lines: dict[str, None] = {}
        for sample in samples:
            *whole, last = (sample.prompt.rpartition("\n")[2] + sample.text).split("\n")
            lines |= dict.fromkeys([*whole, last] if (sample.stop or "")[:1] == "\n" else whole)
        with phase(f"looking for {counted(len(lines), 'line')} in the train split"):
            known = lines_in(corpus.train, corpus.vocabulary, lines.keys())
        return [line for line in lines if line and line not in known]

    return new_lines
