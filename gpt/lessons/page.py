"""The page of a lesson: paragraphs, small tables, and equalities that are checked live."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Page:
    """A lesson's parts in order, for a terminal or as JSON."""

    name: str
    title: str
    file: str
    next: str | None
    parts: list[dict[str, Any]] = field(default_factory=list)

    def paragraph(self, text: str) -> None:
        """Add a paragraph."""
        self.parts.append({"paragraph": " ".join(text.split())})

    def table(
        self,
        caption: str,
        values: Tensor | Sequence[float],
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
    ) -> None:
        """Add a tensor (rows, columns) or (columns,), shown to four digits."""
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
        """Claim that two tensors are equal up to rounding, and check it."""
        difference = float((left - right).detach().abs().max())
        holds = difference <= tolerance * max(1.0, float(right.detach().abs().max()))
        self.parts.append({"check": claim, "holds": holds, "largest_difference": difference})

    def check_differ(self, claim: str, left: Tensor, right: Tensor) -> None:
        """Claim that two tensors differ, and check it."""
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

    def render(self, width: int) -> str:
        """The page as text of at most `width` columns; a wider table is split."""
        heading = textwrap.wrap(f"{self.name}: {self.title}", width)
        blocks = ["\n".join([*heading, "=" * max(map(len, heading))])]
        blocks += [_render(part, width) for part in self.parts]
        following = f"gpt explain {self.next}" if self.next else "gpt attend, on a run of yours"
        blocks.append(f"source: {self.file}\nnext: {following}")
        return "\n\n".join(blocks)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _fill(text: str, width: int, indent: int = 0) -> str:
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_on_hyphens=False)


def _render(part: dict[str, Any], width: int) -> str:
    if "paragraph" in part:
        return _fill(part["paragraph"], width)
    if "check" in part:
        mark = "holds" if part["holds"] else "FAILS"
        claim = f"[{mark}] {part['check']} (largest difference {part['largest_difference']:.1e})"
        return _fill(claim, width, indent=8)
    cells = [[_number(value) for value in row] for row in part["values"]]
    lines = [part["columns"], *cells] if part["columns"] else cells
    names = part["rows"] or [""] * len(cells)
    names = ["", *names] if part["columns"] else names
    margin = max(map(len, names)) + 2
    cell = max(8, *(len(text) + 1 for line in lines for text in line))
    total, fit = len(cells[0]), max(1, (width - margin) // cell)
    beside = math.ceil(total / math.ceil(total / fit))  # columns in a block; blocks alike
    blocks = [
        "\n".join(
            f"{name:<{margin}}{''.join(text.rjust(cell) for text in line[i : i + beside])}".rstrip()
            for name, line in zip(names, lines, strict=True)
        )
        for i in range(0, total, beside)
    ]
    return "\n".join([_fill(part["table"], width), "\n\n".join(blocks)])
