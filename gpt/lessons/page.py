"""What a lesson is told on: sentences, small tables, and equalities checked as it is told."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

WIDTH = 88


@dataclass
class Page:
    """A lesson's parts in the order in which they were told, for a terminal or as JSON."""

    name: str
    title: str
    file: str
    next: str | None
    parts: list[dict[str, Any]] = field(default_factory=list)

    def say(self, text: str) -> None:
        """A paragraph."""
        self.parts.append({"say": " ".join(text.split())})

    def table(
        self,
        caption: str,
        values: Tensor | Sequence[float],
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
    ) -> None:
        """A tensor (rows, columns) or (columns,), shown to four digits."""
        tensor = torch.as_tensor(values).detach()
        matrix = tensor.unsqueeze(0) if tensor.ndim == 1 else tensor
        self.parts.append(
            {
                "table": caption,
                "rows": list(rows),
                "columns": list(columns),
                "values": matrix.tolist(),
            }
        )

    def check(self, claim: str, left: Tensor, right: Tensor, tolerance: float = 1e-4) -> None:
        """Claim that two tensors are equal, and see whether they are."""
        difference = float((left - right).detach().abs().max())
        holds = difference <= tolerance * max(1.0, float(right.detach().abs().max()))
        self.parts.append({"check": claim, "holds": holds, "largest_difference": difference})

    def check_differ(self, claim: str, left: Tensor, right: Tensor) -> None:
        """Claim that two tensors are not equal, and see whether they are not."""
        difference = float((left - right).detach().abs().max())
        self.parts.append(
            {"check": claim, "holds": difference > 1e-3, "largest_difference": difference}
        )

    @property
    def holds(self) -> bool:
        """Whether every check on the page came out as claimed."""
        return all(part.get("holds", True) for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """The page as plain data."""
        return {
            "lesson": self.name,
            "title": self.title,
            "file": self.file,
            "next": self.next,
            "holds": self.holds,
            "parts": self.parts,
        }

    def render(self) -> str:
        """The page as text, at most `WIDTH` wide but for wide tables."""
        heading = f"{self.name}: {self.title}"
        blocks = [f"{heading}\n{'=' * len(heading)}"]
        blocks += [_render(part) for part in self.parts]
        onward = f"then: gpt explain {self.next}" if self.next else "then: gpt attend, on your run"
        blocks.append(f"open: {self.file}\n{onward}")
        return "\n\n".join(blocks)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _render(part: dict[str, Any]) -> str:
    if "say" in part:
        return textwrap.fill(part["say"], WIDTH)
    if "check" in part:
        mark = "holds" if part["holds"] else "FAILS"
        claim = f"[{mark}] {part['check']} (largest difference {part['largest_difference']:.1e})"
        return textwrap.fill(claim, WIDTH, subsequent_indent=" " * 8)
    cells = [[_number(value) for value in row] for row in part["values"]]
    names = part["rows"] or [""] * len(cells)
    columns = part["columns"] or [""] * len(cells[0])
    width = max(8, *(len(cell) + 1 for row in [*cells, columns] for cell in row))
    margin = max(len(name) for name in names) + 2
    lines = [part["table"]]
    if part["columns"]:
        lines.append(" " * margin + "".join(name.rjust(width) for name in columns))
    lines += [
        f"{name:<{margin}}" + "".join(cell.rjust(width) for cell in row)
        for name, row in zip(names, cells, strict=True)
    ]
    return "\n".join(line.rstrip() for line in lines)
