"""Show an evaluation as an HTML file: the surprise of each character, and the report's numbers.

For safety, the page contains the text as numbers, and its script never inserts names as markup.
"""

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.evaluation.characters import name_of
from gpt.evaluation.evaluation_report import SQUARE_ROOT_OF_1, EvaluationReport, Surprise
from gpt.inspection.evaluation_table import report_lines, report_tables
from gpt.inspection.html_page import render_page
from gpt.text.display import symbol

PAGE_IDS = 2**12  # number of ids that are shown at once
CURVE_POINTS = 512  # number of parts of the text in the curve of surprise
CLAMPED_NATS = 6.0  # surprise with the strongest colour, in nats


def evaluation_page(report: EvaluationReport, title: str) -> bytes:
    """Return an HTML file that shows `report`, whose field `surprise` is set.

    Args:
        report: the result of an evaluation.
        title: the name of the model.
    """
    surprise = report.surprise
    assert surprise is not None
    shown = len(surprise.ids)
    return render_page(
        "evaluation",
        report=report,
        run=title,
        fields=report_lines(report),
        tables=report_tables(report),
        curve=surprise.curve(CURVE_POINTS),
        shown=shown,
        pages=-(-shown // PAGE_IDS),
        clamped=CLAMPED_NATS,
        data=_page_data(surprise),
    )


def _page_data(surprise: Surprise) -> dict[str, Any]:
    """Return the values that the script of the page uses, by name.

    "pages" has a string for each page of the text: base64 of its ids, its likely ids, its losses
    and the square roots of its likely ids' probabilities, in the format of `Surprise`. An id has
    "width" bytes. All numbers are little-endian.
    """
    names = surprise.vocabulary.names
    signs = {name: symbol(name) for name in names}
    width = 1 if len(names) <= 2**8 else 2 if len(names) <= 2**16 else 4
    ids, likely = (each.astype(f"<u{width}") for each in (surprise.ids, surprise.likely))
    columns: list[NDArray[Any]] = [ids, likely, surprise.millinats.astype("<u2"), surprise.roots]
    starts = range(0, len(ids), PAGE_IDS)
    return {
        "n": len(ids),
        "k": likely.shape[1],
        "width": width,
        "page": PAGE_IDS,
        "clamped": CLAMPED_NATS,
        "root": SQUARE_ROOT_OF_1,
        "pages": [_base64([column[at : at + PAGE_IDS] for column in columns]) for at in starts],
        "names": names,
        "signs": {name: sign for name, sign in signs.items() if sign != name},
        "titles": [name_of(name) if len(name) == 1 else name for name in names],
        "unit": surprise.vocabulary.unit,
    }


def _base64(columns: list[NDArray[Any]]) -> str:
    content = b"".join(np.ascontiguousarray(column).tobytes() for column in columns)
    return base64.b64encode(content).decode()
