"""Any command line ends in an exit code of the list, and one message."""

from pathlib import Path

from faults.command_lines import fuzzed_command_lines
from faults.work import Work

from gpt.text.corpus import load_corpus
from gpt.text.sources import open_source


def test_a_command_line_that_nobody_would_type_ends_in_one_message(
    tmp_path: Path, text_file: Path
) -> None:
    """Empty, huge and negative values, control characters, links, pipes, devices, junk on stdin.

    `scripts/soak.py --command-lines 2000` is the long form.
    """
    work = Work(tmp_path, load_corpus(open_source(str(text_file))))
    tally = fuzzed_command_lines(work, count=30, seed=1)
    assert tally.failures == []
    assert tally.outcomes.total() == 30
