"""Record where a run came from: a line of provenance.jsonl for each start and resume."""

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from gpt import __version__
from gpt.config.schema import Config
from gpt.files import naming
from gpt.seeds import member_seed


def note_start(
    run: Path, config: Config, text_sha256: str, step: int, computed: Mapping[str, str | int]
) -> None:
    """Append a line to provenance.jsonl of `run`.

    Args:
        run: the folder of the run.
        config: its config.
        text_sha256: hash of its text.
        step: the step that training starts or resumes from.
        computed: the device, threads and so on, which the last digits depend on.
    """
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    members = range(config.model.ensemble)
    line: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "command": shlex.join([name, *sys.argv[1:]]),
        "seed": config.seed,
        "text_sha256": text_sha256,
        "gpt": __version__,
        "git_commit": _git_commit(),
        **computed,
        **{package: metadata.version(package) for package in ("torch", "numpy", "safetensors")},
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    if len(members) > 1:  # a single run with this seed trains the same weights as the member
        line["member_seeds"] = [member_seed(config.seed, m) for m in members]
    path = run / "provenance.jsonl"
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _git_commit() -> str | None:
    """Return the commit of this program, with + if it was changed since; None outside of git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    # fails if this file belongs to no repository, or lies in that of another program
    tracked = [*git, "ls-files", "--error-unmatch", Path(__file__).name]
    try:
        subprocess.run(tracked, capture_output=True, check=True, timeout=5)
        commit, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, check=True, timeout=5)
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno", "."))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + ("+" if changes.stdout else "")
