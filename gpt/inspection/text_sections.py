"""What is said of a text, in the order of a terminal's table and of a page."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpt.errors import counted, listed
from gpt.evaluation.characters import RARE, Finding
from gpt.evaluation.duplicates import BLOCK, GUARANTEED
from gpt.evaluation.text_options import Option
from gpt.evaluation.text_report import TextReport
from gpt.text.display import in_one_line, symbol

FREQUENT = 6
LISTED_NAMES = 20  # characters that are only in val


@dataclass(frozen=True)
class Table:
    """Cells in columns; `align` has an l or r for each. Of `total` rows, perhaps only the first.

    The last column, of excerpts, may be cut to the width that there is.
    """

    heading: Sequence[str]
    align: str
    rows: list[Sequence[str]]
    caption: str = ""
    total: int = 0


@dataclass(frozen=True)
class Section:
    """A heading, and under it named values, tables and notes."""

    heading: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def sections(report: TextReport) -> list[Section]:
    """The report in words; of warnings a section only if there are any."""
    shown = [
        _size(report),
        _characters(report),
        _suspicious(report),
        _baselines(report),
        _duplicates(report),
        _options(report),
    ]
    warnings = [Section("Warnings", notes=report.warnings)] if report.warnings else []
    return [*warnings, *shown]


def _size(report: TextReport) -> Section:
    size = report.size
    ids = "" if size.distinct == size.V else f"; {size.V:,} ids"
    unknown = f", one of them for {counted(size.unknown, 'character')}" if size.unknown else ""
    files = f", from {counted(size.files, 'file')}" if size.files else ""
    fields = [
        ("characters", f"{size.characters:,} in {counted(size.lines, 'line')}"),
        ("bytes", f"{size.bytes:,} of UTF-8{files}"),
        ("vocabulary", f"{counted(size.distinct, 'distinct character')}{ids}{unknown}"),
        ("train, val", f"{size.train:,} and {size.val:,} {size.unit}"),
    ]
    skipped: list[Sequence[str]] = [
        (in_one_line(file.name), in_one_line(file.reason)) for file in size.skipped
    ]
    tables = [Table(("", ""), "ll", skipped, "skipped", len(skipped))] if skipped else []
    return Section("Size", fields, tables)


def _characters(report: TextReport) -> Section:
    size, frequencies = report.size, [*report.frequencies.items()]
    shares = [
        f"{symbol(c)} {percent(count / size.characters)}" for c, count in frequencies[:FREQUENT]
    ]
    fields = [
        ("entropy", f"{report.entropy:.3f} bits per character, by the frequencies alone"),
        ("frequent", "  ".join(shares)),
    ]
    if report.only_in_val:
        names = [symbol(c) for c in report.only_in_val]
        fields.append(("only in val", listed(names, LISTED_NAMES, " ")))
    caption = f"occur fewer than {RARE} times: {report.rare:,} of {size.distinct:,}"
    return Section("Characters", fields, [_findings(report.rarest, caption, report.rare)])


def _suspicious(report: TextReport) -> Section:
    tables = [
        _findings(
            suspicion.findings,
            f"{suspicion.kind}: in {counted(suspicion.count, 'place')}",
            suspicion.distinct,
        )
        for suspicion in report.suspicious
    ]
    return Section("Suspicious", tables=tables, notes=[] if tables else ["Nothing was found."])


def _findings(findings: list[Finding], caption: str, total: int) -> Table:
    rows: list[Sequence[str]] = [
        (_sign(f.text), in_one_line(f.name), f"{f.count:,}", f"{f.line:,}", in_one_line(f.excerpt))
        for f in findings
    ]
    heading = ("", "", "times", "line", "first") if rows else ("",) * 5
    return Table(heading, "llrrl", rows, caption, total)


def _baselines(report: TextReport) -> Section:
    rows: list[Sequence[str]] = [
        (n.model, f"{n.nats_per_character:.4f}", f"{n.bits_per_character:.3f}", f"{n.loss:.4f}")
        for n in report.ngrams
    ]
    for name, bits in report.compression.bits_per_character.items():
        rows.append((name, "", f"{bits:.3f}", ""))
    heading = ["", "nats per character", "bits per character", "nats per byte"]
    shown = len(heading) - (report.size.unit == "characters")
    sample = counted(report.compression.characters, "character")
    notes = [f"gzip and xz were measured on {sample}, headers included."]
    if report.ngrams:
        notes.insert(
            0,
            f"The bigram and the trigram (interpolated Kneser-Ney) are counted in train and scored "
            f"on val{_sampled(report)}.",
        )
    table = Table(heading[:shown], "lrrr"[:shown], [row[:shown] for row in rows])
    return Section("What a model must beat", tables=[table], notes=notes)


def _sampled(report: TextReport) -> str:
    """How much of the splits, if it is not all of them."""
    for n in report.ngrams:
        if n.train_ids + 2 < report.size.train:
            return f", on {n.train_ids:,} and {n.val_ids:,} of their ids"
    return ""


def _duplicates(report: TextReport) -> Section:
    found = report.duplicates
    rows: list[Sequence[str]] = [
        (f"{p.characters:,}", f"{p.line:,}", f"{p.train_line:,}", in_one_line(p.excerpt))
        for p in found.longest
    ]
    of_val = "" if found.scanned == report.size.val_characters else f"{found.scanned:,} of "
    caption = f"{percent(found.share)} of {of_val}val, in {counted(found.passages, 'passage')}"
    heading = ("characters", "line", "train line", "passage")
    return Section(
        "In train and in val",
        tables=[Table(heading, "rrrl", rows, caption, found.passages)] if rows else [],
        notes=[
            f"{'' if rows else 'Nothing was found. '}Only letters and digits are compared. "
            f"Passages of {GUARANTEED} or more are always found, shorter ones (from {BLOCK}) "
            f"sometimes."
        ],
    )


def _options(report: TextReport) -> Section:
    as_set, *others = report.options
    rows: list[Sequence[str]] = [("as set", *_effect(as_set))]
    rows += [
        (option.setting, *(_effect(option) if _differ(option, as_set) else ("", "the same", "")))
        for option in others
    ]
    heading = ("", "ids", "length", "unknown")
    note = "The length is in ids; unknown are the characters that would share one id."
    if report.options_characters < report.size.characters:
        note = f"{note} Of a sample of {report.options_characters:,} characters."
    return Section("Other settings", tables=[Table(heading, "lrrr", rows)], notes=[note])


def _effect(option: Option) -> tuple[str, str, str]:
    return f"{option.V:,}", f"{option.length:,}", f"{option.unknown:,}"


def _differ(a: Option, b: Option) -> bool:
    return _effect(a) != _effect(b)


def _sign(text: str) -> str:
    return symbol(text) if len(text) == 1 else in_one_line(text)


def percent(share: float) -> str:
    """`0.05 %`, `1.2 %`, `12.3 %`."""
    return f"{100 * share:.{1 if share >= 0.01 or not share else 2}f} %"
