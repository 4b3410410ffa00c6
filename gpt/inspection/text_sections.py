"""The description of a text in words, in the order of the terminal and of the page."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpt.errors import counted, listed
from gpt.evaluation.characters import RARE_COUNT, Finding
from gpt.evaluation.duplicates import GUARANTEED
from gpt.evaluation.text_report import TextReport
from gpt.text.display import symbol

MAX_FREQUENT = 6  # characters whose share of the text is shown
MAX_ONLY_IN_VAL = 20  # characters that are shown of those that only val has


@dataclass(frozen=True)
class ReportTable:
    """The first of `total` rows. `align` has an "l" or "r" for each column."""

    heading: Sequence[str]
    align: str
    rows: Sequence[Sequence[str]]
    caption: str = ""
    total: int = 0


@dataclass(frozen=True)
class ReportSection:
    """A heading, followed by labelled values, tables and notes."""

    heading: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def sections_of(report: TextReport) -> list[ReportSection]:
    """Return the sections of `report`; the first has the warnings, if there are any."""
    parts = (_size, _characters, _suspicious, _baselines, _duplicates)
    warnings = [ReportSection("Warnings", notes=report.warnings)] if report.warnings else []
    return [*warnings, *(part(report) for part in parts)]


def percent(share: float) -> str:
    """Return `share` as a percentage: `0.05 %`, `1.2 %`, `12.3 %`."""
    return f"{100 * share:.{1 if share >= 0.01 or not share else 2}f} %"


def _size(report: TextReport) -> ReportSection:
    size = report.size
    ids = "" if size.distinct == size.V else f"; {size.V:,} ids"
    unknown = f", one of which {size.unknown:,} characters share" if size.unknown else ""
    files = f", from {counted(size.files, 'file')}" if size.files else ""
    fields = [
        ("characters", f"{size.characters:,} in {counted(size.lines, 'line')}"),
        ("bytes", f"{size.bytes:,} in UTF-8{files}"),
        ("vocabulary", f"{counted(size.distinct, 'distinct character')}{ids}{unknown}"),
        ("train, val", f"{size.train:,} and {size.val:,} {size.unit}"),
    ]
    rows = [(file.name, file.reason) for file in size.skipped]
    skipped = ReportTable(("", ""), "ll", rows, "skipped", len(rows))
    return ReportSection("Size", fields, [skipped] if rows else [])


def _characters(report: TextReport) -> ReportSection:
    size, frequencies = report.size, [*report.frequencies.items()]
    shares = [f"{symbol(c)} {percent(n / size.characters)}" for c, n in frequencies[:MAX_FREQUENT]]
    fields = [
        ("entropy", f"{report.entropy:.3f} bits per character, from the frequencies alone"),
        ("frequent", "  ".join(shares)),
    ]
    if report.only_in_val:
        names = [symbol(c) for c in report.only_in_val]
        fields.append(("only in val", listed(names, MAX_ONLY_IN_VAL, " ")))
    caption = f"{report.rare:,} of {size.distinct:,} characters occur fewer than {RARE_COUNT} times"
    return ReportSection("Characters", fields, [_findings(report.rarest, caption, report.rare)])


def _suspicious(report: TextReport) -> ReportSection:
    tables = [
        _findings(each.findings, f"{each.kind}: {counted(each.count, 'place')}", each.distinct)
        for each in report.suspicious
    ]
    return ReportSection(
        "Suspicious", tables=tables, notes=[] if tables else ["Nothing was found."]
    )


def _findings(findings: list[Finding], caption: str, total: int) -> ReportTable:
    signs = [symbol(f.text) if len(f.text) == 1 else f.text for f in findings]
    rows = [
        (sign, f.name, f"{f.count:,}", f"{f.line:,}", f.excerpt)
        for sign, f in zip(signs, findings, strict=True)
    ]
    heading = ("", "", "times", "line", "first place") if rows else ("",) * 5
    return ReportTable(heading, "llrrl", rows, caption, total)


def _baselines(report: TextReport) -> ReportSection:
    rows = [
        (n.model, f"{n.nats_per_character:.4f}", f"{n.bits_per_character:.3f}", f"{n.loss:.4f}")
        for n in report.ngrams
    ]
    for name, bits in report.compression.bits_per_character.items():
        rows.append((name, "", f"{bits:.3f}", ""))
    columns = 3 if report.size.unit == "characters" else 4
    heading = ("", "nats per character", "bits per character", "nats per byte")[:columns]
    table = ReportTable(heading, "lrrr"[:columns], [row[:columns] for row in rows])
    notes = []
    if report.ngrams:
        n = report.ngrams[0]
        sampled = n.train_ids + 2 < report.size.train
        sizes = f"; {n.train_ids:,} and {n.val_ids:,} of their ids are used" if sampled else ""
        notes.append(
            f"The bigram and trigram models (interpolated Kneser-Ney) are counted on train and "
            f"scored on val{sizes}."
        )
    sample = counted(report.compression.characters, "character")
    notes.append(f"gzip and xz were measured on {sample}, headers included.")
    return ReportSection("What a model must beat", tables=[table], notes=notes)


def _duplicates(report: TextReport) -> ReportSection:
    found = report.duplicates
    is_whole = found.scanned == report.size.val_characters
    scanned = "val" if is_whole else f"the first {found.scanned:,} characters of val"
    sentence = (
        f"{percent(found.share)} of {scanned} also occurs in train (passages from {GUARANTEED} "
        f"letters and digits on)"
    )
    for passage in found.longest[:1]:
        sentence += (
            f"; the longest passage has {counted(passage.characters, 'character')} (line "
            f"{passage.line:,}, in train line {passage.train_line:,}): {passage.excerpt}"
        )
    return ReportSection("In train and in val", notes=[sentence])
