"""Write checkpoints, config.yaml, and a line of provenance.jsonl for each start and resume."""

import hashlib
import json
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors.numpy

from gpt import __version__
from gpt.config.schema import Config
from gpt.config.yaml import to_yaml
from gpt.errors import CheckpointError, Unreadable
from gpt.files import naming, sync_folder, write_atomically, write_synced
from gpt.runs import format as layout
from gpt.runs.format import CheckpointData, TrainingState
from gpt.runs.prune import prune
from gpt.runs.read import read_index
from gpt.seeds import member_seed


def write_checkpoint(run: Path, data: CheckpointData, state: TrainingState) -> None:
    """Write a checkpoint to `checkpoints/step-N`, update the index, and `prune` old checkpoints.

    Raise OSError if the checkpoint cannot be written; the other checkpoints are then unchanged.
    """
    folder = run / "checkpoints"
    if not folder.exists():
        folder.mkdir()
        for new in (run, run.absolute().parent):  # a power cut could remove unsynced folders
            sync_folder(new)
    try:
        best_before = read_index(folder).best
    except (CheckpointError, Unreadable):
        best_before = None
    training = layout.Counters(
        step=data.step,
        val_loss=data.val_loss,
        best_step=data.best_step,
        finished=data.finished,
        numbers=state.numbers,
    )
    contents = {
        layout.MODEL: safetensors.numpy.save(data.weights),
        layout.OPTIMIZER: safetensors.numpy.save(state.tensors),
        layout.CONFIG: data.config.model_dump_json(indent=2).encode(),
        layout.VOCABULARY: data.vocabulary.to_json().encode(),
        layout.TRAINING: json.dumps(training.model_dump(), indent=2, allow_nan=False).encode(),
    }
    contents[layout.MANIFEST] = manifest_of(contents)
    _write(layout.step_folder(folder, data.step), contents)
    write_index(folder, data)
    prune(folder, {data.best_step, best_before})


def write_config(run: Path, config: Config) -> None:
    """Write config.yaml in the folder `run`; training with it repeats the run.

    It is written at each start and resume. A run with `train.minutes` writes it at the end, too:
    `train.plans` then replaces `train.minutes`, so that a repeat needs no clock.
    """
    write_atomically(run / "config.yaml", [to_yaml(config).encode()])


def write_index(folder: Path, data: CheckpointData) -> None:
    """Write index.json with the last and the best step; omit a best step without a checkpoint."""
    best = data.best_step
    if best is not None and not layout.step_folder(folder, best).exists():
        best = None
    content = layout.Index(last=data.step, best=best).model_dump_json().encode()
    path = folder / layout.INDEX
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, [content])


def manifest_of(contents: dict[str, bytes]) -> bytes:
    """Return the content of manifest.json for `contents`, a map from file names to contents."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    return layout.Manifest(format=layout.FORMAT, sha256=hashes).model_dump_json(indent=2).encode()


def _write(place: Path, contents: dict[str, bytes]) -> None:
    """Write files (`contents` by name) to a temporary folder, then rename it to `place`."""
    temporary = place.with_name(f".{place.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a run that was killed while it wrote
    try:
        temporary.mkdir()
        for name, content in contents.items():
            write_synced(temporary / name, [content])
        sync_folder(temporary)
        replaced = place.with_name(f".{place.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        if place.exists():  # an earlier save of this step; `recover` restores it after a kill
            place.rename(replaced)
        temporary.rename(place)
        sync_folder(place.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # frees the space on a full disk


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
    if config.model.ensemble > 1:  # a single model trained with one of these seeds equals a member
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
