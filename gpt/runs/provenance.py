"""Where a run came from: a line of provenance.jsonl for each start and resume."""

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from gpt import __version__
from gpt.config.schema import Config
from gpt.files import naming
from gpt.seeds import member_seed


def note_start(
    run: Path, config: Config, text_sha256: str, step: int, computed: Mapping[str, str | int]
) -> None:
    """One more line of provenance.jsonl: what began here, or resumed from this step, with what.

    `computed` says on what, and how: the last digits depend on it.
    """
    packages = ("torch", "numpy", "safetensors")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "command": shlex.join([_program(), *sys.argv[1:]]),
        "seed": config.seed,
        **_member_seeds(config),
        "text_sha256": text_sha256,
        "gpt": __version__,
        "git_commit": _git_commit(),
        **computed,
        **{package: metadata.version(package) for package in packages},
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    path = run / "provenance.jsonl"
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _program() -> str:
    """What runs: `gpt`, however that was started."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


def _member_seeds(config: Config) -> dict[str, list[int]]:
    """With which seed a run without an ensemble trains each member, if there are several."""
    K = config.model.ensemble
    return {"member_seeds": [member_seed(config.seed, m) for m in range(K)]} if K > 1 else {}


def _git_commit() -> str | None:
    """The commit of this program, with a + if it was changed since; None if it is not in git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    known = [*git, "ls-files", "--error-unmatch", Path(__file__).name]  # or it is another program's
    try:
        subprocess.run(known, capture_output=True, check=True, timeout=5)
        commit = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=5
        )
        changes = subprocess.run(
            [*git, "status", "--porcelain", "-uno", "."], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + ("+" if changes.stdout else "")
