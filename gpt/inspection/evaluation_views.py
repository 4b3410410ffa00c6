"""Show an evaluation as tables for the terminal, or as an HTML page with the loss of each id.

For safety, the page contains the text as ids, and its script never inserts characters as markup.
"""

from gpt.errors import counted
from gpt.evaluation.characters import name_of
from gpt.evaluation.evaluation_report import SQUARE_ROOT_OF_1, EvaluationReport
from gpt.inspection.output import in_base64, render_page
from gpt.terminal import Indented, PlainTable, in_one_line, make_table, render, symbol

MAX_TABLE_ROWS = 12  # largest number of rows of a table in the terminal
PAGE_IDS = 2**12  # number of ids that are shown at once
CURVE_POINTS = 512  # number of points in the curve of the loss over the text
CLAMPED_NATS = 6.0  # loss from which the colour is strongest, in nats


def evaluation_table(report: EvaluationReport, title: str, width: int) -> str:
    """Render `report` under `title` as lines of at most `width` columns."""
    fields = make_table(("", ""), report_lines(report), "ll")
    parts: list[Indented] = [(0, f"{in_one_line(title)}\n"), (2, fields)]
    for heading, rows, align in report_tables(report):
        parts += [(0, " "), (2, make_table(heading, rows[:MAX_TABLE_ROWS], align))]
        if len(rows) > MAX_TABLE_ROWS:
            parts.append((2, f"and {len(rows) - MAX_TABLE_ROWS:,} more, all in --json"))
    return render(parts, width)


def report_tables(report: EvaluationReport) -> list[PlainTable]:
    """Return the tables of `report`: calibration, and the loss by each property.

    In the table of characters, the rows are sorted by their part of the loss, the largest first.
    """
    bins = report.calibration
    tables: list[PlainTable] = [
        (
            ("calibration, in %", *[""] * len(bins)),
            [
                ("probability", *[f"{100 * each.probability:.0f}" for each in bins]),
                ("right", *[f"{100 * each.accuracy:.0f}" for each in bins]),
                (f"of {report.unit}s", *[f"{100 * each.ids / report.ids:.0f}" for each in bins]),
            ],
            "l" + "r" * len(bins),
        )
    ]
    for property_, groups in report.groups.items():
        by_loss = sorted(groups, key=lambda g: -g.characters * g.loss)
        rows = [
            (symbol(g.value), f"{g.characters:,}", f"{g.loss:.4f}", f"{100 * g.accuracy:.1f} %")
            for g in (by_loss if property_ == "character" else groups)
        ]
        tables.append(((property_, "characters", "nats", "accuracy"), rows, "lrrr"))
    return tables


def report_lines(report: EvaluationReport) -> list[tuple[str, str]]:
    """Return a label and a text for each line of the summary of `report`."""
    unit = report.unit
    sizes = f"{report.characters:,} characters, {report.bytes:,} bytes"
    per_byte = f" ({report.loss:.4f} per byte)" if unit == "byte" else ""
    interval = "none: the text is too short"
    if ends := report.interval:
        interval = f"{ends.low:.4f} to {ends.high:.4f} (95 %), for other text of this kind"
    references = [f"{each.name} {each.loss:.3f}" for each in report.references]
    lines = [
        ("text", f"{report.text}: {sizes}"),
        ("loss", f"{report.loss_per_character:.4f} nats per character{per_byte}"),
        ("interval", interval),
        (
            "bits",
            f"{report.bits_per_character:.3f} per character, {report.bits_per_byte:.3f} per byte",
        ),
        (
            "accuracy",
            f"{100 * report.accuracy:.1f} % of {unit}s are those predicted as most likely",
        ),
        (
            "calibration",
            f"expected error {100 * report.calibration_error:.1f} %: the mean difference between "
            f"the highest probability and how often it is right",
        ),
    ]
    if report.outside:
        share = report.outside / (report.outside + report.characters)
        outside = f"{counted(report.outside, 'character')} ({100 * share:.2f} %)"
        lines.insert(1, ("outside", f"not in the model's vocabulary: {outside}"))
    if references:
        lines.append(("compared", f"{', '.join(references)} nats, each given the train split"))
    if copies := report.memorisation:
        shares = (
            f"{100 * copies.copied:.1f} % of the {copies.length}-{unit} substrings of the model's "
            f"samples occur in its train split; of those of the text, {100 * copies.in_text:.1f} %"
        )
        lines.append(("copies", shares))
    return lines


def evaluation_page(report: EvaluationReport, title: str) -> bytes:
    """Return an HTML file that shows `report`. Its `surprise` must not be None.

    The script of the page reads `data`. "pages" has a string for each page of the text. It is
    base64 of the fields `ids`, `likely`, `millinats` and `roots` of `Surprise`. An id has "width"
    bytes.
    """
    surprise = report.surprise
    assert surprise is not None
    names, n = surprise.vocabulary.names, len(surprise.ids)
    columns = surprise.ids, surprise.likely, surprise.millinats, surprise.roots
    starts = range(0, n, PAGE_IDS)
    data = {
        "n": n,
        "k": surprise.likely.shape[1],
        "width": surprise.ids.itemsize,
        "page": PAGE_IDS,
        "clamped": CLAMPED_NATS,
        "root": SQUARE_ROOT_OF_1,
        "pages": [in_base64(*(column[at : at + PAGE_IDS] for column in columns)) for at in starts],
        "names": names,
        "signs": {name: sign for name in names if (sign := symbol(name)) != name},
        "titles": [name_of(name) if len(name) == 1 else name for name in names],
        "unit": surprise.vocabulary.unit,
    }
    return render_page(
        "evaluation",
        scripts=["evaluation.js"],
        report=report,
        run=title,
        fields=report_lines(report),
        tables=report_tables(report),
        curve=surprise.curve(CURVE_POINTS),
        data=data,
    )
