"""Run every lesson of `gpt explain` in full, and check its figures.

Each row of the loss ladder is trained for 300 steps. The figures in prose and answers must be those
that the code prints, in the terminal, in the notebook and in the written program.

Usage: python scripts/lessons.py [LESSON...]
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbclient
import nbformat

from gpt.lessons import FOLLOW, LESSONS, ladder
from gpt.lessons.render import read_lesson, run_cell, to_notebook, to_program

SECONDS = re.compile(r"\(\d+\.\d s\)")
TOLERANCE = 0.05  # nats by which a row may differ from the recorded one, on another CPU
STATEMENTS: dict[
    str, list[tuple[str, list[tuple[float, float]]]]
] = {  # lesson: (a row of a table of losses, bounds on its numbers)
    "head": [("average of values", [(2.1, 2.3)]), ("one head", [(2.1, 2.4)])],
    "masks": [("inverted", [(0.0, 0.1), (2.4, 2.8), (0.1, 0.3)])],
    "positions": [
        ("average of values", [(2.2, 2.3), (2.2, 2.3)]),
        ("one head", [(2.2, 2.4), (2.0, 2.15)]),
    ],
    "block": [("without LayerNorm", [(3, 1e12)]), ("with LayerNorm", [(1.8, 2.2)])],
    "training": [("rate 0.1", [(2.55, 3.0), (2.3, 2.55), (2.3, 2.6)])],
    "dropout": [("p = 0.0", [(1.0, 1.5), (3.1, 3.4)]), ("p = 0.2", [(1.3, 1.8), (2.8, 3.1)])],
}


# rounding differences grow at this rate; STATEMENTS bounds the losses
UNSTABLE = re.compile(r"rate 0\.1( \S+){3}")


def outputs(name: str) -> dict[str, str]:
    """Return what the lesson prints in each of its three forms, without seconds."""
    cells = read_lesson(name)
    namespace = {"__name__": "lesson"}
    printed = [run_cell(cell.text, namespace) for cell in cells if cell.kind == "code"]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "my.py")
        program.write_text(to_program(cells, answer=False), "utf-8")
        command = [sys.executable, str(program)]
        written = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
        notebook = nbformat.reads(to_notebook(cells), as_version=4)  # type: ignore[no-untyped-call]
        nbclient.NotebookClient(notebook, timeout=600).execute()
    streams = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    from_notebook = "".join(o.text for o in streams if o.get("name") == "stdout")
    forms = {"terminal": "\n".join(printed), "program": written, "notebook": from_notebook}
    return {form: " ".join(SECONDS.sub("", text).split()) for form, text in forms.items()}


def mistakes(name: str) -> list[str]:
    """Return what is wrong with the figures of a lesson."""
    forms = outputs(name)
    text = forms["terminal"]
    stable = UNSTABLE.sub("", text)
    found = [
        f"{f} differs from the terminal" for f, x in forms.items() if UNSTABLE.sub("", x) != stable
    ]
    if "✗" in text:
        found.append("a check fails")
    for row, loss in ladder.LADDER.items():
        for figure in re.findall(rf"(?<= ){re.escape(row)} (\d+\.\d{{4}})", text)[:1]:
            if abs(float(figure) - loss) > TOLERANCE:
                found.append(f"{row}: {figure} is printed, {loss} is recorded")
    for row, bounds in STATEMENTS.get(name, []):
        numbers = r" (\S+)" * len(bounds)
        match = re.findall(rf"{re.escape(row)}{numbers}(?= |$)", text)[-1]
        figures = [float(x) for x in ([match] if isinstance(match, str) else match)]
        if not all(low <= x <= high for x, (low, high) in zip(figures, bounds, strict=True)):
            found.append(f"{row}: {figures} is not within {bounds}")
    prose = "\n".join(cell.text for cell in read_lesson(name) if cell.kind == "markdown")
    known = {"0.6931", "2.3219", "0.1000", "1412.6980"}  # ln 2, log2 5, a paper
    for figure in set(re.findall(r"(?<![\d.])\d+\.\d{4}(?!\d)", prose)) - known:
        if figure not in text:
            found.append(f"{figure} is in prose but not printed")
    return found


def main() -> None:
    """Check the lessons that the command line names; by default all but `follow`."""
    failed = False
    for name in sys.argv[1:] or [name for name in LESSONS if name != FOLLOW]:
        began = time.perf_counter()
        found = mistakes(name)
        failed |= bool(found)
        seconds = time.perf_counter() - began
        print(f"{name}: {'; '.join(found) or 'right'} ({seconds:.0f} s, three times)", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
