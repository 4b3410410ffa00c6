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
    """Append a line to provenance.jsonl in the folder `run`, for a start or resume at `step`.

    `computed` contains further entries of the line, such as the device and number of threads.
    """
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
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
    if config.model.ensemble > 1:  # a single run with a member's seed trains the same weights
        line["member_seeds"] = [member_seed(config.seed, m) for m in range(config.model.ensemble)]
    path = run / "provenance.jsonl"
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _git_commit() -> str | None:
    """Return the program's git commit, with + if it has uncommitted changes; None if not in git."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout

    try:
        # fails unless git tracks this file, so that the repository of another program is not used
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*").strip()
    except (OSError, subprocess.SubprocessError):
        return None
